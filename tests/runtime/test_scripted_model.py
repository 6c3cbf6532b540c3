"""The model of our users' tests, and what every model client has."""

from __future__ import annotations

import pytest

from otel_assembly import AssemblyError, ConfigurationError, ModelRequest, ModelResponse, ToolCallEvent
from otel_assembly.errors import ModelCallError, ModelContextLengthError, error_type
from otel_assembly.events import ResponseChunk
from otel_assembly.runtime import ModelClient
from otel_assembly.testing import ReceivedCall, ScriptedModel

ASK = ModelRequest(content="Where is my bag?")
TOOL = {"type": "function", "function": {"name": "search", "description": "", "parameters": {"type": "object"}}}


async def told(answer):
    return [event async for event in answer]


async def test_answers_come_in_their_order_and_what_was_sent_is_remembered():
    whole = ModelResponse(tool_calls=(ToolCallEvent(id="a", name="search"),))
    model = ScriptedModel("At gate 14.", whole, model="gpt-4o")
    assert (await model(["Be brief."], [ASK])).content == "At gate 14."
    assert await model([], [ASK], tools=[TOOL], tool_choice="search") is whole
    assert model.model == "gpt-4o"
    assert model.received == [
        ReceivedCall(("Be brief.",), (ASK,)),
        ReceivedCall((), (ASK,), (TOOL,), "search"),
    ]


async def test_what_was_sent_stays_as_it_was_sent():
    model, events = ScriptedModel("yes"), [ASK]
    await model([], events)
    events.clear()
    assert model.received[0].events == (ASK,)


async def test_it_is_a_model_client():
    assert isinstance(ScriptedModel(), ModelClient)
    assert not isinstance("gpt-4o", ModelClient)


async def test_an_exception_is_raised_and_a_function_is_asked():
    async def late(prompts, events):
        return f"{len(prompts)} and {len(events)}"

    model = ScriptedModel(ValueError("no"), TimeoutError, lambda prompts, events: events[-1].content.upper(), late)
    with pytest.raises(ValueError, match="no"):
        await model([], [ASK])
    with pytest.raises(TimeoutError):
        await model([], [ASK])
    assert (await model([], [ASK])).content == "WHERE IS MY BAG?"
    assert (await model(["a"], [ASK])).content == "1 and 1"


async def test_a_function_may_give_an_exception():
    with pytest.raises(TimeoutError):
        await ScriptedModel(lambda prompts, events: TimeoutError())([], [])


@pytest.mark.parametrize("text", ["", "one", "It is at  gate 14. ", " a\nb"])
async def test_a_streamed_text_comes_in_pieces_and_then_whole(text):
    *pieces, whole = await told(await ScriptedModel(text, streams=True)([], [ASK]))
    assert "".join(piece.content for piece in pieces) == whole.content == text
    assert all(isinstance(piece, ResponseChunk) for piece in pieces)


async def test_a_list_is_streamed_and_an_exception_cuts_it():
    model = ScriptedModel(["It is ", "there"], ["It is ", ConnectionError("cut")])
    assert [event.content for event in await told(await model([], []))] == ["It is ", "there", "It is there"]
    cut = await model([], [])
    assert (await anext(cut)).content == "It is "
    with pytest.raises(ConnectionError):
        await anext(cut)


async def test_a_script_that_is_at_its_end_says_so():
    model = ScriptedModel("once")
    await model([], [])
    with pytest.raises(ConfigurationError, match="called 2 times and has 1 answers"):
        await model([], [])
    with pytest.raises(ConfigurationError, match="answer 0 of ScriptedModel is of type int"):
        await ScriptedModel(7)([], [])


def test_errors_of_a_call_say_who_and_what_and_quote_nothing():
    error = ModelCallError("too many requests", provider="openai", model="gpt-4o", status=429, retryable=True)
    assert str(error) == "openai did not answer for model 'gpt-4o' (HTTP 429): too many requests"
    assert isinstance(error, AssemblyError)
    assert error.retryable


def test_a_prompt_that_the_provider_finds_too_long_is_an_overflow():
    error = ModelContextLengthError(provider="openai", model="gpt-4", status=400, window=8192, tokens=9001)
    assert isinstance(error, ModelCallError)
    assert (error.window, error.tokens, error.retryable) == (8192, 9001, False)
    assert "the prompt of 9,001 tokens is too long for the model's window of 8,192" in str(error)
    assert "the prompt is too long for the model's window;" in str(ModelContextLengthError(provider="x", model="y"))
    assert error_type(error) == "context_overflow"
    assert error_type(ModelCallError("x", provider="p", model="m")) == "otel_assembly.errors.ModelCallError"


@pytest.mark.parametrize("piece", [5, ModelResponse(content="whole")])
async def test_a_piece_that_is_none_is_refused_by_its_answer(piece):
    with pytest.raises(ConfigurationError, match="answer 0 of ScriptedModel has a piece of type"):
        await ScriptedModel(["a", piece])([], [])
