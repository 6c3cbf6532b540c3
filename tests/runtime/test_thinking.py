"""What a model thought goes back with the calls that it led to, unchanged, and is counted there."""

from __future__ import annotations

import json

import pytest
from counting import WordCounter
from providers import (
    Answer,
    Provider,
    completion,
    completion_pieces,
    function_call,
    message,
    message_pieces,
    text_block,
    tool_block,
)
from spoken_agents import said

from otel_assembly import (
    Agent,
    AnthropicModel,
    Assembler,
    Context,
    ConversationPolicy,
    ModelRequest,
    ModelResponse,
    OpenAIModel,
    ToolCallEvent,
    ToolResultEvent,
    counter_for,
    describe,
    to_anthropic,
    to_openai,
)
from otel_assembly.events import Thinking
from otel_assembly.telemetry import ContentCapture, TelemetrySettings, TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel
from otel_assembly.tokens import TokenMeter

pytest.importorskip("openai", reason="not installed: python -m pip install --group dev")
pytest.importorskip("anthropic", reason="not installed: python -m pip install --group dev")
pytestmark = pytest.mark.usefixtures("one_authority")

SIGNATURE = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"
SEALED = "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8cr3qpP"
THINKING = {"type": "thinking", "thinking": "I have to look it up.", "signature": SIGNATURE}
REDACTED = {"type": "redacted_thinking", "data": SEALED}
AGAIN = {"type": "thinking", "thinking": "By its flight.", "signature": "second"}
#: The text is left out of what newer models give.
OMITTED = {"type": "thinking", "thinking": "", "signature": SIGNATURE * 4}
TEXT = {"type": "text", "text": "I look."}
USE = {"type": "tool_use", "id": "toolu_a", "name": "search", "input": {"q": "bag"}}
OTHER = {"type": "tool_use", "id": "toolu_b", "name": "search", "input": {"q": "KE081"}}

ORDERS = {
    "in front": [THINKING, TEXT, USE],
    "sealed": [THINKING, REDACTED, USE, OTHER],
    "between": [THINKING, TEXT, AGAIN, USE],
    "between calls": [THINKING, USE, AGAIN, OTHER],
    "behind a blank text": [{"type": "text", "text": "\n"}, THINKING, USE],
    "omitted": [OMITTED, USE],
}


def search(q: str) -> str:
    """Search."""
    return "At gate 14."


def streamed(block):
    """A block as it comes in a stream."""
    match block["type"]:
        case "text":
            return text_block(block["text"])
        case "tool_use":
            written = json.dumps(block["input"])
            return tool_block(block["id"], written[:4], written[4:])
        case "thinking":
            text = block["thinking"]
            pieces = [{"type": "thinking_delta", "thinking": item} for item in (text[:5], text[5:]) if item]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*pieces, signed]
        case _:
            return block, []


def anthropic_at(server, **settings):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    return AnthropicModel(
        "claude-sonnet-5", base_url=server.url, api_key="key", max_retries=0, thinking=thinking, **settings
    )


def openai_at(server, **settings):
    return OpenAIModel("deepseek-v4", base_url=f"{server.url}/v1", api_key="key", max_retries=0, **settings)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("order", ORDERS)
async def test_anthropic_is_sent_back_what_it_thought_where_it_stood(order, streams):
    blocks = ORDERS[order]
    first = Answer(pieces=message_pieces(*map(streamed, blocks))) if streams else message(*blocks, stop="tool_use")
    last = (
        Answer(pieces=message_pieces(streamed(THINKING), text_block("Gate 14.")))
        if streams
        else message(THINKING, TEXT)
    )
    async with Provider(first, last, message(TEXT)) as server:
        model = anthropic_at(server, streams=streams)
        agent = Agent("desk", "Be brief.", model, [search])
        answer = await agent.ask("Where is my bag?")
        again = agent.load_session(agent.session.save())
        again.model = anthropic_at(server)
        await again.ask("Sure?")
        await again.model.close()
        await model.close()
    sent = [block for block in blocks if block.get("text") != "\n"]
    assert server.requests[1]["messages"][1]["content"] == sent
    # The saved session has it too; what was thought before a plain answer is kept and not sent.
    third = server.requests[2]["messages"]
    assert third[1]["content"] == sent
    assert [block["type"] for block in third[3]["content"]] == ["text"]
    assert [item.text for item in answer.thinking] == ["I have to look it up."]
    assert said(agent.session)[-1].startswith("say ")


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("names", [("reasoning_content",), ("reasoning",), ("reasoning_content", "reasoning")])
async def test_a_server_of_openais_form_is_sent_back_what_it_said_under_the_name_it_used(names, streams):
    call = function_call("a", '{"q": "bag"}')
    whole = completion(None, [call])
    whole.body["choices"][0]["message"] |= dict.fromkeys(names, "I have to look.")
    deltas = [dict.fromkeys(names, piece) for piece in ("I have ", "to look.")]
    deltas.append({"tool_calls": [{"index": 0, **call}]})
    pieces = Answer(pieces=completion_pieces(*deltas, finish="tool_calls"))
    last = Answer(pieces=completion_pieces("Gate 14.")) if streams else completion()
    async with Provider(pieces if streams else whole, last) as server:
        model = openai_at(server, streams=streams)
        await Agent("desk", "", model, [search]).ask("Where is my bag?")
        await model.close()
    sent = server.requests[1]["messages"][2]
    assert {key: sent[key] for key in sent if key.startswith("reasoning")} == {names[0]: "I have to look."}
    assert sent["tool_calls"] == [call]


