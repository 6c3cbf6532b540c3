"""A program that calls a framework's function wrongly is told so by the framework, and it is no failure of ours."""

from __future__ import annotations

import functools
import re

import pytest

from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    client,
    observe_async_hook,
    observe_hook,
    replace_hook,
    run_hook,
)


@pytest.fixture
def instrumentation(assembly_telemetry):
    made = Instrumentation("pretend")
    made.begin_run("clerk").end()  # the instruments that count failures are made once something is recorded
    return made


def answers(messages, *, retries=0):
    return "fine"


async def answers_later(messages, *, retries=0):
    return "fine"


def streams(messages, *, retries=0):
    yield "fine"


@functools.wraps(answers)
def called_back(*args, **kwargs):
    return answers(*args, **kwargs)


def sent(messages, *, retries=0):
    return ClientRequest(messages)


def begins(instrumentation, messages, *, retries=0):
    return instrumentation.begin_run("clerk")


def observes(instrumentation, messages, *, retries=0):
    yield


def works(instrumentation, original, messages, *, retries=0):
    return original(messages, retries=retries)


async def raised_by(work, arguments):
    args, kwargs = arguments
    with pytest.raises(TypeError) as raised:
        await given(work(*args, **kwargs))
    return str(raised.value)


async def given(answer):
    if hasattr(answer, "__await__"):
        return await answer
    return answer if isinstance(answer, str) else list(answer)


HOOKS = {
    "client": client(sent),
    "run": run_hook(begins),
    "around": observe_hook(observes),
    "awaited": observe_async_hook(observes),
    "instead": replace_hook(works),
}
WRONG = [((), {}), (([],), {"messages": []}), (([], 3), {}), (([],), {"tries": 3})]


#: Of each hook the functions that it is for.
FOR = {name: [answers, answers_later, streams, called_back] for name in HOOKS}
FOR |= {"around": [answers, streams, called_back], "awaited": [answers_later]}


@pytest.mark.parametrize("arguments", WRONG, ids=["missing", "twice", "too many", "unknown"])
@pytest.mark.parametrize(("hook", "original"), [(hook, value) for hook, ones in FOR.items() for value in ones])
async def test_what_a_function_refuses_it_refuses_itself(
    instrumentation, assembly_telemetry, hook, original, arguments
):
    work = HOOKS[hook](original, instrumentation)
    assert await raised_by(work, arguments) == await raised_by(original, arguments)
    assert "assembly.telemetry.errors" not in assembly_telemetry.metrics


@pytest.mark.parametrize("hook", HOOKS)
async def test_what_ours_refuses_though_the_function_takes_it_is_counted(instrumentation, assembly_telemetry, hook):
    def newer(messages, *, retries=0, tries=0):
        return "fine"

    async def newer_later(messages, *, retries=0, tries=0):
        return "fine"

    work = HOOKS[hook](newer_later if hook == "awaited" else newer, instrumentation)
    if hook == "instead":  # nothing is known of what ran in its place before that
        with pytest.raises(TypeError, match=re.escape("works() got an unexpected keyword argument 'tries'")):
            work([], tries=3)
        return
    assert await given(work([], tries=3)) == "fine"
    assert assembly_telemetry.metric("assembly.telemetry.errors", component="instrumentation.pretend") == 1
