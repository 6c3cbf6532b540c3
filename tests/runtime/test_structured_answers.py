"""An answer in the form that was asked for is checked; one that does not fit is an error that says where."""

from __future__ import annotations

import dataclasses
import json

import pytest
from providers import Answer, Provider, completion, function_call, message, message_pieces, tool_block
from pydantic import BaseModel, Field, field_validator
from spoken_agents import Watchdog, calls, said, transfer
from typing_extensions import TypedDict

from otel_assembly import (
    Agent,
    AnthropicModel,
    ConfigurationError,
    MiddlewareBase,
    ModelResponse,
    OpenAIModel,
    Tool,
    ToolCallEvent,
)
from otel_assembly.errors import StructuredOutputError
from otel_assembly.events import ConfirmResult, ToolErrorEvent, UserConfirmResultEvent
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import ScriptedModel


class Town(BaseModel):
    """A town."""

    name: str
    people: int = Field(ge=0)

    @field_validator("name")
    @classmethod
    def _is_known(cls, name):
        return {"Bonn": "Bonn", "Köln": "Köln"}[name]  # a KeyError is nothing that pydantic turns into its own


@dataclasses.dataclass
class Trip:
    towns: list[str]


class Tree(BaseModel):
    value: int
    below: list[Tree] = []


class Row(TypedDict):
    cell: str


TOOL = "GenerateStructuredOutput"
BONN = {"name": "Bonn", "people": 335_000}


def given(value, call_id="answer"):
    """A response that gives the answer."""
    return ModelResponse(tool_calls=(ToolCallEvent(id=call_id, name=TOOL, arguments=json.dumps(value)),))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Town, BONN),
        (Town, {"name": "Köln", "people": 1}),
        (Trip, {"towns": ["Bonn", "Köln"]}),
        (Tree, {"value": 1, "below": [{"value": 2, "below": []}]}),
        (Row, {"cell": "x"}),
    ],
)
async def test_the_answer_is_of_the_form_that_was_asked_for(schema, value):
    model = ScriptedModel(given(value))
    answer = await Agent("clerk", "", model).ask("Which?", structured_schema=schema)
    assert answer.structured_output == value
    assert json.loads(answer.content) == value
    ((definition,), choice) = model.received[0].tools, model.received[0].tool_choice
    assert (definition["function"]["name"], choice) == (TOOL, "required")
    assert definition["function"]["parameters"]["type"] == "object"


async def test_only_the_ask_that_wants_one_has_the_tool():
    model = ScriptedModel(given(BONN), "Bonn.")
    agent = Agent("clerk", "", model)
    await agent.ask("Which?", structured_schema=Town)
    answer = await agent.ask("Say it again.")
    assert (answer.content, answer.structured_output) == ("Bonn.", None)
    assert model.received[1].tools == ()
    assert said(agent.session) == [
        "ask Which?",
        f"call ['{TOOL}']",
        f"result {TOOL}: Accepted.",
        "ask Say it again.",
        "say Bonn.",
    ]


async def test_other_tools_run_before_it_and_beside_it():
    both = calls("transfer", arguments='{"amount": 5}')
    both = both.model_copy(update={"tool_calls": (*both.tool_calls, *given(BONN).tool_calls)})
    agent = Agent("bank", "", ScriptedModel(calls("transfer", arguments='{"amount": 4}'), both), [transfer])
    assert (await agent.ask("Go.", structured_schema=Town)).structured_output == BONN
    assert {"result transfer: sent 4", "result transfer: sent 5"} <= set(said(agent.session))


async def test_the_tools_schema_is_counted_with_the_prompt(recorder):
    agent = Agent("clerk", "", ScriptedModel("Hm.", given(BONN)))
    await agent.ask("Which?")
    await agent.open_session().ask("Which?", structured_schema=Town)
    plain, structured = recorder.spans_named("assemble_context")
    kinds = [
        dict(zip(*(span.attributes[f"assembly.kind.{of}"] for of in ("names", "tokens")), strict=True))
        for span in (plain, structured)
    ]
    assert "tool_schemas" not in kinds[0]
    assert kinds[1]["tool_schemas"] > 50


async def test_a_model_that_is_wrong_reads_where_and_gives_it_again():
    model = ScriptedModel(given({"name": "Bonn", "people": -1}), given({"name": "Rome", "people": 1}), given(BONN))
    agent = Agent("clerk", "", model)
    assert (await agent.ask("Which?", structured_schema=Town)).structured_output == BONN
    errors = [event.error for event in agent.session.history if isinstance(event, ToolErrorEvent)]
    assert "people: Input should be greater than or equal to 0" in errors[0]
    assert "KeyError" in errors[1]


async def test_a_text_that_is_the_answer_is_taken():
    agent = Agent("clerk", "", ScriptedModel(json.dumps(BONN)))
    answer = await agent.ask("Which?", structured_schema=Town)
    assert answer.structured_output == BONN
    assert said(agent.session)[-1] == f"say {json.dumps(BONN)}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("It is Bonn.", "the model wrote a text that does not fit: arguments: Invalid JSON"),
        ('{"name": "Bonn"}', "the model wrote a text that does not fit: people: Field required"),
        ('{"name": "Rome", "people": 1}', "the model wrote a text that does not fit: KeyError"),
    ],
)
async def test_a_text_that_does_not_fit_is_an_error_and_the_session_goes_on(text, problem):
    agent = Agent("clerk", "", ScriptedModel(text, given(BONN)))
    with pytest.raises(StructuredOutputError, match="does not match the schema 'Town'") as raised:
        await agent.ask("Which?", structured_schema=Town)
    assert raised.value.problem.startswith(problem)
    assert "Rome" not in str(raised.value)
    assert (await agent.ask("Again.", structured_schema=Town)).structured_output == BONN


