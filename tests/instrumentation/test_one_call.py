"""Whatever a client is like, and whatever stands around it: what is one call, and whose it is."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from pretend_instrumentor import PretendInstrumentor, assemblies, every_call, split
from recount import prompt_tokens

from otel_assembly import instrument, uninstrument
from otel_assembly.instrumentation import (
    ClientRequest,
    InvokingAgent,
    ModelCall,
    TrackedRun,
    client,
    current_model_call,
    run_hook,
)


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
    ours = [vars(item)["call"] for item in (Polite, Loud, agents.Client)]
    polite, loud = assemblies(assembly_telemetry)
    assert (polite.attributes["assembly.events.out"], loud.attributes["assembly.events.out"]) == (1, 1)
    uninstrument("pretend")
    assert not any(
        vars(item)["call"] is wrapped for item, wrapped in zip((Polite, Loud, agents.Client), ours, strict=True)
    )
    assert "__init_subclass__" not in vars(agents.Client)
    instrument("pretend")


def test_an_agent_that_answers_in_a_models_place_makes_calls_of_its_own(agents, assembly_telemetry):
    inner = agents.Client()
    outer = agents.Delegate(agents.Agent(inner))
    agents.Agent(outer).ask("hello")
    told = assemblies(assembly_telemetry)
    received = [outer.received[0], inner.received[0]]
    assert [span.attributes["assembly.tokens.out"] for span in told] == [
        prompt_tokens(*split(request)) for request in received
    ]


async def test_a_client_that_is_entered_is_one_call(agents, assembly_telemetry):
    asked = agents.Client()
    agent = agents.Agent(asked)
    assert await agent.enter("hello") == "fine"
    every_call(assembly_telemetry, asked)


async def test_what_is_entered_belongs_to_every_run_around_it(agents, assembly_telemetry, monkeypatch):
    current = []

    class Around(TrackedRun):
        def __init__(self, *_):
            pass

        @contextmanager
        def current(self):
            current.append(current_model_call())
            yield

        def end(self, error=None):
            current.append("ended")

    around_it = run_hook(Around)(agents.Client.entered, PretendInstrumentor()._instrumentation)
    monkeypatch.setattr(agents.Client, "entered", around_it)
    await agents.Agent(agents.Client()).enter("hello")
    assert [item is not None for item in current] == [True] * 4
    assert current[-1] == "ended"


async def test_what_is_raised_as_a_client_is_entered_goes_through(agents, assembly_telemetry):
    asked = agents.Client([ValueError("no")])
    with pytest.raises(ValueError, match="no"):
        await agents.Agent(asked).enter("hello")
    every_call(assembly_telemetry, asked)


async def test_a_stream_is_one_call_told_as_it_begins(agents, assembly_telemetry):
    asked = agents.Client(["so it is"])
    words = [word async for word in agents.Agent(asked).stream("hello")]
    assert words == ["so", "it", "is"]
    every_call(assembly_telemetry, asked)


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

    class Run(TrackedRun):
        def current(self):
            return ModelCall(run, InvokingAgent(asked, "clerk", "clerk")).current()

        def end(self, error=None):
            ended.append(error)

    def attach_to_stream(given, answer):
        answer.around.append(given.current)
        return isinstance(answer, Stream)

    stream = run_hook(lambda *_: Run(), attach_to_stream)(Stream, run)()
    assert isinstance(stream, Stream)
    assert None not in stream.words()
    assert current_model_call() is None
    assert ended == []


def test_who_knows_which_call_it_is_tells_it_in_the_place_of_the_context_variable(agents, assembly_telemetry):
    entered = []

    class Placed(ModelCall):
        @contextmanager
        def calling(self):
            entered.append("in")
            yield
            entered.append("out")

    def told(instrumentation, sent):
        call = Placed(instrumentation, sent.invoking_agent, messages=sent.messages)
        call.client_called(sent)
        return call

    call = client(lambda messages: ClientRequest(messages), record=told)(
        lambda messages: entered.append("called"), PretendInstrumentor()._instrumentation
    )
    call([{"role": "user", "content": "hello"}])
    assert entered == ["in", "called", "out"]
    assert len(assemblies(assembly_telemetry)) == 1
