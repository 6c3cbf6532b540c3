"""Classic AG2, `ConversableAgent`: names, one run for each reply, and the transforms of its messages as steps.

It calls models through OpenAI's client. The package `autogen` has it before `ag2` 1.0.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from autogen import ConversableAgent, GroupChat, GroupChatManager
from autogen.agentchat.contrib.capabilities.transform_messages import TransformMessages
from autogen.agentchat.contrib.capabilities.transforms import MessageHistoryLimiter
from chat_provider import agents_of_calls, assemblies, one_assembly_for_each_request, runs, steps, turns

from otel_assembly.instrumentation import uninstrument

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SENTENCES = [f"This is the answer number {number}." for number in range(8)]


class WithoutSecrets:
    """A transform of the program, which derives from no class of AG2's."""

    def apply_transform(self, messages):
        return [message for message in messages if "secret" not in str(message["content"])] or messages

    def get_logs(self, before, after):
        return "", False


@pytest.fixture
def agent(provider):
    """Return a function that creates an agent."""

    def create(name, *, stream=False, **settings):
        model = {"model": "gpt-4o", "base_url": provider.url, "api_key": "none", "stream": stream}
        config = {"config_list": [model], "cache_seed": None}
        return ConversableAgent(name, system_message=f"You are {name}.", **{"llm_config": config, **settings})

    return create


@pytest.fixture
def guest(agent):
    return agent("guest", llm_config=False, human_input_mode="NEVER", default_auto_reply="Go on.")


@pytest.fixture
def recorded(instrumented, assembly_telemetry):
    instrumented("openai", "ag2")
    return assembly_telemetry


def test_two_agents_that_talk_have_two_names(recorded, provider, agent):
    alice, bob = (agent(name, human_input_mode="NEVER") for name in ("alice", "bob"))
    provider.says(*SENTENCES[:5])
    alice.initiate_chat(bob, message="Hello.", max_turns=3, silent=True)
    assert runs(recorded) == [("alice", None), *[("bob", "alice"), ("alice", "alice")] * 2, ("bob", "alice")]
    assert agents_of_calls(recorded) == ["bob", "alice", "bob", "alice", "bob"]
    assert turns(recorded) == [0, 0, 1, 1, 2]
    assert steps(recorded) == [[]] * 5
    assert {span.attributes["assembly.framework"] for span in assemblies(recorded)} == {"ag2"}
    assert len({span.trace_id for span in recorded.spans}) == 1
    assert one_assembly_for_each_request(recorded, provider)


def test_the_transforms_of_messages_are_steps(recorded, provider, agent, guest):
    bob = agent("bob")
    transforms = [WithoutSecrets(), MessageHistoryLimiter(max_messages=2)]
    TransformMessages(transforms=transforms, verbose=False).add_to_agent(bob)
    provider.says(*SENTENCES[:3])
    guest.initiate_chat(bob, message="The secret is 7.", max_turns=3, silent=True)
    assert steps(recorded) == [[], ["WithoutSecrets"], ["WithoutSecrets", "message_history_limiter"]]
    assert [span.attributes["assembly.events.in"] for span in assemblies(recorded)] == [1, 3, 5]
    assert [span.attributes["assembly.newly_dropped.count"] for span in assemblies(recorded)] == [0, 1, 2]
    limiter = assemblies(recorded)[2].children[-1]
    assert json.loads(limiter.attributes["assembly.policy.config"])["max_messages"] == 2
    assert one_assembly_for_each_request(recorded, provider)


def test_the_speakers_of_a_group_have_names_of_their_own(recorded, provider, agent, guest):
    writer, editor = agent("writer"), agent("editor")
    group = GroupChat([guest, writer, editor], messages=[], max_round=3, speaker_selection_method="round_robin")
    provider.says(*SENTENCES[:2])
    guest.initiate_chat(GroupChatManager(group, llm_config=False), message="Write.", silent=True)
    assert agents_of_calls(recorded) == ["writer", "editor"]
    assert len({span.trace_id for span in recorded.spans}) == 1
    assert one_assembly_for_each_request(recorded, provider)


def test_an_asynchronous_reply_calls_the_client_in_its_run(recorded, provider, agent, guest):
    bob = agent("bob")
    bob.register_for_llm(description="Adds.")(add)
    guest.register_for_execution()(add)
    provider.calls("add", left=1, right=2)
    provider.says("It is three.")
    asyncio.run(guest.a_initiate_chat(bob, message="What is 1 + 2?", max_turns=2, silent=True))
    assert agents_of_calls(recorded) == ["bob", "bob"]
    assert turns(recorded) == [0, 1]
    assert steps(recorded) == [[], []]
    assert len({span.trace_id for span in recorded.spans}) == 1
    assert one_assembly_for_each_request(recorded, provider)


def add(left: int, right: int) -> str:
    return str(left + right)


def test_a_streamed_reply_has_one_assembly(recorded, provider, agent):
    provider.streams_text(SENTENCES[0])
    reply = agent("bob", stream=True).generate_reply([{"role": "user", "content": "Hello."}])
    assert str(reply).strip() == SENTENCES[0]
    assert runs(recorded) == [("bob", None)]
    assert one_assembly_for_each_request(recorded, provider)


def test_an_error_ends_the_run_with_its_type(recorded, provider, agent):
    provider.refuses("no such model")
    with pytest.raises(Exception, match="no such model"):
        agent("bob").generate_reply([{"role": "user", "content": "Hello."}])
    run = assemblies(recorded)[0].parent
    assert run.attributes["error.type"].endswith("BadRequestError")
    assert run.status == "ERROR"


def test_the_program_runs_as_without_instrumentation(instrumented, provider, agent, guest):
    def program():
        bob = agent("bob")
        transforms = [WithoutSecrets(), MessageHistoryLimiter(max_messages=2)]
        TransformMessages(transforms=transforms, verbose=False).add_to_agent(bob)
        provider.says(*SENTENCES[:3])
        chat = guest.initiate_chat(bob, message="The secret is 7.", max_turns=3, silent=True).chat_history
        sent, provider.requests = provider.requests, []
        return chat, sent

    classes = ConversableAgent, TransformMessages, MessageHistoryLimiter, WithoutSecrets
    before = [dict(vars(cls)) for cls in classes]
    bare = program()
    instrumented("openai", "ag2")
    assert program() == bare
    assert [dict(vars(cls)) for cls in classes] != before
    uninstrument()
    assert [dict(vars(cls)) for cls in classes] == before
