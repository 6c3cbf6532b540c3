"""The request with the prompt of an assembler belongs to its assembly; each other request has one of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest
from any_answer import any_answer
from client_calls import assemblies, chat, user
from provider_bodies import chat_chunks

from otel_assembly import Assembler, SlidingWindowPolicy, to_anthropic, to_openai
from otel_assembly.events import CompactionSummary, ModelRequest, ModelResponse, ToolCallEvent, ToolResultEvent
from otel_assembly.recorder import NullRecorder
from otel_assembly.runtime import Agent, AnthropicModel, OpenAIModel

PROMPTS = ["Be kind.", "Be short."]


@pytest.fixture(autouse=True)
def _answers(server):
    server.answers_all(lambda path, body: any_answer(path, body, f"Answer number {len(server.requests)}."))


def frameworks(telemetry):
    """The frameworks of the assemblies: None for those of an assembler."""
    return [span.attributes.get("assembly.framework") for span in assemblies(telemetry)]


def conversation_about(question):
    """A conversation after a window was applied: it begins with an answer and has a result without its call."""
    call = ToolCallEvent(id="call.1", name="find bag", arguments='{"q": "bag"}')
    return [
        ToolResultEvent(parent_id="cut off", content="a result of a call that was dropped"),
        ModelResponse(content="I am the desk."),
        CompactionSummary(summary="The guest lost a bag."),
        ModelRequest(content=question),
        ModelResponse(content="Let me look.", tool_calls=(call, call.model_copy(update={"id": "call.2"}))),
        ToolResultEvent(parent_id="call.1", content="gate 14"),
        ModelRequest(content="Thank you."),
    ]


def to_gemini(prompts, events):
    """A converter of a program's own."""
    roles = {"user": "user", "assistant": "model"}
    contents = [{"role": roles[event["role"]], "parts": [{"text": event["content"]}]} for event in events]
    return {"contents": contents, "config": {"system_instruction": "\n\n".join(prompts)}}


@pytest.mark.parametrize("client", ["openai", "openai, joined", "anthropic", "gemini"])
async def test_the_request_of_an_assembly_has_no_other_one(clients, telemetry, question, client):
    events = conversation_about(question)
    if client == "gemini":
        events = [user(question), {"role": "assistant", "content": "Gate\n\n14."}, user("Thank you.")]
    prompts, events = await Assembler([SlidingWindowPolicy(9)]).assemble(PROMPTS, events)
    if client == "anthropic":
        clients.anthropic.messages.create(model="m", max_tokens=9, **to_anthropic(prompts, events))
    elif client == "gemini":
        clients.gemini.models.generate_content(model="m", **to_gemini(prompts, events))
    else:
        prompts = ["\n".join(prompts)] if "joined" in client else prompts
        chat(clients, to_openai(prompts, events))
    assert frameworks(telemetry) == [None]


@pytest.mark.parametrize("middle", ["At gate 14.", "At gate 15."])
async def test_a_later_request_with_the_same_ends_is_recorded(clients, telemetry, question, middle):
    messages = [user(question), {"role": "assistant", "content": "At gate 14."}, user("Thank you.")]
    chat(clients, to_openai(*await Assembler([SlidingWindowPolicy(9)]).assemble(PROMPTS, messages)))
    messages[1] = {"role": "assistant", "content": middle}
    chat(clients, to_openai(PROMPTS, messages))
    assert frameworks(telemetry) == [None, "openai"]


async def test_a_request_that_is_no_assemblys_does_not_take_its_place(clients, telemetry, question):
    messages = [user(question), {"role": "assistant", "content": "At gate 14."}, user("Thank you.")]
    assembly = await Assembler([SlidingWindowPolicy(9)]).assemble(PROMPTS, messages)
    chat(clients, to_openai(PROMPTS, [messages[0], messages[2]]))
    chat(clients, to_openai(*assembly))
    assert frameworks(telemetry) == [None, "openai"]


async def test_a_prompt_that_the_program_changed_is_recorded(clients, telemetry, question):
    assembly = await Assembler([SlidingWindowPolicy(9)]).assemble(PROMPTS, [user(question)])
    chat(clients, [*to_openai(*assembly), user("Answer in French.")])
    assert frameworks(telemetry) == [None, "openai"]


