"""Middleware that stands around what is behind it: what it changes is told each time that it goes on."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial

import pytest

from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    MiddlewareCall,
    MiddlewareReduction,
    ModelCall,
    StepReport,
    current_model_call,
    wrap_middleware,
)

HISTORY = [{"role": "user", "content": str(number)} for number in range(5)]
WHERE: ContextVar[str] = ContextVar("where", default="outside")


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


class Request:
    """What a middleware is called with; it may be changed in place."""

    def __init__(self, messages, prompts=("Help.",)):
        self.messages, self.prompts = messages, prompts


class Chain:
    """A framework's middleware around one model call."""

    def __init__(self, instrumentation, kind=None):
        self.instrumentation = instrumentation
        self.call = ModelCall(instrumentation)
        self.seen = []
        self._kind = kind

    def begun(self, name, request):
        def made(before):
            return MiddlewareReduction(self.instrumentation, StepReport(name, before, kind=self._kind))

        return MiddlewareCall(
            self.instrumentation,
            made,
            lambda policy: ClientRequest(policy.messages, policy.prompts),
            request,
            {WHERE: name},
            {WHERE: "behind"},
        )

    def middleware(self, middleware, name="middle"):
        return wrap_middleware(middleware, self.instrumentation, partial(self.begun, name))

    def client(self, request):
        self.seen.append(WHERE.get())
        current_model_call().client_called(ClientRequest(request.messages, request.prompts))
        return "fine"

    def run(self, middleware, messages=HISTORY):
        with self.call.current():
            return self.middleware(middleware)(Request(messages), self.client)


def told(telemetry):
    assemblies = telemetry.spans_named("assemble_context")
    return [
        (assembly.attributes["assembly.events.in"], assembly.attributes["assembly.events.out"])
        for assembly in assemblies
    ]


def test_what_it_goes_on_with_is_a_step_whether_it_makes_another_request_or_changes_that(
    instrumentation, assembly_telemetry
):
    def changes(request, behind):
        request.messages = request.messages[-2:]
        assert WHERE.get() == "middle"
        return behind(request)

    def makes(request, behind):
        return behind(Request(request.messages[-2:]))

    for middleware in (changes, makes):
        chain = Chain(instrumentation)
        assert chain.run(middleware) == "fine"
        assert chain.seen == ["behind"]
        assert WHERE.get() == "outside"
    assert told(assembly_telemetry) == [(5, 2), (5, 2)]
    assert len(assembly_telemetry.spans_named("apply_policy middle")) == 2


def test_one_that_goes_on_twice_is_told_twice(instrumentation, assembly_telemetry):
    def twice(request, behind):
        behind(Request(request.messages[-1:]))
        return behind(Request(request.messages[-3:]))

    Chain(instrumentation).run(twice)
    assert told(assembly_telemetry) == [(5, 1), (5, 3)]
    assert [len(span.children) for span in assembly_telemetry.spans_named("assemble_context")] == [1, 1]


def test_what_is_called_again_begins_where_it_began_before(instrumentation, assembly_telemetry):
    """A middleware in front of one that changes the messages has it work once more, as after a failure."""

    def tries_again(request, behind):
        with pytest.raises(ConnectionError):
            behind(request)
        return behind(request)

    def newest(request, behind):
        return behind(Request(request.messages[-2:]))

    def fails_once(request):
        chain.client(request)
        if len(chain.seen) == 1:
            raise ConnectionError("no")
        return "fine"

    chain = Chain(instrumentation)
    inner, outer = chain.middleware(newest, "inner"), chain.middleware(tries_again, "outer")
    with chain.call.current():
        assert outer(Request(HISTORY), lambda request: inner(request, fails_once)) == "fine"
    assert told(assembly_telemetry) == [(5, 2), (5, 2)]
    assemblies = assembly_telemetry.spans_named("assemble_context")
    assert [[step.name for step in assembly.children] for assembly in assemblies] == [["apply_policy inner"]] * 2


def test_prompts_that_it_changes_are_told_with_what_they_were(instrumentation, assembly_telemetry):
    Chain(instrumentation).run(lambda request, behind: behind(Request(request.messages, ("Help.", "Be brief."))))
    span = assembly_telemetry.span("assemble_context")
    assert (span.attributes["assembly.prompts.in"], span.attributes["assembly.prompts.out"]) == (1, 2)


async def test_awaited_ones_are_told_likewise(instrumentation, assembly_telemetry):
    chain = Chain(instrumentation)

    async def client(request):
        return chain.client(request)

    async def newest(request, behind):
        return await behind(Request(request.messages[-1:]))

    with chain.call.current():
        assert await chain.middleware(newest)(Request(HISTORY), client) == "fine"
    assert told(assembly_telemetry) == [(5, 1)]


@pytest.mark.parametrize(("kind", "expected"), [("reduction", 1), (None, 0)])
def test_one_that_raises_before_it_went_on_is_told_where_it_is_known_to_reduce(
    kind, expected, instrumentation, assembly_telemetry
):
    def fails(request, behind):
        raise ConnectionError("no")

    chain = Chain(instrumentation, kind=kind)
    with pytest.raises(ConnectionError):
        chain.run(fails)
    chain.call.end()
    assert len(assembly_telemetry.spans_named("apply_policy middle")) == expected


def test_one_that_fails_in_us_goes_on_as_it_would(instrumentation, assembly_telemetry):
    chain = Chain(instrumentation)
    chain.begun = None
    with chain.call.current():
        watched = wrap_middleware(lambda request, behind: behind(request), instrumentation, chain.begun)
        assert watched(Request(HISTORY), chain.client) == "fine"
    assert told(assembly_telemetry) == [(5, 5)]
