"""How LangChain's messages are read."""

from __future__ import annotations

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)

import otel_assembly.instrumentation.langchain.messages  # noqa: F401  # the rows
from otel_assembly import Assembler, BudgetPolicy, ConversationPolicy, describe
from otel_assembly.errors import DescribeError
from otel_assembly.messages import MEDIA_TOKENS, EventKind, result_texts, shortened, summary_like

KINDS = [
    (HumanMessage("a"), EventKind.REQUEST),
    (AIMessage("a"), EventKind.RESPONSE),
    (AIMessageChunk(content="a"), EventKind.RESPONSE),
    (SystemMessage("a"), EventKind.SYSTEM),
    (ToolMessage("a", tool_call_id="1"), EventKind.TOOL_RESULT),
    (FunctionMessage("a", name="f"), EventKind.TOOL_RESULT),
    (ChatMessage("a", role="user"), EventKind.REQUEST),
    (ChatMessage("a", role="developer"), EventKind.SYSTEM),
    (ChatMessage("a", role="narrator"), EventKind.OTHER),
    (HumanMessage("a", additional_kwargs={"lc_source": "summarization"}), EventKind.SUMMARY),
    (RemoveMessage(id="1"), EventKind.OTHER),
]


@pytest.mark.parametrize(("message", "kind"), KINDS, ids=[f"{type(m).__name__}-{k}" for m, k in KINDS])
def test_what_a_message_is(message, kind):
    facts = describe(message)
    assert facts.kind is kind
    assert facts.text == ("" if isinstance(message, RemoveMessage) else "a")


def test_a_class_of_ones_own_is_read_as_its_base_is():
    class Note(HumanMessage):
        pass

    class Stranger(BaseMessage):
        type: str = "stranger"

    assert describe(Note("a")).kind is EventKind.REQUEST
    assert describe(Stranger(content="a")).kind is EventKind.OTHER


def test_calls_and_their_results_name_each_other():
    asks = AIMessage(
        "I look.",
        tool_calls=[{"id": "1", "name": "f", "args": {"city": "Köln"}}, {"id": None, "name": "g", "args": {}}],
        invalid_tool_calls=[{"id": "2", "name": "h", "args": "{bro", "error": "no JSON"}],
    )
    facts = describe(asks)
    assert (facts.opens, facts.closes) == (["1", "2"], ())
    assert facts.fields == ("f", '{"city": "Köln"}', "g", "{}", "h", "{bro")
    assert describe(ToolMessage("r", tool_call_id="1")).closes == ("1",)


def test_calls_of_the_old_form_pair_too():
    asks = AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}})
    assert describe(asks).opens == list(describe(FunctionMessage("r", name="f")).closes)


def test_an_id_only_if_it_was_set():
    assert describe(HumanMessage("a")).id is None
    assert describe(HumanMessage("a", id="7")).id == "7"


def test_what_the_provider_billed():
    usage = {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}
    assert describe(AIMessage("a", usage_metadata=usage)).billed_tokens == 12
    assert describe(AIMessage("a")).billed_tokens is None


def test_blocks_are_read_one_by_one():
    message = AIMessage(
        [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "text", "text": "Yes."},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            "bare",
        ],
        tool_calls=[{"id": "1", "name": "f", "args": {"a": 1}}],
    )
    facts = describe(message)
    assert facts.texts == ("Hm.", "Yes.", "bare", "f", '{"a": 1}')  # the call once, not twice


def test_pictures_are_estimated_and_what_nobody_knows_is_text():
    message = HumanMessage(
        [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "new", "x": 1}]
    )
    facts = describe(message)
    assert facts.media_tokens == MEDIA_TOKENS
    assert facts.texts == ("See", '{"type": "new", "x": 1}')


def test_a_summary_of_ours_reads_as_one_of_theirs():
    summary = summary_like(AIMessage("a"), "What was said.", ())
    assert isinstance(summary, HumanMessage)
    assert describe(summary).kind is EventKind.SUMMARY
    assert describe(summary).text.endswith("What was said.")