THOUGHTS = (
    Thinking(form="thinking", text="I have to look it up.", signature="x"),
    Thinking(form="redacted_thinking", sealed=SEALED),
)
CALL = ToolCallEvent(id="a", name="search", arguments='{"q": "bag"}')
RESULT = ToolResultEvent(parent_id="a", content="At gate 14.")
METER = TokenMeter(WordCounter())


def tokens_of(event):
    return METER.event(describe(event))


def test_it_is_counted_where_it_is_sent():
    silent, thinking = ModelResponse(tool_calls=(CALL,)), ModelResponse(tool_calls=(CALL,), thinking=THOUGHTS)
    assert tokens_of(thinking) == tokens_of(silent) + 6 + int(len(SEALED) * 3 / 16)
    sealed = ModelResponse(tool_calls=(CALL,), thinking=[Thinking(form="thinking", signature=SIGNATURE)])
    assert tokens_of(sealed) == tokens_of(silent) + int(len(SIGNATURE) * 3 / 16)
    assert tokens_of(ModelResponse(content="Yes.", thinking=THOUGHTS)) == tokens_of(ModelResponse(content="Yes."))


@pytest.mark.parametrize("content", ["", "I look."])
async def test_what_is_sent_to_openai_is_what_was_counted(content):
    thought = Thinking(form="reasoning_content", text="I have to look it up.")
    response = ModelResponse(content=content, tool_calls=(CALL,), thinking=[thought])
    plain = ModelResponse(content="Gate 14.", thinking=[thought])
    events = [ModelRequest(content="Where?"), response, RESULT, plain, ModelRequest(content="Sure?")]
    assembly = await Assembler([ConversationPolicy()]).assemble(["Be brief."], events, Context())
    meter = TokenMeter(counter_for())
    sent = to_openai(*assembly)
    assert sum(meter.event(describe(message)) for message in sent) + meter.priming == assembly.totals.tokens_out
    assert "reasoning_content" not in sent[4]


def test_another_providers_thoughts_are_not_sent():
    other = Thinking(form="reasoning", text="hm")
    events = [ModelRequest(content="Where?"), ModelResponse(tool_calls=(CALL,), thinking=(*THOUGHTS, other)), RESULT]
    (_, asking, _) = to_openai([], events)
    assert asking["reasoning"] == "hm"
    assert "I have to look it up." not in json.dumps(asking)
    kinds = [block["type"] for block in to_anthropic([], events)["messages"][1]["content"]]
    assert kinds == ["thinking", "redacted_thinking", "tool_use"]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("content", ["I look.", [{"type": "text", "text": "I look."}], None])
def test_a_chat_message_is_counted_with_what_it_says_was_thought(content, key):
    thinking = {"role": "assistant", "content": content, key: "I have to"}
    both = {**thinking, "reasoning": "I have to"}
    silent = {"role": "assistant", "content": content}
    assert tokens_of(thinking) == tokens_of(both) == tokens_of(silent) + 3
    assert tokens_of({**silent, "role": "user", key: "I have to"}) == tokens_of({**silent, "role": "user"})


@pytest.mark.parametrize(("content", "told"), [(ContentCapture.NO_CONTENT, False), (ContentCapture.SPAN_ONLY, True)])
async def test_what_was_thought_is_told_only_where_content_is(content, told):
    telemetry = RecordedTelemetry(settings=TelemetrySettings(content=content))
    with telemetry.as_default():
        response = ModelResponse(tool_calls=(CALL,), thinking=THOUGHTS)
        model = ScriptedModel(response, "Gate 14.")
        await Agent("desk", "", model, [search], middlewares=[TracingMiddleware()]).ask("Where?")
    first, second = telemetry.spans_named("chat scripted")
    telemetry.shutdown()
    assert ('"type":"reasoning"' in first.attributes.get("gen_ai.output.messages", "")) is told
    assert ("I have to look it up." in first.attributes.get("gen_ai.output.messages", "")) is told
    assert ("I have to look it up." in second.attributes.get("gen_ai.input.messages", "")) is told
    assert ("I have to look it up." in repr(telemetry.spans)) is told
    assert SEALED not in repr(telemetry.spans)