async def test_a_retry_after_an_error_belongs_to_the_assembly(clients, server, telemetry, question):
    messages = to_openai(*await Assembler([SlidingWindowPolicy(9)]).assemble(PROMPTS, [user(question)]))
    server.fails(500)
    with pytest.raises(Exception, match="refused"):
        chat(clients, messages)
    chat(clients, messages)
    assert frameworks(telemetry) == [None]
    chat(clients, messages)  # a second answer to the same prompt
    assert frameworks(telemetry) == [None, "openai"]


async def test_a_retry_after_an_error_in_a_stream_belongs_to_the_assembly(clients, server, telemetry, question):
    def stream():
        return list(clients.bedrock.converse_stream(modelId="m", messages=messages)["stream"])

    _, events = await Assembler([]).assemble([], [ModelRequest(content=question)])
    messages = [{"role": "user", "content": [{"text": events[0].content}]}]
    server.streams_aws([{"throttlingException": {"message": "Too many requests."}}])
    with pytest.raises(Exception, match="Too many requests"):
        stream()
    server.streams_aws([{"messageStop": {"stopReason": "end_turn"}}])
    stream()
    assert frameworks(telemetry) == [None]


async def test_a_prompt_is_forgotten_if_it_is_not_sent(clients, telemetry, question):
    assembly = await Assembler([SlidingWindowPolicy(9)]).assemble(PROMPTS, [user(question)])
    unrecorded = Assembler([], recorder=NullRecorder())
    for number in range(1_024):
        await unrecorded.assemble([], [user(f"{question} {number}")])
    chat(clients, to_openai(*assembly))
    assert frameworks(telemetry) == [None, "openai"]


async def test_concurrent_tasks_with_the_same_prompt_have_one_assembly_each(clients, telemetry, question):
    assembler = Assembler([SlidingWindowPolicy(9)])

    async def ask():
        assembly = await assembler.assemble(PROMPTS, [user(question)])
        await asyncio.sleep(0)
        await clients.openai_async.chat.completions.create(model="m", messages=to_openai(*assembly))

    async with clients.openai_async:
        await asyncio.gather(*(ask() for _ in range(5)))
    assert frameworks(telemetry) == [None] * 5
    chat(clients, to_openai(PROMPTS, [user(question)]))
    assert frameworks(telemetry) == [None] * 5 + ["openai"]


async def test_another_thread_may_send_the_prompt(clients, telemetry, question):
    assembly = await Assembler([SlidingWindowPolicy(9)]).assemble(PROMPTS, [user(question)])
    thread = threading.Thread(target=chat, args=(clients, to_openai(*assembly)))
    thread.start()
    thread.join()
    assert frameworks(telemetry) == [None]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_the_model_calls_of_an_agent_have_one_assembly_each(
    clients, server, telemetry, question, provider, streams
):
    models = {
        "openai": lambda: OpenAIModel("m", client=clients.openai_async, streams=streams),
        "anthropic": lambda: AnthropicModel("m", client=clients.anthropic_async, streams=streams),
    }
    agent = Agent("desk", "Be kind.", models[provider](), assembly=[SlidingWindowPolicy(3)])
    async with clients.openai_async, clients.anthropic_async:
        for number in range(4):
            await agent.ask(f"{question} {number}")
    assert len(server.requests) == 4
    assert frameworks(telemetry) == [None] * 4


@pytest.mark.filterwarnings("ignore")  # litellm warns of its own calls
async def test_litellm_and_the_client_below_it_send_one_prompt(clients, server, telemetry, question):
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    from otel_assembly import instrument

    instrument("litellm")
    assembly = await Assembler([SlidingWindowPolicy(9)]).assemble(PROMPTS, [user(question)])
    litellm.completion("openai/gpt-4o", to_openai(*assembly), api_key="k", api_base=server.url)
    assert frameworks(telemetry) == [None]


@pytest.mark.filterwarnings("ignore")  # litellm warns of its own calls
def test_litellm_finalizes_a_stream_that_the_program_drops(clients, server, telemetry, question, monkeypatch):
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    from otel_assembly import instrument

    instrument("litellm")
    finalized = []
    monkeypatch.setattr(litellm.CustomStreamWrapper, "__del__", lambda stream: finalized.append(1), raising=False)
    server.streams(chat_chunks({"delta": {"role": "assistant", "content": "At gate 14."}}))
    stream = litellm.completion("openai/gpt-4o", [user(question)], api_key="k", api_base=server.url, stream=True)
    next(stream)
    stream.__del__()  # a thread of LiteLLM may hold the stream for a while
    assert finalized