def test_a_shortened_result_still_answers_its_call():
    result = ToolMessage("a very long text", tool_call_id="1", id="7", name="f")
    short = shortened(result, ["short"])
    assert (short.content, short.tool_call_id, short.id, result.content) == ("short", "1", "7", "a very long text")
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    parts = ToolMessage([{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}], tool_call_id="1")
    assert result_texts(parts) == ["a\nb"]
    assert shortened(parts, ["c"]).content == [{"type": "text", "text": "c"}, image]
    assert result_texts(HumanMessage("a")) == ()


ROWS = "\n".join(f"Row {number}: flight {number * 7} leaves." for number in range(2_000))
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR"}}


@pytest.mark.parametrize(
    "result",
    [
        ToolMessage(ROWS, tool_call_id="1", status="error"),
        ToolMessage([{"type": "text", "text": ROWS}, IMAGE, "end"], tool_call_id="1", artifact=[1]),
        HumanMessage([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": ROWS}]}]),
    ],
    ids=["an error", "in blocks", "Anthropic's"],
)
async def test_a_result_that_does_not_fit_is_shortened_in_every_shape(result):
    asks = AIMessage("", tool_calls=[{"id": "1", "name": "f", "args": {}}])
    given = [HumanMessage("which gate?"), asks, result]
    assembly = await Assembler([BudgetPolicy(2_500, 0, compact="extractive")]).assemble([], given)
    short = assembly.events[-1]
    assert type(short) is type(result)
    assert (describe(short).kind, describe(short).closes) == (EventKind.TOOL_RESULT, ("1",))
    assert describe(short).media_tokens == describe(result).media_tokens
    assert getattr(short, "status", None) == getattr(result, "status", None)
    assert getattr(short, "artifact", None) == getattr(result, "artifact", None)
    assert 500 < assembly.totals.tokens_out <= 2_500
    assert convert_to_openai_messages(assembly.events)


def test_blocks_of_every_provider_are_read_as_what_they_are():
    facts = describe(
        AIMessage(
            [
                {"type": "reasoning", "reasoning": "Hm."},
                {"type": "redacted_thinking", "data": "QUJD" * 40},
                {"type": "server_tool_call", "id": "s", "name": "web", "args": {"q": "a"}},
                {"type": "server_tool_result", "tool_call_id": "s", "status": "success", "output": [{"title": "A"}]},
                {"type": "text-plain", "text": "plain", "mime_type": "text/plain"},
                {"type": "image", "base64": "iVBOR" * 999, "mime_type": "image/png"},
                {"type": "tool_call", "id": "1", "name": "f", "args": {}},
                {"type": "tool_use", "id": "2", "name": "g", "input": {"a": 1}},
                {"type": "non_standard", "value": {"type": "text", "text": "odd"}},
            ],
            tool_calls=[{"id": "1", "name": "f", "args": {}}],
        )
    )
    assert facts.texts == ("Hm.", "web", '{"q": "a"}', "A", "plain", "g", '{"a": 1}', "odd", "f", "{}")
    assert list(facts.opens) == ["2", "1"]
    assert MEDIA_TOKENS < facts.media_tokens < MEDIA_TOKENS + 40
    assert not facts.unknown


def test_a_tools_name_is_not_sent_beside_its_result():
    result = ToolMessage("r", tool_call_id="1", name="f")
    assert describe(result).texts == ("r",)
    assert describe(HumanMessage("r", name="ann")).texts == ("r", "ann")


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage.model_construct(content=None, additional_kwargs=None, id=None, name=None),
        HumanMessage.model_construct(content=[{"type": "text", "text": 7}], additional_kwargs={}, id=None, name=None),
        AIMessage.model_construct(content="", additional_kwargs={}, tool_calls=[None], id=None, name=None),
        AIMessage.model_construct(content=7, additional_kwargs={}, id=None, name=None),
    ],
    ids=["no fields", "a text that is none", "a call that is none", "a content that is none"],
)
def test_a_malformed_message_cannot_be_read(message):
    with pytest.raises(DescribeError, match="langchain_core"):
        describe(message)


async def test_half_an_emoji_is_read():
    given = [HumanMessage("half \ud83d"), AIMessage("", tool_calls=[{"id": "1", "name": "f", "args": {"q": "\ud83d"}}])]
    assembly = await Assembler([ConversationPolicy()]).assemble(["half \ud83d"], given)
    assert assembly.events == given
