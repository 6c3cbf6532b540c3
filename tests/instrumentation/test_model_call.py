"""The shared middle of the instrumentors, on a small framework whose client notes what it receives."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from contextlib import contextmanager
from typing import ClassVar

import pytest
from recount import prompt_tokens

from otel_assembly import DecisionOutcome, DecisionReason, Verdict, instrument, uninstrument
from otel_assembly.instrumentation import (
    FRAMEWORKS,
    Asker,
    AssemblyInstrumentor,
    Following,
    Hook,
    Instrumentation,
    ModelCall,
    Reducer,
    Reduction,
    Sent,
    around,
    client,
    current_model_call,
    reducer,
    within,
)

SOURCE = '''
import copy
from contextlib import asynccontextmanager


class Client:
    """Notes what it receives."""

    def __init__(self, answers=("fine",)):
        self.received, self.answers = [], list(answers)

    def call(self, messages):
        self.received.append(copy.deepcopy(list(messages)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def acall(self, messages):
        return self.call(messages)

    async def astream(self, messages):
        for word in self.call(messages).split():
            yield word

    @asynccontextmanager
    async def entered(self, messages):
        yield self.call(messages)


class Cache:
    def __init__(self, inner):
        self.inner = inner

    def call(self, messages):
        return self.inner.call(messages)


class Delegate(Client):
    """A model whose answers another agent gives."""

    def __init__(self, agent):
        super().__init__()
        self.agent = agent

    def call(self, messages):
        super().call(messages)
        return self.agent.ask("What do you say?")


class Limits:
    """Stands around the next one, which it gives the newest messages."""

    def __init__(self, inner):
        self.inner = inner

    def call(self, messages):
        return self.inner.call(messages[-2:])


class Retries:
    def __init__(self, inner):
        self.inner = inner

    def call(self, messages):
        try:
            return self.inner.call(messages)
        except ValueError:
            return self.inner.call(messages)


class Window:
    size = 3

    def reduce(self, messages):
        return messages[-self.size:]

    async def areduce(self, messages):
        return copy.deepcopy(messages[-self.size:])

    def shrink(self, messages):
        del messages[:-self.size]


class Plugin:
    """Of ours: it tells of what it lets out by itself."""

    def reduce(self, messages):
        return messages[-2:]


class Summary:
    def __init__(self, client):
        self.client = client

    def reduce(self, messages):
        return [{"role": "user", "content": self.client.call(messages[:-2])}, *messages[-2:]]


class Around:
    """Asks another one, and has nothing to add."""

    def __init__(self, inner):
        self.inner = inner

    def reduce(self, messages):
        return self.inner.reduce(messages)


class Agent:
    name, instructions, tools = "clerk", "You help.", []

    def __init__(self, client, reducers=(), attempts=1, tidies=False):
        self.client, self.reducers, self.attempts, self.tidies = client, reducers, attempts, tidies
        self.history = []

    def prepare(self, messages):
        for one in self.reducers:
            messages = one.reduce(messages)
        return [{"role": "system", "content": self.instructions}, *messages]

    def ask(self, text):
        self.history.append({"role": "user", "content": text})
        answer = self.turn()
        self.history.append({"role": "assistant", "content": answer})
        if self.tidies:
            Window().shrink(self.history)
        return answer

    def turn(self):
        messages = self.prepare(self.history)
        for attempt in range(self.attempts):
            try:
                return self.client.call(messages)
            except ValueError:
                if attempt + 1 == self.attempts:
                    raise

    async def aturn(self, text):
        self.history.append({"role": "user", "content": text})
        messages = self.history
        for one in self.reducers:
            messages = await one.areduce(messages)
        return await self.client.acall(messages)

    async def enter(self, text):
        self.history.append({"role": "user", "content": text})
        async with self.client.entered(self.history) as answer:
            return answer

    async def stream(self, text):
        self.history.append({"role": "user", "content": text})
        async for word in self.client.astream(self.history):
            yield word
'''


def split(messages):
    """The system prompts, and what follows them."""
    start = next((at for at, one in enumerate(messages) if one["role"] != "system"), len(messages))
    return [one["content"] for one in messages[:start]], messages[start:]


def sent(_, messages):
    prompts, rest = split(messages)
    return Sent(rest, prompts=prompts or None, model="gpt-4o")


def call_of(instrumentation, agent, *_):
    return ModelCall(instrumentation, Asker(agent, "clerk", "clerk"))


def taken_in(_, messages):
    return messages


def plugged(_, plugin, messages):
    current_model_call().by_plugin((yield))


_window = {"policy": "window", "config": lambda window, _: {"size": window.size}}


@around
def limits(instrumentation, _, messages):
    with current_model_call().onwards():
        _, rest = split(messages)
        Reduction(instrumentation, "limits", rest).done(rest[-2:], always=True)
        yield


def called(original, _, instrumentation):
    return client(sent, str)(original, instrumentation)


class PretendInstrumentor(AssemblyInstrumentor):
    framework = "pretend"
    requires = ("pydantic >= 2",)
    hooks: ClassVar[tuple[Hook, ...]] = tuple(
        Hook("pretend_agents", target, wrap, "something")
        for target, wrap in (
            ("Client.call", Following("call", called)),
            ("Client.acall", client(sent, str)),
            ("Client.astream", client(sent)),
            ("Client.entered", client(sent)),
            ("Cache.call", client(sent, str)),
            ("Limits.call", limits),
            ("Window.reduce", reducer(Reducer(taken_in, lambda result, *_: result, **_window))),
            ("Window.areduce", reducer(Reducer(taken_in, lambda result, *_: result, **_window))),
            (
                "Window.shrink",
                reducer(Reducer(taken_in, asker=lambda _, history: OWNERS.get(id(history)), **_window)),
            ),
            ("Around.reduce", reducer(Reducer(taken_in, lambda result, *_: result, policy="around"))),
            ("Summary.reduce", reducer(Reducer(taken_in, lambda result, *_: result, policy="summary"))),
            ("Plugin.reduce", around(plugged)),
            ("Agent.turn", within(call_of)),
            ("Agent.aturn", within(call_of)),
            ("Agent.enter", within(call_of)),
            ("Agent.stream", within(call_of)),
        )
    )


OWNERS = {}


@pytest.fixture
def agents(tmp_path, monkeypatch, assembly_telemetry):
    """The framework, instrumented."""
    (tmp_path / "pretend_agents.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.setitem(FRAMEWORKS, "pretend", "PretendInstrumentor")
    monkeypatch.setattr("otel_assembly.instrumentation.instrumentor_of", lambda _: PretendInstrumentor())
    with assembly_telemetry.as_default():
        instrument("pretend")
        yield importlib.import_module("pretend_agents")
        uninstrument("pretend")
    sys.modules.pop("pretend_agents", None)
    OWNERS.clear()


def assemblies(telemetry):
    return telemetry.spans_named("assemble_context")


def every_call(telemetry, client):
    """Each call that the client received has its assembly, which says what was received."""
    told = assemblies(telemetry)
    assert [one.attributes["assembly.events.out"] for one in told] == [
        sum(message["role"] != "system" for message in received) for received in client.received
    ]
    assert [one.attributes["assembly.tokens.out"] for one in told] == [
        prompt_tokens(*split(received)) for received in client.received
    ]
    assert telemetry.violations() == []
    return told


def steps(assembly):
    return [
        one.attributes["assembly.policy.name"] for one in assembly.children if "assembly.policy.name" in one.attributes
    ]


def test_a_call_that_nothing_reduces_is_told(agents, assembly_telemetry):
    asked = agents.Client()
    agents.Agent(asked).ask("hello")
    (told,) = every_call(assembly_telemetry, asked)
    assert told.attributes["gen_ai.agent.name"] == "clerk"
    assert steps(told) == []


def test_reductions_are_the_steps_of_the_call_that_they_are_made_for(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window()])
    for turn in range(4):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [one.attributes["assembly.events.in"] for one in told] == [1, 3, 5, 7]
    assert [one.attributes["assembly.dropped.count"] for one in told] == [0, 0, 2, 4]
    assert [steps(one) for one in told] == [[], [], ["window"], ["window"]]
    assert len({one.attributes["assembly.ledger.id"] for one in told}) == 1


def test_a_summarisers_own_call_is_an_attempt_inside_the_assembly_that_asked_for_it(agents, assembly_telemetry):
    asked, summariser = agents.Client(), agents.Client(["All that was said."])
    agent = agents.Agent(asked, [agents.Summary(summariser)])
    agent.ask("one")
    agent.ask("two")
    told = every_call(assembly_telemetry, asked)
    assert steps(told[1]) == ["summary"]
    (block,) = [one for step in told[1].children for one in step.children]
    assert block.name.startswith("compact_block")
    assert told[1].attributes["assembly.compacted.count"] == 1


def test_a_reducer_may_change_the_system_prompts_and_says_itself_what_it_does(agents, assembly_telemetry):
    def told(prompts, messages):
        return [{"role": "system", "content": text} for text in prompts] + messages

    def read(messages):
        prompts, rest = split(messages)
        return Sent(rest, prompts)

    def add(prompts, messages):
        return told([*prompts, "Be brief."], split(messages)[1])

    call = ModelCall(Instrumentation("pretend"), Asker("history"))
    hello = [{"role": "user", "content": "hello"}]
    call.came(hello, prompts=["You help."])
    hook = reducer(
        Reducer(lambda _, given: read(given), lambda out, *_: read(out), "brief", kind=lambda *_: "injection")
    )
    with call.current():
        made = hook(add, call.instrumentation)(["You help."], told(["You help."], hello))
    call.receives(sent(None, made))
    (assembly,) = assemblies(assembly_telemetry)
    assert [one.attributes["assembly.policy.kind"] for one in assembly.children] == ["injection"]
    assert assembly.attributes["assembly.tokens.in"] == prompt_tokens(["You help."], hello)
    assert assembly.attributes["assembly.tokens.out"] == prompt_tokens(["You help.", "Be brief."], hello)


def test_a_reducer_knows_what_its_summariser_has_read_and_what_came_of_it(assembly_telemetry):
    asked, telling = [{"role": "user", "content": "Order 4711."}], Instrumentation("pretend")
    summarise = client(lambda messages: Sent(messages), str)(lambda messages: "All that was said.", telling)
    reduction = Reduction(telling, "summary", asked, call=ModelCall(telling))
    assert (reduction.read, reduction.attempt) == ((), None)
    with reduction.running():
        summarise(asked)
    assert reduction.read is asked
    assert reduction.attempt.outcome == "compacted"
    reduction.done([])


@pytest.mark.parametrize("answer", ["All that was said.", ValueError("no")])
def test_what_a_summariser_did_outside_of_any_call_is_an_attempt_inside_the_next_one(answer, assembly_telemetry):
    asked, asker, telling = [{"role": "user", "content": "Order 4711."}], Asker("history"), Instrumentation("pretend")

    def summary(messages):
        if isinstance(answer, Exception):
            raise answer
        return answer

    summarise = client(lambda messages: Sent(messages), str)(summary, telling)

    def shorter(messages):
        try:
            return [{"role": "user", "content": summarise(messages)}]
        except ValueError:
            return messages

    after = reducer(Reducer(lambda given: given, lambda out, _: out, "shorter", asker=lambda _: asker))
    kept = after(shorter, telling)(asked)
    assert assembly_telemetry.spans == []
    ModelCall(telling, asker).receives(Sent(kept))
    (assembly,) = assemblies(assembly_telemetry)
    ((attempt,),) = (step.children for step in assembly.children)
    failed = isinstance(answer, Exception)
    assert attempt.attributes["assembly.compaction.outcome"] == ("raised" if failed else "compacted")
    assert attempt.attributes["assembly.tokens.in"] > 0
    assert (attempt.attributes.get("assembly.tokens.out", 0) > 0) is not failed
    assert attempt.attributes.get("error.type") == ("ValueError" if failed else None)


def test_a_retry_has_an_assembly_of_its_own_with_the_same_steps(agents, assembly_telemetry):
    asked = agents.Client(["fine", "fine", ValueError(), "fine"])
    agent = agents.Agent(asked, [agents.Window()], attempts=2)
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert len(told) == 4
    assert [steps(one) for one in told[2:]] == [["window"], ["window"]]
    assert told[2].offered == told[3].offered
    assert told[3].attributes["assembly.dropped.new"] == 0


@pytest.mark.parametrize("outer", [True, False], ids=["in front of it", "behind it"])
def test_a_middleware_that_is_called_again_does_its_step_once_for_each_call(agents, assembly_telemetry, outer):
    asked = agents.Client(["fine", ValueError(), "fine"])
    retried = agents.Retries(agents.Limits(asked)) if outer else agents.Limits(agents.Retries(asked))
    agent = agents.Agent(retried)
    for turn in range(2):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [steps(one) for one in told] == [["limits"]] * 3
    assert told[1].offered == told[2].offered


def test_the_care_of_a_history_has_a_name_and_spares_what_it_could_not_reduce(agents, assembly_telemetry):
    history = [{"role": "user", "content": str(number)} for number in range(3)]
    instrumentation, error = Instrumentation("pretend"), ConnectionError()
    call = ModelCall(instrumentation, Asker("history"), messages=history, name="compaction")
    Reduction(instrumentation, "compaction", history, call=call).failed(error)
    call.end(error, stays=True)
    (told,) = assemblies(assembly_telemetry)
    assert told.attributes["assembly.name"] == "compaction"
    assert told.attributes["assembly.events.out"] == 3
    assert (told.status, told.attributes["error.type"]) == ("ERROR", "ConnectionError")


def test_behind_a_plugin_a_call_is_told_once_it_is_made_again(agents, assembly_telemetry):
    call = ModelCall(Instrumentation("pretend"), Asker("history"))
    messages = [{"role": "user", "content": "hello"}]
    call.by_plugin(messages, prompts=["You help."])
    call.receives(Sent(messages, ["You help."]))
    assert assemblies(assembly_telemetry) == []
    call.receives(Sent(messages, ["You help."]))
    (told,) = assemblies(assembly_telemetry)
    assert told.attributes["assembly.tokens.out"] == prompt_tokens(["You help."], messages)


def test_a_client_around_a_client_is_one_call(agents, assembly_telemetry):
    asked = agents.Client()
    agents.Agent(agents.Cache(asked)).ask("hello")
    every_call(assembly_telemetry, asked)


def test_a_client_of_a_class_that_a_program_defines_is_one(agents, assembly_telemetry):
    class Polite(agents.Client):
        def call(self, messages):
            return super().call([*messages, {"role": "user", "content": "Be brief."}])

    class Loud(agents.Client):
        def call(self, messages):
            return super().call(messages).upper()

    for asked in (Polite(), Loud()):
        assert agents.Agent(asked).ask("hello").lower() == "fine"
    ours = [vars(one)["call"] for one in (Polite, Loud, agents.Client)]
    polite, loud = assemblies(assembly_telemetry)
    assert (polite.attributes["assembly.events.out"], loud.attributes["assembly.events.out"]) == (1, 1)
    uninstrument("pretend")
    assert not any(
        vars(one)["call"] is wrapped for one, wrapped in zip((Polite, Loud, agents.Client), ours, strict=True)
    )
    assert "__init_subclass__" not in vars(agents.Client)
    instrument("pretend")


async def test_a_client_that_is_entered_is_one_call(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked)
    assert await agent.enter("hello") == "fine"
    every_call(assembly_telemetry, asked)


async def test_what_is_entered_belongs_to_every_run_around_it(agents, assembly_telemetry, monkeypatch):
    current = []

    class Around:
        def __init__(self, *_):
            pass

        @contextmanager
        def current(self):
            current.append(current_model_call())
            yield

        def end(self, error=None):
            current.append("ended")

    around_it = within(Around)(agents.Client.entered, PretendInstrumentor()._instrumentation)
    monkeypatch.setattr(agents.Client, "entered", around_it)
    await agents.Agent(agents.Client()).enter("hello")
    assert [one is not None for one in current] == [True] * 4
    assert current[-1] == "ended"


async def test_what_is_raised_as_a_client_is_entered_goes_through(agents, assembly_telemetry):
    asked = agents.Client([ValueError("no")])
    with pytest.raises(ValueError, match="no"):
        await agents.Agent(asked).enter("hello")
    every_call(assembly_telemetry, asked)


def test_an_agent_that_answers_in_a_models_place_makes_calls_of_its_own(agents, assembly_telemetry):
    inner = agents.Client()
    outer = agents.Delegate(agents.Agent(inner))
    agents.Agent(outer).ask("hello")
    told = assemblies(assembly_telemetry)
    received = [outer.received[0], inner.received[0]]
    assert [one.attributes["assembly.tokens.out"] for one in told] == [prompt_tokens(*split(one)) for one in received]


def test_a_summarisers_spans_are_not_around_the_assembly_that_asked_for_it(agents, assembly_telemetry):
    tracer = assembly_telemetry.tracer()

    class Traced(agents.Client):
        def call(self, messages):
            with tracer.start_as_current_span("summarise"):
                return super().call(messages)

    asked, summariser = agents.Client(), Traced(["All that was said."])
    agent = agents.Agent(asked, [agents.Summary(summariser)])
    with tracer.start_as_current_span("turn"):
        agent.ask("one")
    assert {one.parent.name for one in assemblies(assembly_telemetry)} == {"turn"}


def test_around_a_plugin_of_ours_each_assembly_has_a_span_of_its_own(agents, assembly_telemetry, caplog):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window(), agents.Plugin()])
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = assemblies(assembly_telemetry)
    assert [steps(one) for one in told] == [["window"]]
    assert not caplog.records


def test_messages_that_read_alike_are_no_step(agents, assembly_telemetry):
    class Notes(agents.Client):
        def call(self, messages):
            return super().call([{**message, "note": "internal"} for message in messages])

    asked = Notes()
    agents.Agent(asked).ask("hello")
    (told,) = every_call(assembly_telemetry, asked)
    assert steps(told) == []


def test_what_reduces_outside_of_a_call_is_told_with_the_next_one(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, tidies=True)
    OWNERS[id(agent.history)] = Asker(agent, "clerk", "clerk")
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [steps(one) for one in told] == [[], [], ["window"]]
    assert told[2].attributes["assembly.events.in"] == 5
    assert told[2].attributes["assembly.dropped.count"] == 1


def test_what_no_hook_explains_is_a_closing_step(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window(), Odd()])
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert steps(told[2]) == ["window", "framework"]


class Odd:
    """A reducer that nobody has heard of."""

    def reduce(self, messages):
        return messages[1:] if len(messages) == 3 else messages


async def test_async_reducers_that_return_copies(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window()])
    for turn in range(5):
        await agent.aturn(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [one.attributes["assembly.dropped.count"] for one in told] == [0, 0, 0, 1, 2]
    assert all(one.attributes["assembly.compacted.count"] == 0 for one in told)


async def test_a_stream_is_one_call_told_as_it_begins(agents, assembly_telemetry):
    asked = agents.Client(["so it is"])
    words = [word async for word in agents.Agent(asked).stream("hello")]
    assert words == ["so", "it", "is"]
    every_call(assembly_telemetry, asked)


async def test_calls_at_once_do_not_mix(agents, assembly_telemetry):
    several = [agents.Client() for _ in range(8)]
    await asyncio.gather(*(agents.Agent(one).aturn(f"hello {at}") for at, one in enumerate(several)))
    assert len(assemblies(assembly_telemetry)) == 8
    assert len({one.attributes["assembly.ledger.id"] for one in assemblies(assembly_telemetry)}) == 8


def test_a_call_that_comes_to_nothing_is_told_where_something_was_done_for_it(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Window(), Raises()])
    agent.history = [{"role": "user", "content": str(number)} for number in range(9)]
    with pytest.raises(ZeroDivisionError):
        agent.ask("hello")
    (told,) = assemblies(assembly_telemetry)
    assert told.attributes["error.type"] == "ZeroDivisionError"
    assert steps(told) == ["window"]


class Raises:
    def reduce(self, messages):
        return 1 / 0


def test_a_step_lasts_as_long_as_the_summariser_that_it_calls(agents, assembly_telemetry):
    agent = agents.Agent(agents.Client(), [agents.Summary(agents.Client(["All that was said."]))])
    agent.history = [{"role": "user", "content": str(number)} for number in range(4)]
    agent.ask("and?")
    block = assembly_telemetry.span("compact_block summary")
    assert block.attributes["assembly.tokens.in"] > 0
    assert block.parent.start_ns <= block.start_ns <= block.end_ns <= block.parent.end_ns


def test_what_ran_inside_of_a_reducer_and_told_all_is_not_told_again(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked, [agents.Around(agents.Window())])
    for turn in range(3):
        agent.ask(f"question {turn}")
    told = every_call(assembly_telemetry, asked)
    assert [steps(one) for one in told] == [[], [], ["window"]]


def test_another_call_begins_with_what_one_was_at_some_time(agents, assembly_telemetry):
    """As where two go on at once with what one has prepared for both."""
    instrumentation = PretendInstrumentor()._instrumentation
    messages = [{"role": "user", "content": str(number)} for number in range(6)]
    call = ModelCall(instrumentation, Asker("talk", "clerk", "clerk"), messages=messages)
    call.reduced("first", messages, messages[1:])
    call.reduced("second", messages[1:], messages[3:])
    assert [len(state) for state in call.states] == [6, 5, 3]
    call.receives(Sent(messages[3:]))
    assert call.ended
    call.another(1).receives(Sent(messages[1:]))
    call.another(0).receives(Sent(messages))
    told = assemblies(assembly_telemetry)
    assert [steps(one) for one in told] == [["first", "second"], ["first"], []]
    assert [one.attributes["assembly.events.in"] for one in told] == [6] * 3


def test_who_knows_which_call_it_is_tells_it_in_the_place_of_the_context_variable(agents, assembly_telemetry):
    entered = []

    class Placed(ModelCall):
        @contextmanager
        def calling(self):
            entered.append("in")
            yield
            entered.append("out")

    def told(instrumentation, sent):
        call = Placed(instrumentation, sent.asker, messages=sent.messages)
        call.receives(sent)
        return call

    call = client(lambda messages: Sent(messages), told=told)(
        lambda messages: entered.append("called"), PretendInstrumentor()._instrumentation
    )
    call([{"role": "user", "content": "hello"}])
    assert entered == ["in", "called", "out"]
    assert len(assemblies(assembly_telemetry)) == 1


def test_with_and_without_are_the_same(agents, assembly_telemetry):
    def talk():
        agent = agents.Agent(agents.Client(["a", "b", "c"]), [agents.Window()])
        return [agent.ask(f"question {turn}") for turn in range(3)], agent.client.received

    with_us = talk()
    uninstrument("pretend")
    assert talk() == with_us
    assert inspect.isfunction(agents.Client.call)
    assert not hasattr(agents.Client.call, "__wrapped__")
    assert current_model_call() is None


def test_calls_of_one_run_begin_with_what_was_reduced_for_all_of_them(agents, assembly_telemetry):
    asked = agents.Client()
    run = PretendInstrumentor()._instrumentation
    history = [{"role": "user", "content": f"question {turn}"} for turn in range(4)]
    prepared = ModelCall(run, Asker(asked, "clerk", "clerk"))
    prepared.reduced("window", history, history[2:])
    others = prepared.another()
    held = history[2:]
    for call in (prepared, others.another(), others.another()):
        held = [*held, {"role": "user", "content": f"more {len(held)}"}]
        call.came(held)
        with call.current():
            asked.call(held)
    told = every_call(assembly_telemetry, asked)
    assert [steps(one) for one in told] == [["window"]] * 3
    assert [one.attributes["assembly.events.in"] for one in told] == [5, 6, 7]
    assert [one.attributes["assembly.dropped.count"] for one in told] == [2, 2, 2]
    assert [one.attributes["assembly.dropped.new"] for one in told] == [2, 0, 0]


class Stream:
    """Neither a coroutine nor a generator."""

    def __init__(self):
        self.around = []

    def words(self):
        found = []
        for _ in ("so", "it", "is"):
            with self.around[0]():
                found.append(current_model_call())
        return found


def test_a_stream_of_the_frameworks_own_carries_its_run_on(agents, assembly_telemetry):
    asked = agents.Client()
    run = PretendInstrumentor()._instrumentation
    ended = []

    class Run:
        def current(self):
            return ModelCall(run, Asker(asked, "clerk", "clerk")).current()

        def end(self, error=None):
            ended.append(error)

    def carries(given, answer):
        answer.around.append(given.current)
        return isinstance(answer, Stream)

    stream = within(lambda *_: Run(), carries)(Stream, run)()
    assert isinstance(stream, Stream)
    assert None not in stream.words()
    assert current_model_call() is None
    assert ended == []


def test_what_stands_around_and_between_what_was_reduced_came_in_too(agents, assembly_telemetry):
    asked = agents.Client()
    first, *reduced = [{"role": "user", "content": f"question {turn}"} for turn in range(4)]
    call = ModelCall(PretendInstrumentor()._instrumentation, Asker(asked, "clerk", "clerk"))
    call.reduced("window", [first, *reduced], reduced)
    between = {"role": "user", "content": "in between"}
    held = [
        {"role": "user", "content": "in front"},
        reduced[0],
        between,
        *reduced[1:],
        {"role": "user", "content": "."},
    ]
    with call.current():
        asked.call(held)
    (told,) = every_call(assembly_telemetry, asked)
    assert steps(told) == ["window"]
    assert told.attributes["assembly.events.in"] == 7
    assert told.attributes["assembly.dropped.count"] == 1


def test_why_a_copy_left_is_why_the_message_did(agents, assembly_telemetry):
    asked = agents.Client()
    history = [{"role": "user", "content": f"question {turn}"} for turn in range(4)]
    copies = [dict(one) for one in history]
    call = ModelCall(PretendInstrumentor()._instrumentation, Asker(asked, "clerk", "clerk"), messages=history)
    verdict = Verdict(copies[:2], DecisionOutcome.DROPPED, DecisionReason.STALE)
    call.reduced("window", copies, copies[2:], verdicts=[verdict])
    with call.current():
        asked.call(copies[2:])
    (told,) = every_call(assembly_telemetry, asked)
    assert told.children[0].dropped_reasons == {"0": "stale", "1": "stale"}


def test_what_looks_at_an_answer_never_reaches_the_agent(agents, assembly_telemetry):
    seen = []

    class Run(ModelCall):
        def returned(self, answer):
            seen.append(answer)
            raise ZeroDivisionError

    run = PretendInstrumentor()._instrumentation
    assert within(lambda *_: Run(run))(len, run)("four") == 4
    assert seen == [4]
