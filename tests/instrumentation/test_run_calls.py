"""The calls of a run: what prepares one, how one follows another, and what middleware hands on to a client."""

from __future__ import annotations

import gc
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pretend_instrumentor import reading

from otel_assembly.decision import DecisionOutcome, DecisionReason
from otel_assembly.instrumentation import (
    CallsFromSharedStart,
    ClientRequest,
    ContextBoundRun,
    Instrumentation,
    InvokingAgent,
    MiddlewareInput,
    ModelCall,
    Preparing,
    PromptsInFront,
    SequentialCalls,
    StepReport,
    SubclassHook,
    client,
    current_model_call,
    innermost_client_hook,
    left_for,
    limit_of,
    policy_name,
    reducer,
    run_argument_hook,
    run_hook,
    settings_of,
)

HISTORY = [{"role": "user", "content": str(number)} for number in range(4)]
AGENT: ContextVar[str | None] = ContextVar("agent", default=None)


@pytest.fixture
def instrumentation(assembly_telemetry):
    return Instrumentation("pretend")


def call_of(instrumentation: Instrumentation, messages: Any = None) -> ModelCall:
    return ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=messages)


window = reading(lambda messages: messages, lambda result, _: result, "window")


def preparing(instrumentation, call, **options):
    """A function that prepares a call, in which a window keeps the newest two."""
    reduced = reducer(window)(lambda messages: messages[-2:], instrumentation)

    def prepare(error=None):
        assert current_model_call() is call
        if call is not None:
            reduced(HISTORY)
        if error is not None:
            raise error
        return "prepared"

    return run_hook(lambda _, *__: Preparing(instrumentation, call, {AGENT: "clerk"}, **options))(
        prepare, instrumentation
    )


def test_what_prepares_a_call_leaves_it_to_be_made(instrumentation, assembly_telemetry):
    call, returned = call_of(instrumentation), []
    assert preparing(instrumentation, call, returned=returned.append)() == "prepared"
    assert returned == ["prepared"]
    assert not call.ended
    call.client_called(ClientRequest(HISTORY[-2:]))
    assert assembly_telemetry.span("assemble_context").attributes["assembly.events.in"] == 4


@pytest.mark.parametrize(("error", "told"), [(LookupError(), "LookupError"), (KeyError(), None)])
def test_where_it_raises_no_model_is_called(instrumentation, assembly_telemetry, error, told):
    with pytest.raises(type(error)):
        preparing(instrumentation, call_of(instrumentation), expected_errors=(KeyError,))(error)
    assert assembly_telemetry.span("assemble_context").attributes.get("error.type") == told


def test_what_prepares_nothing_is_for_no_call_around_it_either(instrumentation):
    with call_of(instrumentation).current():
        assert preparing(instrumentation, None)() == "prepared"


class Handle:
    """What a framework hands from where a call is prepared to where it is made."""


def test_of_calls_in_turn_the_next_ends_the_one_before(instrumentation, assembly_telemetry):
    calls, handles, made = SequentialCalls(), [Handle(), Handle()], []

    def begun():
        made.append(call_of(instrumentation, HISTORY))
        made[-1].reduced(StepReport("window", HISTORY, HISTORY[-2:]))
        return made[-1]

    def prepare(inner=None):
        if inner is not None:
            inner()

    def preparing(handle):
        return run_hook(lambda told, *_: calls.preparing(told, handle, begun))(prepare, instrumentation)

    run = calls.run(instrumentation, "clerk", "c-1")
    with run.current():
        preparing(handles[0])(preparing(Handle()))  # what is inside of it is a part of it
        assert len(made) == 1
        preparing(handles[1])()
    assert [calls.of(handle) for handle in handles] == made
    assert calls.of(None) is None
    assert [call.ended for call in made] == [True, False]
    run.end()
    assert made[1].ended
    assert len(assembly_telemetry.spans_named("assemble_context")) == 2


