"""Of a call that waits only the arguments can be changed; and asking without a question after a finished answer."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from spoken_agents import calls, said

from otel_assembly import Agent, MiddlewareBase, ModelResponse, Tool, ToolResultEvent
from otel_assembly.errors import ModelCallError, SessionError
from otel_assembly.events import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    ToolArgumentsChanged,
    ToolErrorEvent,
    UserConfirmResultEvent,
)
from otel_assembly.runtime import PermissionDecision
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import RecordedTelemetry, ScriptedModel


def confirm(*waiting, confirmed=True, **changes):
    results = (ConfirmResult(tool_call=call.model_copy(update=changes), confirmed=confirmed) for call in waiting)
    return UserConfirmResultEvent(confirm_results=tuple(results))


def bank(*answers, **settings):
    ran = []

    def pay(amount: int) -> str:
        ran.append(("pay", amount))
        return f"paid {amount}"

    def look(amount: int) -> str:
        ran.append(("look", amount))
        return "fine"

    tools = [
        Tool(pay, needs_approval=True),
        Tool(look, needs_approval=True),
        Tool(None, name="fetch", parameters={"type": "object"}),
        Tool(None, name="wire", parameters={"type": "object"}),
    ]
    return Agent("bank", "", ScriptedModel(*answers), tools, **settings), ran


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_confirmation_under_another_name_is_refused_and_the_call_waits(confirmed):
    agent, ran = bank(calls("look", arguments='{"amount": 1}'), "done")
    (call,) = (await agent.ask("Look.")).tool_calls
    before = list(agent.session.history)
    for name in ("pay", "", "none"):
        with pytest.raises(SessionError, match="call-0 is a call of tool 'look'"):
            await agent.ask(confirm(call, name=name, confirmed=confirmed))
    assert ran == []
    assert list(agent.session.pending) == ["call-0"]
    assert not [event for event in agent.session.history if event not in before and "confirm" in event.type]
    await agent.ask(confirm(call))
    assert ran == [("look", 1)]
    with pytest.raises(SessionError, match="no call is pending"):
        await agent.ask(confirm(call))
    assert ran == [("look", 1)]


async def test_changed_arguments_run_and_are_recorded():
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        agent, ran = bank(calls("pay", "pay", arguments='{"amount": 1}'), "done", middlewares=[TracingMiddleware()])
        first, second = (await agent.ask("Pay.")).tool_calls
        results = (
            ConfirmResult(tool_call=first.model_copy(update={"arguments": '{"amount": 2}'}), confirmed=True),
            ConfirmResult(tool_call=second, confirmed=True),
        )
        await agent.ask(UserConfirmResultEvent(confirm_results=results))
    assert sorted(ran) == [("pay", 1), ("pay", 2)]
    (change,) = (event for event in agent.session.history if isinstance(event, ToolArgumentsChanged))
    assert (change.parent_id, change.name, change.source) == ("call-0", "pay", "confirmation")
    assert (change.original, change.arguments) == ('{"amount": 1}', '{"amount": 2}')
    marked = {
        span.attributes["gen_ai.tool.call.id"]: span.attributes.get("assembly.tool.arguments_changed")
        for span in telemetry.spans_named("execute_tool pay")
    }
    assert marked == {"call-0": True, "call-1": None}
    assert telemetry.violations() == []
    telemetry.shutdown()


@pytest.mark.parametrize("arguments", ["{", "[]", "{}", '{"amount": "many"}', '{"amount": 1, "to": "me"}'])
async def test_malformed_changes_are_refused_and_the_call_waits(arguments):
    agent, ran = bank(calls("pay", arguments='{"amount": 1}'), "done")
    (call,) = (await agent.ask("Pay.")).tool_calls
    with pytest.raises(SessionError, match="still pending"):
        await agent.ask(confirm(call, arguments=arguments))
    assert list(agent.session.pending) == ["call-0"]
    await agent.ask(confirm(call))
    assert ran == [("pay", 1)]


async def test_what_is_wrong_with_one_of_several_confirmations_lets_none_run():
    agent, ran = bank(calls("look", "pay", arguments='{"amount": 1}'), "done")
    look, pay = (await agent.ask("Go.")).tool_calls
    for wrong in (
        UserConfirmResultEvent(confirm_results=()),
        confirm(look, look),
        confirm(look, pay.model_copy(update={"id": "other"})),
        confirm(look, pay.model_copy(update={"name": "look"})),
    ):
        with pytest.raises(SessionError):
            await agent.ask(wrong)
    assert ran == []
    assert list(agent.session.pending) == ["call-0", "call-1"]


async def test_a_call_that_somebody_else_runs_cannot_be_confirmed():
    agent, _ = bank(calls("fetch"), "done")
    (call,) = (await agent.ask("Fetch.")).tool_calls
    with pytest.raises(SessionError, match="ExternalExecutionResultEvent"):
        await agent.ask(confirm(call))
    await agent.ask(confirm(call, confirmed=False))
    assert "error fetch: not run: it was not confirmed" in said(agent.session)


async def test_a_call_that_a_permission_check_made_external_cannot_be_confirmed():
    class Elsewhere(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            return PermissionDecision("external") if input_kwargs["tool"].name == "pay" else await next_handler()

    agent, ran = bank(calls("pay", "look", arguments='{"amount": 1}'), "done", middlewares=[Elsewhere()])
    pay, look = (await agent.ask("Pay.")).tool_calls
    assert (pay.external, look.external) == (True, False)
    agent = agent.load_session(agent.session.save())
    for wrong in (confirm(pay), confirm(look, pay), confirm(pay, external=False), confirm(pay, arguments="{}")):
        with pytest.raises(SessionError, match="call call-0 of tool 'pay' runs outside the agent"):
            await agent.ask(wrong)
    assert ran == []
    assert list(agent.session.pending) == ["call-0", "call-1"]
    await agent.ask(confirm(look))
    assert ran == [("look", 1)]
    paid = ToolResultEvent(parent_id="call-0", name="pay", content="paid elsewhere")
    await agent.ask(ExternalExecutionResultEvent(execution_results=(paid,)))
    assert ran == [("look", 1)]
    assert "result pay: paid elsewhere" in said(agent.session)


async def test_an_external_call_stays_external_when_its_tool_has_a_function_later():
    agent, _ = bank(calls("fetch"), "done")
    (call,) = (await agent.ask("Fetch.")).tool_calls
    ran = []

    def fetch() -> str:
        ran.append(1)
        return "fetched"

    later = Agent("bank", "", ScriptedModel("done"), [fetch]).load_session(agent.session.save())
    with pytest.raises(SessionError, match="runs outside the agent"):
        await later.ask(confirm(call))
    assert ran == []


async def test_marks_that_a_model_client_put_on_a_call_do_not_count():
    ran = []

    async def look() -> str:
        ran.append(1)
        return "fine"

    made = calls("look")
    marked = [call.model_copy(update={"awaiting_approval": True, "external": True}) for call in made.tool_calls]
    agent = Agent("bank", "", ScriptedModel(made.model_copy(update={"tool_calls": tuple(marked)}), "done"), [look])
    assert (await agent.ask("Look.")).content == "done"
    assert ran == [1]
    assert not agent.session.pending


async def test_an_external_result_is_one_of_the_call_that_waits():
    agent, _ = bank(calls("fetch", "wire"), "done")
    await agent.ask("Go.")

    def results(*of):
        return ExternalExecutionResultEvent(execution_results=of)

    for wrong in (
        results(ToolResultEvent(parent_id="call-0", name="wire", content="x")),
        results(ToolErrorEvent(parent_id="call-0", name="wire", error="x")),
        results(ToolResultEvent(parent_id="call-7", name="fetch", content="x")),
        results(*[ToolResultEvent(parent_id="call-0", name="fetch", content="x")] * 2),
        results(),
    ):
        with pytest.raises(SessionError):
            await agent.ask(wrong)
    await agent.ask(
        results(
            ToolResultEvent(parent_id="call-0", content="first"),
            ToolResultEvent(parent_id="call-1", name="wire", content="second"),
        )
    )
    assert said(agent.session)[-3:] == ["result fetch: first", "result wire: second", "say done"]


async def test_a_permission_check_that_changes_arguments_is_recorded():
    class Cap(MiddlewareBase):
        async def on_check_permission(self, agent, input_kwargs, next_handler):
            return PermissionDecision("allow", updated_input={"amount": 5})

    agent, ran = bank(calls("pay", arguments='{"amount": 50}'), "done", middlewares=[Cap()])
    await agent.ask("Pay.")
    assert ran == [("pay", 5)]
    (change,) = (event for event in agent.session.history if isinstance(event, ToolArgumentsChanged))
    assert (change.original, change.arguments, change.source) == ('{"amount": 50}', '{"amount": 5}', "permission")


async def test_a_middleware_that_changes_arguments_is_recorded():
    class Other(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            call = input_kwargs["tool_call"].model_copy(update={"arguments": '{"amount": 5}'})
            async for event in next_handler(tool_call=call):
                yield event

    agent, ran = bank(calls("pay", arguments='{"amount": 50}'), "done", middlewares=[Other()])
    (call,) = (await agent.ask("Pay.")).tool_calls
    await agent.ask(confirm(call))
    assert ran == [("pay", 5)]
    (change,) = (event for event in agent.session.history if isinstance(event, ToolArgumentsChanged))
    assert change.source == "middleware"


# Asking without a question


class Forecast(BaseModel):
    degrees: int


async def test_there_is_nothing_to_go_on_with_after_a_finished_answer():
    agent, _ = bank("First.", "Second.")
    await agent.ask("Go.")
    for own in (agent, agent.load_session(agent.session.save())):
        with pytest.raises(SessionError, match="the last answer is finished"):
            await own.ask()
    assert len(agent.model.received) == 1
    assert (await agent.ask("And?")).content == "Second."


async def test_there_is_nothing_to_go_on_with_after_a_structured_answer():
    agent, _ = bank(calls("GenerateStructuredOutput", arguments='{"degrees": 7}'))
    await agent.ask("How warm?", structured_schema=Forecast)
    for schema in (None, Forecast):
        with pytest.raises(SessionError, match="the last answer is finished"):
            await agent.ask(structured_schema=schema)


async def test_an_ask_without_a_question_goes_on_where_there_is_something_left():
    agent, _ = bank(ModelCallError("down", provider="scripted", model="scripted"), "Up again.")
    with pytest.raises(ModelCallError):
        await agent.ask("Go.")
    assert (await agent.ask()).content == "Up again."
    agent, _ = bank(ModelResponse(content="Half an", finish_reason="length"), " answer.")
    assert (await agent.ask("Go.")).is_truncated
    assert (await agent.ask()).content == " answer."
    agent, _ = bank("7 degrees", calls("GenerateStructuredOutput", arguments='{"degrees": 7}'))
    await agent.ask("How warm?")
    assert (await agent.ask(structured_schema=Forecast)).structured_output == {"degrees": 7}
