"""States and configurations: read back as they were written, by AutoGen's shape, and refused where they say nothing."""

from __future__ import annotations

import json

import pytest
from model_context.talks import OURS, WordClient, filled, said, table

from otel_assembly import ConfigurationError
from otel_assembly import model_context as home
from otel_assembly.errors import UnknownNameError
from otel_assembly.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    FunctionCall,
    Image,
    TokenLimitedChatCompletionContext,
    UnboundedChatCompletionContext,
    UserMessage,
)

of = OURS.of


@pytest.mark.parametrize("kind", ["unbounded", "buffered", "head_and_tail", "token_limited"])
async def test_a_state_goes_through_json_into_any_other_context(kind):
    talk = of("system", "ask", "call a b", "result a", "result b", "say")
    context = await filled(getattr(table(home), kind), talk)
    state = json.loads(json.dumps(await context.save_state()))
    for other in vars(table(home)).values():
        await other.load_state(state)
        assert (await other.save_state()) == state
        assert other._messages == talk


async def test_a_state_has_a_name_for_each_result_also_where_it_had_none():
    old = {
        "messages": [
            {"content": [{"id": "1", "arguments": "{}", "name": "t"}], "source": "a", "type": "AssistantMessage"},
            {"content": [{"content": "r", "call_id": "1"}], "type": "FunctionExecutionResultMessage"},
            {"content": [{"content": "r", "call_id": "9"}], "type": "FunctionExecutionResultMessage"},
        ]
    }
    context = UnboundedChatCompletionContext()
    await context.load_state(old)
    state = await context.save_state()
    assert [message["content"][0]["name"] for message in state["messages"]] == ["t", "t", ""]
    assert "name" not in old["messages"][1]["content"][0]


async def test_an_image_stays_as_it_is():
    image = {"data": "aGVsbG8=", "detail": "high"}
    state = {"messages": [{"content": ["look", image], "source": "user", "type": "UserMessage"}]}
    context = UnboundedChatCompletionContext()
    await context.load_state(state)
    assert await context.save_state() == state
    (message,) = await context.get_messages()
    assert isinstance(message.content[1], Image)


async def test_the_state_of_an_agent_is_unwrapped():
    state = {"type": "AssistantAgentState", "version": "1.0.0", "llm_context": {"messages": []}}
    state["llm_context"]["messages"].append({"content": "hello", "source": "user", "type": "UserMessage"})
    context = BufferedChatCompletionContext(2)
    await context.load_state(state)
    assert said(await context.get_messages()) == ["hello"]


@pytest.mark.parametrize(
    ("state", "wrong"),
    [
        ({"message": []}, r"state: has no 'messages' \(it has 'message'\)"),
        ({"llm_context": {"history": []}}, r"state.llm_context: has no 'messages'"),
        ([], "state: expected a mapping"),
        ({"messages": {}}, "state.messages: expected a list"),
        ({"messages": "hello"}, "state.messages: expected a list"),
        ({"messages": [{"type": "UserMessage", "source": "u"}]}, r"state.messages\[0\].content: Field required"),
        ({"messages": [{"type": "Other", "content": ""}]}, r"state.messages\[0\]: Input tag 'Other'"),
        (
            {"messages": [{"type": "FunctionExecutionResultMessage", "content": [{"content": "r"}]}]},
            r"state.messages\[0\].content\[0\].call_id: Field required",
        ),
    ],
)
async def test_what_is_no_state_is_refused_by_its_place_and_changes_nothing(state, wrong):
    context = await filled(BufferedChatCompletionContext(3), of("ask"))
    with pytest.raises(ConfigurationError, match=wrong):
        await context.load_state(state)
    assert said(await context.get_messages()) == ["ask 0"]