def test_outside_of_a_run_a_nested_function_prepares_the_same_call(instrumentation):
    calls, handle, made = SequentialCalls(), Handle(), []

    def create():
        made.append(call_of(instrumentation, HISTORY))
        return made[-1]

    hook = run_hook(lambda instrumentation, *_: calls.preparing(instrumentation, handle, create))
    inner = hook(lambda: current_model_call(), instrumentation)
    assert hook(lambda: (current_model_call(), inner()), instrumentation)() == (made[0], made[0])
    assert made == [calls.of(handle)]


def test_of_calls_in_turn_a_plug_in_tells_the_last_one_itself(instrumentation, assembly_telemetry):
    calls = SequentialCalls()
    calls.replaced_by_plugin(lambda: HISTORY)
    run = calls.run(instrumentation, "clerk")
    with (
        run.current(),
        calls.preparing(instrumentation, handle := Handle(), lambda: call_of(instrumentation)).current(),
    ):
        calls.replaced_by_plugin(lambda: HISTORY[-2:])
        calls.replaced_by_plugin(lambda: ClientRequest(HISTORY[-2:], ["You help."]))
        assert calls.of(handle).prompts_out == ["You help."]
    calls.of(handle).client_called(ClientRequest(HISTORY[-2:], ["You help."]))
    run.end()
    assert assembly_telemetry.spans_named("assemble_context") == []


def test_prompts_that_what_ran_inside_has_told_are_not_told_again(instrumentation, assembly_telemetry):
    prompts = [["You help."]]

    def inner(messages):
        prompts.append(["You help, briefly."])
        return messages[-2:]

    def observe(policy, _, messages):
        report = StepReport(policy, messages, prompts_before=prompts[-1])
        after = yield report
        return replace(report, after=after, prompts=prompts[-1])

    inside = reducer(partial(observe, "inner"))(inner, instrumentation)
    outer = reducer(partial(observe, "outer"))(lambda messages: inside(messages), instrumentation)
    call = ModelCall(instrumentation, messages=HISTORY, prompts=prompts[0])
    with call.current():
        outer(HISTORY)
    call.client_called(ClientRequest(HISTORY[-2:], prompts[-1]))
    (told,) = assembly_telemetry.spans_named("assemble_context")
    assert [step.attributes["assembly.policy.name"] for step in told.children] == ["inner"]


@pytest.mark.parametrize(
    "invoking_agent", [InvokingAgent("talk", "clerk", "clerk"), InvokingAgent(None, "clerk", "clerk")]
)
def test_of_calls_of_one_start_each_tells_what_was_done_once(instrumentation, assembly_telemetry, invoking_agent):
    calls = CallsFromSharedStart("pretend")

    def load():
        current_model_call().reduced(StepReport("window", HISTORY, HISTORY[-2:]))
        return Handle()

    handle = run_hook(lambda told: calls.preparing(told, invoking_agent, lambda made: made))(load, instrumentation)()
    answered = [*HISTORY[-2:], {"role": "assistant", "content": "Noted."}]
    run = calls.run(instrumentation, handle, InvokingAgent())
    with run.current():
        assert calls.invoking_agent.agent_name == "clerk"
        for messages in (HISTORY[-2:], answered):
            call = calls.next_call(messages)
            call.set_input(messages)
            call.client_called(ClientRequest(messages))
        assert calls.next_call([{"role": "user", "content": "another's"}]) is None
    run.end()
    assert calls.next_call(HISTORY) is calls.invoking_agent is None
    told = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.events.in"] for span in told] == [4, 5]
    assert [span.attributes["assembly.turn"] for span in told] == [0, 1]
    assert [span.children[0].attributes["assembly.policy.name"] for span in told] == ["window", "window"]


def test_the_reductions_of_a_run_that_never_calls_its_model_are_recorded(instrumentation, assembly_telemetry):
    calls, invoking_agent = CallsFromSharedStart("pretend"), InvokingAgent("talk", "clerk", "clerk")

    def load():
        reducer(window)(lambda messages: messages[-2:], instrumentation)(HISTORY)
        return Handle()

    handle = run_hook(lambda told: calls.preparing(told, invoking_agent, lambda made: made))(load, instrumentation)()
    assert assembly_telemetry.spans == []
    del handle
    gc.collect()
    assert assembly_telemetry.span("apply_policy window").parent.name == "assemble_context"


