"""AG2's events in the shapes that break readers: malformed, cut, of unknown parts, too long for the budget."""

from __future__ import annotations

import pytest
from ag2_package import MemoryStream, answer, ask, call, events, part

from otel_assembly import Assembler, BudgetPolicy, ConversationPolicy, describe
from otel_assembly.errors import DescribeError
from otel_assembly.instrumentation.ag2 import AssembledPolicy
from otel_assembly.messages import MEDIA_TOKENS, broken_pairs

ROWS = "\n".join(f"Row {number}: flight {number * 7} leaves." for number in range(2_000))


def plugin():
    return AssembledPolicy([BudgetPolicy(2_000, 0, compact="extractive")], model="gpt-4o")


async def sent(*given):
    context = part("context").ConversationContext(MemoryStream())
    _, out = await plugin().apply(["You help."], list(given), context)
    return out


def asked(*ids):
    calls = [call("rows", id=item_id) for item_id in ids]
    return calls, events.ModelResponse(tool_calls=events.ToolCallsEvent(calls))


def failed(message, text=ROWS):
    event = events.ToolErrorEvent.from_call(message, RuntimeError("no such row"))
    event.result = events.ToolResult(text)
    return event


async def test_an_error_that_does_not_fit_is_shortened_where_it_is_sent_from():
    calls, response = asked("a", "b")
    results = [failed(calls[0]), events.ToolResultEvent.from_call(calls[1], "It rains.")]
    batch = events.ToolResultsEvent(results)
    out = await sent(ask("which gate?"), response, *results, batch)
    assert [type(event) for event in out] == [type(event) for event in (out[0], response, *results, batch)]
    for error, other in ((out[2], out[3]), out[4].results):
        assert isinstance(error, events.ToolErrorEvent)
        assert error.parent_id == "a"
        assert error.error is results[0].error
        assert 100 < len(error.result.parts[0].content) < 10_000
        assert other is results[1]
    assert batch.results[0] is results[0]
    assert results[0].result.parts[0].content == ROWS
    assert broken_pairs([describe(event) for event in out]) == []


async def test_a_batch_that_stands_alone_is_shortened_and_keeps_its_files():
    calls, response = asked("a", "b")
    file = events.BinaryInput(b"\x89PNG", media_type="image/png")
    several = events.ToolResult(parts=[ROWS, file, "end"])
    batch = events.ToolResultsEvent(
        [events.ToolResultEvent(parent_id="a", name="rows", result=several), failed(calls[1], "short")]
    )
    out = await sent(ask("which gate?"), response, batch)
    first, second = out[2].results
    assert [type(part) for part in first.result.parts] == [events.TextInput, events.BinaryInput]
    assert first.result.parts[1] is file
    assert second is batch.results[1]
    assert list(describe(out[2]).closes) == ["a", "b"]
    assert describe(out[2]).media_tokens == MEDIA_TOKENS


@pytest.mark.parametrize(
    "event",
    [
        events.ModelRequest(None),
        events.ModelResponse(tool_calls=None),
        events.ToolResultsEvent([None]),
        events.ToolResultEvent(parent_id="a", name="f", result=None),
        events.ToolCallsEvent(None),
    ],
    ids=lambda event: type(event).__name__,
)
async def test_a_malformed_event_cannot_be_read(event):
    AssembledPolicy([])  # plug-ins read AG2's events; so does what is instrumented
    await sent(ask("hi"))
    with pytest.raises(DescribeError, match=r"\.events"):
        describe(event)
    with pytest.raises(DescribeError):
        await Assembler([]).assemble([], [ask("hi"), event])


async def test_half_an_emoji_and_unknown_parts_are_read():
    await sent(ask("hi"))

    class Hologram(events.Input):
        edges: int = 3

    cut = "half \ud83d"
    request = events.ModelRequest([events.TextInput(cut), Hologram(), events.DataInput({"a": cut})])
    facts = describe(request)
    assert (facts.text, list(facts.unknown)) == (cut, ["Hologram"])
    assembly = await Assembler([ConversationPolicy()]).assemble([cut], [request, answer(cut)])
    assert assembly.events == [request, assembly.events[1]]
    with pytest.raises(DescribeError, match="Hologram"):
        await Assembler([ConversationPolicy()], strict=True).assemble([], [request])