async def test_an_empty_state_empties_a_context():
    context = await filled(BufferedChatCompletionContext(3), of("ask"))
    await context.load_state({})
    assert await context.get_messages() == []


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("kind", ["unbounded", "buffered", "head_and_tail"])
async def test_a_configuration_reloads_as_the_same_class_with_its_messages(kind, compat):
    talk = of("ask", "call a", "result a", "say")
    context = getattr(table(home, compat=compat, initial_messages=talk), kind)
    dumped = json.loads(context.dump_component().model_dump_json())
    assert dumped["component_type"] == "chat_completion_context"
    assert dumped["label"] == type(context).__name__
    loaded = ChatCompletionContext.load_component(dumped)
    assert (type(loaded), loaded.compat) == (type(context), compat)
    assert loaded._messages == talk
    assert said(await loaded.get_messages()) == said(await context.get_messages())
    assert loaded.dump_component() == context.dump_component()


async def test_a_configuration_under_autogens_name_is_read_and_written():
    context = BufferedChatCompletionContext(4, of("ask"), compat=True)
    dumped = context.dump_component(provider="autogen")
    assert dumped.provider == "autogen_core.model_context.BufferedChatCompletionContext"
    assert set(dumped.config) == {"buffer_size", "initial_messages"}
    loaded = ChatCompletionContext.load_component(dumped)
    assert type(loaded) is BufferedChatCompletionContext
    assert not loaded.compat


async def test_a_client_is_given_and_never_imported():
    class Dumped(WordClient):
        def dump_component(self):
            return {"provider": "os.system", "config": {}}

    context = TokenLimitedChatCompletionContext(Dumped(), token_limit=50, initial_messages=of("ask"))
    dumped = context.dump_component()
    with pytest.raises(ConfigurationError, match="model_client: the client cannot be created from its configuration"):
        ChatCompletionContext.load_component(dumped)
    client = WordClient()
    loaded = ChatCompletionContext.load_component(dumped, model_client=client)
    assert said(await loaded.get_messages()) == ["ask 0"]
    assert client.asked
    with pytest.raises(ConfigurationError, match="has no dump_component"):
        TokenLimitedChatCompletionContext(client, token_limit=5).dump_component()


@pytest.mark.parametrize(
    ("component", "wrong"),
    [
        (
            {"provider": "os.path.join", "config": {}},
            "component.provider: 'os.path.join' is not a known context",
        ),
        ({"config": {}}, "component.provider: Field required"),
        (
            {"provider": "autogen_core.model_context.BufferedChatCompletionContext", "config": {}},
            "component.config.buffer_size: Field required",
        ),
        (
            {"provider": "autogen_core.model_context.BufferedChatCompletionContext", "config": {"buffer_size": 0}},
            "buffer_size must be greater than 0",
        ),
    ],
)
def test_what_is_no_configuration_of_a_context_is_refused(component, wrong):
    with pytest.raises(ConfigurationError, match=wrong):
        ChatCompletionContext.load_component(component)


def test_a_name_that_is_nearly_right_is_suggested():
    with pytest.raises(UnknownNameError, match="did you mean 'BufferedChatCompletionContext'"):
        ChatCompletionContext.load_component({"provider": "otel_assembly.model_context.BuferedChatCompletionContext"})


class Quiet(UnboundedChatCompletionContext):
    """A context of a user's own."""


async def test_a_class_of_ones_own_is_dumped_as_itself():
    dumped = Quiet(of("ask")).dump_component()
    assert dumped.provider.endswith("test_states.Quiet")
    assert type(Quiet.load_component(dumped)) is Quiet
    with pytest.raises(ConfigurationError, match=r"MyContext\.load_component"):
        ChatCompletionContext.load_component(dumped)
    with pytest.raises(ConfigurationError, match="AutoGen has no Quiet"):
        Quiet().dump_component(provider="autogen")
    with pytest.raises(ConfigurationError, match="is no Quiet"):
        Quiet.load_component(BufferedChatCompletionContext(2).dump_component())


def test_messages_are_equal_by_their_content():
    assert UserMessage(content="a", source="u") == UserMessage(content="a", source="u")
    assert FunctionCall("1", "{}", "t") == FunctionCall(id="1", arguments="{}", name="t")