def test_a_run_that_was_not_prepared_begins_as_it_calls_its_model(instrumentation):
    calls = CallsFromSharedStart("pretend")
    with calls.run(instrumentation, Handle(), InvokingAgent("talk", "clerk", "clerk")).current():
        assert calls.next_call(HISTORY).invoking_agent.agent_name == "clerk"


@pytest.mark.parametrize(
    ("record_forwarded", "kind"), [(HISTORY[1:], "reduction"), ([*HISTORY, HISTORY[0]], "injection")]
)
def test_what_middleware_edits_is_a_step(instrumentation, assembly_telemetry, record_forwarded, kind):
    call = call_of(instrumentation)
    MiddlewareInput(None, HISTORY, ["Be brief."]).record_forwarded(call, record_forwarded, ["Be brief."], "middleware")
    call.client_called(ClientRequest(record_forwarded))
    step = assembly_telemetry.span("apply_policy middleware")
    assert step.attributes["assembly.policy.kind"] == kind


def test_behind_a_plug_in_only_what_comes_after_it_is_told(instrumentation, assembly_telemetry):
    call = call_of(instrumentation)
    handed = MiddlewareInput(None, HISTORY, ["Be brief."], (HISTORY[1:], HISTORY[2:], ["Be brief."]))
    handed.record_forwarded(call, HISTORY[2:], ["Be brief."], "middleware")
    call.client_called(ClientRequest(HISTORY[2:]))
    (told,) = assembly_telemetry.spans_named("assemble_context")
    assert (told.attributes["assembly.events.in"], told.attributes["assembly.events.out"]) == (4, 3)


async def test_a_run_that_is_given_as_an_argument_begins_where_it_is_called(instrumentation, assembly_telemetry):
    async def observe_hook(name, *, handler):
        assert AGENT.get() is None
        return await handler()

    async def run():
        return AGENT.get()

    wrapped = run_argument_hook(lambda told, name, **_: ContextBoundRun(told, name, {AGENT: name}), "handler")
    assert await wrapped(observe_hook, instrumentation)("clerk", handler=run) == "clerk"
    assert assembly_telemetry.span("invoke_agent clerk")


def test_a_client_is_called_for_the_call_that_was_prepared_for_it(instrumentation, assembly_telemetry):
    call = call_of(instrumentation, HISTORY)
    answers = client(lambda messages: ClientRequest(messages), prepared=lambda _, messages: call)
    assert answers(lambda messages: current_model_call(), instrumentation)(HISTORY[-1:]) is call
    told = assembly_telemetry.span("assemble_context")
    assert (told.attributes["assembly.events.in"], told.attributes["assembly.events.out"]) == (4, 1)


async def test_a_stream_is_read_for_the_call_that_was_prepared_for_it(instrumentation, assembly_telemetry):
    async def stream(messages):
        yield current_model_call()
        yield current_model_call()

    call = call_of(instrumentation, HISTORY)
    streams = client(lambda messages: ClientRequest(messages), prepared=lambda _, messages: call)(
        stream, instrumentation
    )
    assert [item async for item in streams(HISTORY[-1:])] == [call, call]
    told = assembly_telemetry.span("assemble_context")
    assert (told.attributes["assembly.events.in"], told.attributes["assembly.events.out"]) == (4, 1)


def test_what_reduces_may_be_found_among_the_arguments(instrumentation, assembly_telemetry):
    class Newest:
        keep = 2

    def observe(_, messages, strategy=None):
        if strategy is None:
            return None
        report = StepReport(type(strategy).__name__, messages, config={"keep": strategy.keep}, budget=strategy.keep)
        return replace(report, after=(yield report))

    apply = reducer(observe)(lambda messages, strategy=None: messages[-2:], instrumentation)
    call = call_of(instrumentation)
    with call.current():
        assert apply(HISTORY, strategy=Newest()) == HISTORY[-2:]
        assert apply(HISTORY[-2:]) == HISTORY[-2:]
    call.client_called(ClientRequest(HISTORY[-2:]))
    step = assembly_telemetry.span("apply_policy Newest")
    assert step.attributes["assembly.policy.config"] == '{"keep":2}'
    assert step.parent.attributes["assembly.budget.limit"] == 2


