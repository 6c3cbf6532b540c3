"""``error.type`` says the same of one error wherever it stands; what was cancelled did not fail."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext

import pytest

from otel_assembly import (
    Assembler,
    Block,
    Context,
    ContextAssembler,
    ContextOverflowError,
    HaltedError,
    Task,
    allocate_async,
    invoke_agent,
)
from otel_assembly.errors import PolicyFailedError, SourceFailedError
from otel_assembly.testing import conversation
from otel_assembly.tokens import CharacterCounter

LONG = " ".join(["word"] * 300)


class Doing:
    """A policy that does what a function does."""

    name = "doing"

    def __init__(self, function):
        self.function = function

    async def apply(self, prompts, events, context):
        await self.function()
        return prompts, events


class OfItsOwnError(Exception):
    pass


def types(recorder):
    """What each span says."""
    return {span.name: span.attributes.get("error.type") for span in recorder.spans}


def errors(recorder):
    points = recorder.metrics.get("assembly.policy.errors", [])
    return [(point.attributes["assembly.policy.name"], point.attributes["error.type"], point.value) for point in points]


async def cancelled(work):
    """Begin something, and cancel it once it waits."""
    task = asyncio.create_task(work)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def block():
    """One that does not fit as it is."""
    return Block("facts", 5, LONG, cuttable=True)


async def forever(*_):
    await asyncio.Event().wait()


async def test_a_policy_that_was_cancelled_says_so_and_is_no_error(recorder):
    async def turn():
        with invoke_agent("desk"):
            await Assembler([Doing(forever)], counter=CharacterCounter(4)).assemble([], conversation("ask"), Context())

    await cancelled(turn())
    assert types(recorder) == dict.fromkeys(
        ("invoke_agent desk", "assemble_context", "apply_policy doing"), "cancelled"
    )
    assert all(span.status == "ERROR" for span in recorder.spans)
    assert errors(recorder) == []
    assert recorder.violations() == []


async def test_an_assembly_that_nobody_awaits_to_its_end_is_no_error_of_its_policy(recorder):
    turn = Assembler([Doing(forever)], counter=CharacterCounter(4)).assemble([], conversation("ask"), Context())
    turn.send(None)
    turn.close()
    assert types(recorder) == dict.fromkeys(("assemble_context", "apply_policy doing"), "GeneratorExit")
    assert errors(recorder) == []


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_compaction_that_was_cancelled_says_so(recorder, is_async):
    started, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def compact(text, target_tokens):
        started.set()
        await forever()

    def compact_here(text, target_tokens):
        loop.call_soon_threadsafe(started.set)
        go_on.wait(500)

    task = asyncio.create_task(allocate_async([block()], 100, 0, len, compact if is_async else compact_here))
    await started.wait()
    await cancelled_now(task)
    go_on.set()
    assert types(recorder) == dict.fromkeys(("allocate_budget", "compact_block evidence"), "cancelled")
    assert errors(recorder) == []


async def cancelled_now(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_sources_of_a_task_that_was_cancelled_did_not_fail(recorder):
    class Source:
        name = "docs"

        async def search(self, query, *, scopes, k):
            await forever()

    desk = ContextAssembler(
        system="s", window=4_000, output_reserve=10, scopes=lambda user, task: {"public"}, retrievers=[Source()]
    )
    await cancelled(desk.assemble(Task(query="q"), user="u"))
    assert errors(recorder) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("secret"), "ValueError"),
        (OfItsOwnError("secret"), f"{OfItsOwnError.__module__}.OfItsOwnError"),
        (TimeoutError(), "TimeoutError"),
        (HaltedError("over", "monitor"), "assembly_halt"),
        (ContextOverflowError(1, 2, {}), "context_overflow"),
        (asyncio.CancelledError(), "cancelled"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_one_error_has_one_name_in_every_place(recorder, error, said):
    async def fails(*_):
        raise error

    with pytest.raises(BaseException), invoke_agent("desk"):  # noqa: B017  # whatever it is
        await Assembler([Doing(fails)]).assemble([], conversation("ask"), Context())
    assert types(recorder) == dict.fromkeys(("invoke_agent desk", "assemble_context", "apply_policy doing"), said)
    is_failure = said not in {"assembly_halt", "context_overflow", "cancelled"}
    assert errors(recorder) == ([("doing", said, 1)] if is_failure else [])

    recorder.clear()
    with nullcontext() if is_failure else pytest.raises(type(error)):
        await allocate_async([block()], 100, 0, len, fails)
    attempts = [span for span in recorder.spans if span.name.startswith("compact_block")]
    assert {span.attributes["error.type"] for span in attempts if span.status == "ERROR"} == {said}


async def test_a_source_that_failed_is_named_as_a_policy_is(recorder):
    async def scopes(user, task):
        raise OfItsOwnError("secret")

    desk = ContextAssembler(system="s", window=4_000, output_reserve=10, scopes=scopes)
    with pytest.raises(SourceFailedError):
        await desk.assemble(Task(query="q"), user="u")
    ((_, said, count),) = errors(recorder)
    assert (said, count) == (f"{OfItsOwnError.__module__}.OfItsOwnError", 1)


async def test_a_policy_in_a_policy_is_named_by_what_it_raised(recorder):
    async def fails():
        raise PolicyFailedError("inner", 0, "raised") from OfItsOwnError("secret")

    with pytest.raises(PolicyFailedError):
        await Assembler([Doing(fails)]).assemble([], conversation("ask"), Context())
    said = f"{OfItsOwnError.__module__}.OfItsOwnError"
    assert set(types(recorder).values()) == {said}
    assert errors(recorder) == [("doing", said, 1)]