async def test_a_model_that_never_gives_it_is_an_error_and_every_call_has_its_answer():
    wrong = given({"name": "Bonn", "people": "many"})
    both = wrong.model_copy(update={"tool_calls": (*wrong.tool_calls, ToolCallEvent(id="t", name="transfer"))})
    agent = Agent("clerk", "", ScriptedModel(wrong, both, given(BONN)), [transfer], max_rounds=2)
    with pytest.raises(StructuredOutputError, match="what the model gave does not fit: people: Input should be"):
        await agent.ask("Which?", structured_schema=Town)
    assert "error transfer: not run: the ask ended before it" in said(agent.session)
    assert len([line for line in said(agent.session) if line.startswith("error")]) == 3
    assert (await agent.ask("Again.", structured_schema=Town)).structured_output == BONN


async def test_one_call_of_the_model_is_enough():
    agent = Agent("clerk", "", ScriptedModel(given(BONN)), max_rounds=1)
    assert (await agent.ask("Which?", structured_schema=Town)).structured_output == BONN


async def test_a_middleware_may_ask_for_another_form():
    class Asks(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            assert input_kwargs["structured_schema"] is Town
            async for event in next_handler(structured_schema=Row):
                yield event

    agent = Agent("clerk", "", ScriptedModel(given({"cell": "x"})), middlewares=[Asks()])
    assert (await agent.ask("Which?", structured_schema=Town)).structured_output == {"cell": "x"}


async def test_a_halted_ask_gives_none():
    agent = Agent("clerk", "", ScriptedModel(given(BONN)), observers=[Watchdog("Accepted")])
    answer = await agent.ask("Which?", structured_schema=Town)
    assert (answer.content, answer.structured_output) == ("HALTED: FATAL: saw Accepted", None)


async def test_an_ask_that_waits_for_somebody_asks_for_the_form_again():
    model = ScriptedModel(calls("transfer", arguments='{"amount": 5}'), given(BONN))
    agent = Agent("bank", "", model, [Tool(transfer, needs_approval=True)])
    (waiting,) = (await agent.ask("Go.", structured_schema=Town)).tool_calls
    confirmed = UserConfirmResultEvent(confirm_results=(ConfirmResult(tool_call=waiting, confirmed=True),))
    assert (await agent.ask(confirmed, structured_schema=Town)).structured_output == BONN


async def test_the_tool_is_named_in_the_trace(recorder):
    await Agent("clerk", "", ScriptedModel(given(BONN)), middlewares=[TracingMiddleware()]).ask(
        "Which?", structured_schema=Town
    )
    assert recorder.span(f"execute_tool {TOOL}").status == "UNSET"


@pytest.mark.parametrize("schema", [int, list[int], {"type": "object"}, object()])
async def test_what_is_no_form_is_refused_before_anything_is_sent(schema):
    model = ScriptedModel("Never.")
    with pytest.raises(ConfigurationError, match="structured_schema"):
        await Agent("clerk", "", model).ask("Which?", structured_schema=schema)
    assert not model.received


async def test_a_tool_that_has_the_name_is_in_the_way():
    agent = Agent("clerk", "", ScriptedModel("Never."), [Tool(transfer, name=TOOL)])
    with pytest.raises(ConfigurationError, match=f"needs the name '{TOOL}'"):
        await agent.ask("Which?", structured_schema=Town)


# The real clients


async def test_openai_gives_it():
    pytest.importorskip("openai", reason="not installed: python -m pip install --group dev")
    call = function_call("call_1", json.dumps(BONN), name=TOOL)
    async with Provider(completion(None, [call])) as server:
        model = OpenAIModel("gpt-4o", base_url=f"{server.url}/v1", api_key="key", max_retries=0)
        answer = await Agent("clerk", "", model).ask("Which?", structured_schema=Town)
        await model.close()
    assert answer.structured_output == BONN
    assert server.requests[0]["tool_choice"] == "required"
    assert server.requests[0]["tools"][0]["function"]["parameters"]["required"] == ["name", "people"]


@pytest.mark.parametrize(
    ("thinking", "choice"),
    [(None, "any"), ({"type": "disabled"}, "any"), ({"type": "enabled", "budget_tokens": 1024}, "auto")],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_anthropic_gives_it_and_is_not_forced_while_it_thinks(thinking, choice, streams):
    pytest.importorskip("anthropic", reason="not installed: python -m pip install --group dev")
    whole = message({"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": BONN}, stop="tool_use")
    pieces = Answer(pieces=message_pieces(tool_block("toolu_1", json.dumps(BONN), name=TOOL)))
    options = {} if thinking is None else {"thinking": thinking}
    async with Provider(pieces if streams else whole) as server:
        model = AnthropicModel(
            "claude-sonnet-5", base_url=server.url, api_key="key", max_retries=0, streams=streams, **options
        )
        answer = await Agent("clerk", "", model).ask("Which?", structured_schema=Town)
        await model.close()
    assert answer.structured_output == BONN
    assert server.requests[0]["tool_choice"] == {"type": choice}