def test_classes_that_only_ask_others_are_left_as_they_are(instrumentation):
    class Base:
        def reduce(self):
            return "base"

    class Both(Base):
        def reduce(self):
            return "both"

    following = SubclassHook(
        "reduce", lambda original, owner, _: lambda self: owner.__name__, lambda cls: cls.__name__ == "Base"
    )
    following.wrap_subclasses(Base, instrumentation)
    assert (Base().reduce(), Both().reduce()) == ("base", "Both")
    instrumentation.patches.restore()
    following.stop_watching()
    assert Both().reduce() == "both"


def noting(function):
    """A decorator that says nothing of what it has wrapped, but that it has."""

    def noted(*args):
        return function(*args)

    function.__wrapped__ = True
    return noted


@pytest.mark.parametrize("decorated", [lambda function: function, noting])
def test_of_clients_that_hand_on_the_innermost_is_told(decorated, instrumentation, assembly_telemetry):
    class Behind:
        def ask(self, messages):
            return "asked"

    class HandsOn(Behind):
        @decorated
        def ask(self, messages):
            def later():
                return super(HandsOn, self).ask(messages[-1:])

            return later()

    following = SubclassHook("ask", innermost_client_hook("ask", lambda self, messages: ClientRequest(messages)))
    following.wrap_subclasses(Behind, instrumentation)
    assert HandsOn().ask(HISTORY) == "asked"
    assert assembly_telemetry.span("assemble_context").attributes["assembly.events.out"] == 1
    instrumentation.patches.restore()
    following.stop_watching()


def test_a_method_that_replaces_the_inherited_one_is_recorded_whatever_else_its_class_calls_by_super(
    instrumentation, assembly_telemetry
):
    class Client:
        def __init__(self):
            self.history = []

        def ask(self, messages):
            return "asked"

    class Remembering(Client):
        def __init__(self):
            super().__init__()
            self.send = self.ask

        def ask(self, messages):
            return "remembered"

    hook = SubclassHook("ask", innermost_client_hook("ask", lambda self, messages: ClientRequest(messages)))
    hook.wrap_subclasses(Client, instrumentation)
    assert Remembering().ask(HISTORY) == "remembered"
    assert len(assembly_telemetry.spans_named("assemble_context")) == 1
    instrumentation.patches.restore()
    hook.stop_watching()


def test_only_the_functions_that_a_method_names_decide_whether_it_passes_its_request_on(
    instrumentation, assembly_telemetry
):
    class Client:
        def ask(self, messages):
            return "asked"

    class Batching(Client):
        def ask(self, messages):
            return "own"

        def ask_inherited(self, messages):
            return super().ask(messages[-1:])

    class Shortening(Batching):
        def ask(self, messages):
            return self._ask_shortened(messages)

        def _ask_shortened(self, messages):
            return super().ask(messages[-2:])

    hook = SubclassHook("ask", innermost_client_hook("ask", lambda self, messages: ClientRequest(messages)))
    hook.wrap_subclasses(Client, instrumentation)
    assert [Batching().ask(HISTORY), Batching().ask_inherited(HISTORY), Shortening().ask(HISTORY)] == [
        "own",
        "asked",
        "own",
    ]
    spans = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["assembly.events.out"] for span in spans] == [4, 1, 2]
    instrumentation.patches.restore()
    hook.stop_watching()


def test_the_innermost_client_is_called_for_the_call_that_was_prepared_for_it(instrumentation, assembly_telemetry):
    class Behind:
        def ask(self, messages):
            return current_model_call()

    class HandsOn(Behind):
        def ask(self, messages):
            return super().ask(messages)

    call = call_of(instrumentation, HISTORY)
    reads = innermost_client_hook(
        "ask", lambda self, messages: ClientRequest(messages), prepared=lambda _, self, messages: call
    )
    following = SubclassHook("ask", reads)
    following.wrap_subclasses(Behind, instrumentation)
    assert HandsOn().ask(HISTORY[-1:]) is call
    told = assembly_telemetry.span("assemble_context")
    assert (told.attributes["assembly.events.in"], told.attributes["assembly.events.out"]) == (4, 1)
    instrumentation.patches.restore()
    following.stop_watching()


