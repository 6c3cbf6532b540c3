"""Why a model stopped: what was cut off is marked, and what it called does not run."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from spoken_agents import calls, said

from otel_assembly import Agent, ModelResponse, Tool
from otel_assembly.errors import StructuredOutputError
from otel_assembly.events import ToolErrorEvent, event_from_json, event_to_json
from otel_assembly.runtime import UnfinishedCalls
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel

CUT_OFF = ["length", "max_tokens", "content_filter", "refusal", "pause_turn", "error", "model_context_window_exceeded"]


class Forecast(BaseModel):
    city: str
    degrees: int


FORECAST = '{"city": "Bonn", "degrees": 7}'


def response(*names, finish, arguments="{}", content=""):
    made = calls(*names, arguments=arguments)
    return made.model_copy(
        update={"content": content, "finish_reason": ModelResponse(finish_reason=finish).finish_reason}
    )


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("stop", "stop"),
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_calls", "tool_call"),
        ("tool_use", "tool_call"),
        ("function_call", "tool_call"),
        ("max_tokens", "length"),
        ("max_output_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
        ("something_new", "something_new"),
        (None, None),
    ],
)
def test_a_reason_is_named_as_the_conventions_name_it(word, value):
    made = ModelResponse(content="x", finish_reason=word)
    assert made.finish_reason == value
    assert made.is_truncated == (value in {"length", "content_filter", "pause_turn"})
    assert event_from_json(event_to_json(made)) == made


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("finish", CUT_OFF)
async def test_a_call_that_was_cut_off_never_runs(finish, streams):
    ran = []

    async def delete(path: str = "/") -> str:
        ran.append(path)
        return "deleted"

    def approve() -> str:
        return "approved"

    model = ScriptedModel(response("delete", "approve", finish=finish, content="I will"), "Sorry.", streams=streams)
    agent = Agent("helper", "", model, [delete, Tool(approve, needs_approval=True)])
    answer = await agent.ask("Delete it.")
    assert answer.content == "Sorry."
    assert not answer.is_truncated
    assert ran == []
    assert not agent.session.pending
    errors = [event for event in agent.session.history if isinstance(event, ToolErrorEvent)]
    assert [(error.parent_id, error.name) for error in errors] == [("call-0", "delete"), ("call-1", "approve")]
    assert all(error.error.startswith("not run: the ") or "interrupted" in error.error for error in errors)
    loaded = agent.load_session(agent.session.save())
    assert said(loaded.session) == said(agent.session)
    assert not loaded.session.pending


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "end_turn", "something_new", None])
async def test_a_call_of_a_whole_response_runs(finish):
    async def look() -> str:
        return "fine"

    agent = Agent("helper", "", ScriptedModel(response("look", finish=finish), "done"), [look])
    await agent.ask("Look.")
    assert "result look: fine" in said(agent.session)


async def test_a_successor_does_not_run_a_call_that_was_cut_off():
    ran = []

    async def look() -> str:
        ran.append(1)
        return "fine"

    cut_off = response("look", finish="length")
    agent = Agent("helper", "", ScriptedModel("done"), [Tool(look, idempotent=True)])
    agent.session.history.append(cut_off)
    await agent.ask(UnfinishedCalls(cut_off.tool_calls))
    assert ran == []
    assert any("cut off at its token limit" in line for line in said(agent.session))


@pytest.mark.parametrize("finish", CUT_OFF)
@pytest.mark.parametrize(
    "answer", [ModelResponse(content=FORECAST), calls("GenerateStructuredOutput", arguments=FORECAST)]
)
async def test_a_structured_answer_that_was_cut_off_raises(finish, answer):
    cut_off = ModelResponse(content=answer.content, tool_calls=answer.tool_calls, finish_reason=finish)
    agent = Agent("helper", "", ScriptedModel(cut_off, "Next."))
    with pytest.raises(StructuredOutputError, match="was cut off"):
        await agent.ask("How warm?", structured_schema=Forecast)
    assert (await agent.ask("Never mind.")).content == "Next."
    results = [event for event in agent.session.history if isinstance(event, ToolErrorEvent)]
    assert len(results) == len(answer.tool_calls)


async def test_another_call_that_was_cut_off_does_not_end_a_structured_ask():
    async def look() -> str:
        return "fine"

    model = ScriptedModel(response("look", finish="length"), calls("GenerateStructuredOutput", arguments=FORECAST))
    answer = await Agent("helper", "", model, [look]).ask("How warm?", structured_schema=Forecast)
    assert answer.structured_output == {"city": "Bonn", "degrees": 7}


@pytest.mark.parametrize("streams", [False, True])
async def test_spans_have_the_reason(streams):
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        model = ScriptedModel(ModelResponse(content="half an ans", finish_reason="max_tokens"), streams=streams)
        answer = await Agent("helper", "", model, middlewares=[TracingMiddleware()]).ask("Tell me.")
    assert answer.is_truncated
    for span in ("chat scripted", "invoke_agent helper"):
        assert list(telemetry.span(span).attributes["gen_ai.response.finish_reasons"]) == ["length"]
    telemetry.shutdown()


# Answers in Markdown


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{FORECAST}\n```",
        f"```\n{FORECAST}\n```",
        f"~~~json\n{FORECAST}\n~~~",
        f"Here it is:\n\n```json\n{FORECAST}\n```\n\nAnything else?",
        f"```python\nprint()\n```\nand\n  ```JSON\n{FORECAST}\n  ```",
        f"```json\r\n{FORECAST}\r\n```",
        f"```json\n{FORECAST}",
    ],
)
async def test_a_structured_answer_may_stand_in_a_fence(text):
    answer = await Agent("helper", "", ScriptedModel(text)).ask("How warm?", structured_schema=Forecast)
    assert answer.structured_output == {"city": "Bonn", "degrees": 7}


async def test_a_fence_within_a_value_ends_nothing():
    class Code(BaseModel):
        code: str

    text = '```json\n{"code": "```py\\nprint()\\n```"}\n```'
    answer = await Agent("helper", "", ScriptedModel(text)).ask("Write.", structured_schema=Code)
    assert answer.structured_output == {"code": "```py\nprint()\n```"}


async def test_a_fence_without_the_answer_is_none():
    with pytest.raises(StructuredOutputError):
        await Agent("helper", "", ScriptedModel("```json\n{}\n```")).ask("How warm?", structured_schema=Forecast)
