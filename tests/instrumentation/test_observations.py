"""What runs around a framework's function is never felt: what it returns or raises goes through, whatever ours does."""

from __future__ import annotations

import inspect
import traceback

import pytest

from otel_assembly.instrumentation import Instrumentation, observe_async_hook, observe_hook, replace_hook


@pytest.fixture
def instrumentation(assembly_telemetry):
    made = Instrumentation("pretend")
    made.begin_run("clerk").end()  # the instruments that count failures are made once something is recorded
    return made


def divide(value, by):
    return value / by


async def divide_later(value, by):
    return value / by


async def called(hook, instrumentation, seen, *args, **kwargs):
    """The original's answer, once called through the hook of a function and once through that of a coroutine."""
    plain = observe_hook(hook)(divide, instrumentation)
    awaited = observe_async_hook(hook)(divide_later, instrumentation)
    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(plain)
    first = plain(*args, **kwargs)
    told = list(seen)
    seen.clear()
    assert await awaited(*args, **kwargs) == first
    assert seen == told
    return first


async def test_an_observation_sees_arguments_and_result(instrumentation):
    seen = []

    def observe(instrumentation, value, by):
        seen.append((value, by))
        seen.append((yield))

    assert await called(observe, instrumentation, seen, 6, by=3) == 2
    assert seen == [(6, 3), 2]


async def test_an_observation_sees_what_is_raised_and_it_goes_through_as_it_was(instrumentation):
    seen = []

    def observe(instrumentation, value, by):
        try:
            yield
        except ZeroDivisionError as error:
            seen.append(error)

    with pytest.raises(ZeroDivisionError) as raised:
        observe_hook(observe)(divide, instrumentation)(1, 0)
    assert seen == [raised.value]
    assert [frame.name for frame in traceback.extract_tb(raised.tb)].count("observe") == 0
    with pytest.raises(ZeroDivisionError):
        await observe_async_hook(observe)(divide_later, instrumentation)(1, 0)


@pytest.mark.parametrize("when", ["before", "after", "call", "raised"])
async def test_what_fails_in_an_observation_is_counted_and_the_original_runs_once(
    instrumentation, assembly_telemetry, when
):
    def observe(instrumentation, value, by):
        if when == "before":
            raise LookupError
        try:
            yield
        except ZeroDivisionError:
            raise LookupError from None
        raise LookupError

    runs = []

    def original(*args, **kwargs):
        runs.append(args)
        return divide(*args, **kwargs)

    work = observe_hook(observe)(original, instrumentation)
    if when == "raised":
        with pytest.raises(ZeroDivisionError):
            work(1, 0)
    elif when == "call":
        with pytest.raises(TypeError):
            work(1, 2, 3)
    else:
        assert work(6, 3) == 2
    assert len(runs) == 1
    assert assembly_telemetry.metric("assembly.telemetry.errors", component="instrumentation.pretend") == 1


async def test_what_has_nothing_to_observe_ends_before_the_original_runs(instrumentation):
    def observe(instrumentation, value, by):
        if by:
            return
        yield

    assert await called(observe, instrumentation, [], 6, 3) == 2
    with pytest.raises(ZeroDivisionError):
        observe_hook(observe)(divide, instrumentation)(1, 0)


def test_an_iteration_that_ends_is_no_failure_of_ours(instrumentation, assembly_telemetry):
    def observe(instrumentation):
        yield

    with pytest.raises(StopIteration):
        observe_hook(observe)(lambda: next(iter(())), instrumentation)()
    assert "assembly.telemetry.errors" not in assembly_telemetry.metrics


async def test_while_it_is_not_open_only_the_original_runs(instrumentation):
    instrumentation.open = False

    def fails(*_):
        raise AssertionError

    async def fails_later(*_):
        raise AssertionError

    assert await called(fails, instrumentation, [], 6, 3) == 2
    assert replace_hook(fails)(divide, instrumentation)(6, 3) == 2
    assert await replace_hook(fails_later)(divide_later, instrumentation)(6, 3) == 2


async def test_what_runs_instead_is_given_the_original(instrumentation):
    async def twice(instrumentation, original, value, by):
        return 2 * await original(value, by)

    work = replace_hook(twice)(divide_later, instrumentation)
    assert inspect.iscoroutinefunction(work)
    assert await work(6, 3) == 4