async def test_clients_that_ask_others_are_looked_through_and_what_was_prepared_for_them_is_theirs(
    instrumentation, assembly_telemetry
):
    class Client:
        async def ask(self, messages):
            yield "asked"

    class Fallback(Client):
        def __init__(self, *clients):
            self.clients = clients

        async def ask(self, messages):
            for behind in self.clients:
                async for item in behind.ask(messages[-1:]):
                    yield item

    def prepared(instrumentation, client, messages):
        return call_of(instrumentation, messages) if current_model_call() is None else None

    wrap = innermost_client_hook(
        "ask", lambda self, messages: ClientRequest(messages), prepared=prepared, delegated_methods=("ask",)
    )
    following = SubclassHook("ask", wrap)
    following.wrap_subclasses(Client, instrumentation)
    assert [item async for item in Fallback(Client(), Client()).ask(HISTORY)] == ["asked"] * 2
    instrumentation.patches.restore()
    following.stop_watching()
    told = assembly_telemetry.spans_named("assemble_context")
    assert [span.attributes["gen_ai.agent.name"] for span in told] == ["clerk"] * 2
    assert [span.attributes["assembly.events.in"] for span in told] == [len(HISTORY)] * 2
    assert [span.attributes["assembly.events.out"] for span in told] == [1, 1]
    assert [[child.name for child in span.children] for span in told] == [["apply_policy framework"]] * 2


def test_the_prompts_in_front_are_parts_of_messages():
    class Message:
        def __init__(self, *parts):
            self.parts = list(parts)

    front = PromptsInFront(Message, "parts", lambda part: part[1:] if part.startswith("!") else None)
    prompts, held = front.split([Message("!one"), Message("!two", "hello"), Message("!late")])
    assert prompts == ["one", "two"]
    assert [message.parts for message in held] == [["hello"], ["!late"]]
    asked = Message("!one", "hello")
    assert front.split([asked])[1][0] is front.split([asked])[1][0]
    assert front.split([Message("!one")]) == (["one"], [])


def test_what_is_known_of_a_framework_s_own_reducers():
    class TwoWordsStrategy:
        pass

    TwoWordsStrategy.__module__ = "clerks.window"
    own, packages = TwoWordsStrategy(), ("clerks",)
    own.keep, own.name, own._size, own.id = 2, "private", 3, 4
    assert policy_name(own, packages, "Strategy") == "two_words"
    assert policy_name(own, packages, names={"TwoWordsStrategy": "few"}) == "few"
    assert policy_name(own, (), "Strategy") == "TwoWordsStrategy"
    assert policy_name(test_what_is_known_of_a_framework_s_own_reducers, packages).startswith("test_what")
    assert settings_of(own, {"id"}) == {"keep": 2}
    assert (limit_of(own, "name", "keep"), limit_of(own, "name")) == (2, None)


def test_why_each_message_left():
    why = {"0": DecisionReason.OVER_BUDGET, "1": DecisionReason.COMPACTED}
    verdicts = left_for(HISTORY, HISTORY[3:], lambda message: why.get(message["content"]))
    assert [list(verdict.events) for verdict in verdicts] == [HISTORY[:1], HISTORY[1:2]]
    assert [verdict.outcome for verdict in verdicts] == [DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED]


def test_an_agent_in_a_session_is_known_by_its_name_and_without_one_by_its_id():
    assert InvokingAgent.of("s1", "clerk", "a1") == InvokingAgent("s1", "clerk", "clerk", "s1")
    assert InvokingAgent.of("s1", None, "a1") == InvokingAgent("s1", "a1", None, "s1")
    assert InvokingAgent.of("s1") == InvokingAgent("s1", "", None, "s1")
