"""Compactors that fail in every way: each attempt is told, and the original is never lost."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from otel_assembly import ConfigurationError, ContextOverflowError, HaltedError
from otel_assembly.budget import CompactionOutcome, Compactors, compact_workers

TEXT = "The order 4411 was late. The customer wants a refund. The agent promised one by Friday. " * 4
CURRENT = contextvars.ContextVar("CURRENT", default="outside")


def words(text):
    return len(text.split())


class Watched:
    """Writes down each attempt as it looks when it begins and when it ends."""

    def __init__(self):
        self.begun, self.ended = [], []

    @contextmanager
    def __call__(self, attempt):
        self.begun.append((attempt.compactor, attempt.number, attempt.target, attempt.outcome))
        token = CURRENT.set(f"attempt {attempt.number}")
        try:
            yield
        finally:
            CURRENT.reset(token)
            self.ended.append((attempt.compactor, attempt.outcome))


def told(compacted):
    return [
        (attempt.compactor, str(attempt.outcome), attempt.target, attempt.tokens_out, attempt.error_type)
        for attempt in compacted.attempts
    ]


def both(compactors, text=TEXT, target=10, count=words):
    """What the sync form gives, after making sure that the async form gives the same."""
    result = compactors.run(text, target, count)
    again = asyncio.run(compactors.run_async(text, target, count))
    assert (again.text, again.tokens, told(again)) == (result.text, result.tokens, told(result))
    return result


@pytest.fixture
def release():
    """Lets go of whatever hangs on it when the test is over, and waits until it has gone."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name == "otel-assembly-compactor":
            thread.join()


def summary(text, target_tokens):
    return "Refund of order 4411 promised."


def raises(text, target_tokens):
    raise ValueError(f"cannot read {text}")


def test_a_good_summary_is_taken_at_once():
    result = both(Compactors(summary))
    assert (result.text, result.tokens) == ("Refund of order 4411 promised.", 5)
    assert told(result) == [("summary", "compacted", 10, 5, None)]
    assert result.attempts[0].tokens_in == words(TEXT)


@pytest.mark.parametrize(
    ("answer", "outcome", "tokens_out"),
    [
        ("", "empty", 0),
        (" \n ", "empty", 0),
        (None, "empty", None),
        (b"bytes", "empty", None),
        (["a list"], "empty", None),
        ("Error generating summary: rate limit of org-77", "error_text", 7),
        ("I'm sorry, but I can't summarise that.", "error_text", 7),
    ],
)
def test_what_is_no_summary_is_tried_again_and_then_the_fallback_reads_the_original(answer, outcome, tokens_out):
    result = both(Compactors(lambda text, target: answer))
    assert told(result)[:2] == [("lambda", outcome, 10, tokens_out, None)] * 2
    assert told(result)[2][:3] == ("ExtractiveCompactor", "compacted", 10)
    assert 0 < result.tokens <= 10
    assert set(result.text.split()) <= set(TEXT.split())


def test_one_that_raises_is_told_by_type_and_never_by_message():
    result = both(Compactors(raises))
    assert told(result)[0] == ("raises", "raised", 10, None, "ValueError")
    assert "4411" not in repr(result.attempts)
    assert result.text


def test_one_that_raises_once_gets_its_second_chance():
    answers = iter([TimeoutError("the provider's own"), "short now"] * 2)

    def flaky(text, target_tokens):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    result = both(Compactors(flaky))
    assert result.text == "short now"
    assert [(attempt.outcome, attempt.error_type) for attempt in result.attempts] == [
        ("raised", "TimeoutError"),
        ("compacted", None),
    ]


def test_one_that_says_too_much_is_asked_for_less_and_the_fallback_for_the_target():
    targets = []

    def twice_as_long(text, target_tokens):
        targets.append(target_tokens)
        return "word " * (2 * target_tokens)

    result = Compactors(twice_as_long).run(TEXT, 10, words)
    assert targets == [10, 5]
    assert result.text == "word " * 10

    stubborn = both(Compactors(lambda text, target: "word " * 40))
    assert [(attempt.outcome, attempt.target, attempt.tokens_out) for attempt in stubborn.attempts[:2]] == [
        ("too_long", 10, 40),
        ("too_long", 2, 40),
    ]
    assert (stubborn.attempts[2].outcome, stubborn.attempts[2].target) == ("compacted", 10)


def test_a_result_of_exactly_the_target_is_taken_and_one_token_more_is_not():
    assert Compactors(lambda text, target: "word " * 10, fallback=None).run(TEXT, 10, words).tokens == 10
    assert Compactors(lambda text, target: "word " * 11, fallback=None).run(TEXT, 10, words).text is None


def test_without_a_fallback_the_result_says_that_there_is_none_and_the_original_is_as_it_was():
    original = str(TEXT)
    result = both(Compactors(raises, fallback=None, attempts=3), original)
    assert (result.text, result.tokens) == (None, 0)
    assert [attempt.outcome for attempt in result.attempts] == ["raised"] * 3
    assert [attempt.number for attempt in result.attempts] == [1, 2, 3]
    assert original == TEXT


def test_a_fallback_of_the_users_own_is_tried_once_on_the_original():
    seen = []

    def mine(text, target):
        seen.append((text, target))
        raise OSError

    result = Compactors(lambda text, target: "", fallback=mine).run(TEXT, 10, words)
    assert result.text is None
    assert seen == [(TEXT, 10)]
    assert [attempt.compactor for attempt in result.attempts] == ["lambda", "lambda", "mine"]


def test_by_default_the_extractive_compactor_answers_alone():
    result = both(Compactors())
    assert told(result)[0][:2] == ("ExtractiveCompactor", "compacted")
    assert len(result.attempts) == 1


def test_with_no_room_nobody_is_asked():
    asked = []
    compactors = Compactors(lambda text, target: asked.append(target) or "x")
    assert compactors.run(TEXT, 0, words) == compactors.run(TEXT, -5, words)
    assert compactors.run(TEXT, 0, words).attempts == ()
    assert not asked


@pytest.mark.parametrize("form", ["sync", "async"])
def test_one_that_hangs_is_left_at_its_deadline_and_not_tried_again(release, form, caplog):
    compact_workers._warned_names.clear()
    calls = []

    def hangs(text, target_tokens):
        calls.append(target_tokens)
        release.wait(500)
        return "too late"

    compactors = Compactors(hangs, deadline=0.05)
    for _ in range(2):
        result = (
            compactors.run(TEXT, 10, words) if form == "sync" else asyncio.run(compactors.run_async(TEXT, 10, words))
        )
        assert [(attempt.compactor, attempt.outcome) for attempt in result.attempts] == [
            ("hangs", "timed_out"),
            ("ExtractiveCompactor", "compacted"),
        ]
        assert result.text != "too late"
    assert calls == [10, 10]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "hangs" in caplog.text
    assert "4411" not in caplog.text


def test_an_async_one_that_hangs_is_cancelled_at_its_deadline():
    cancelled = []

    async def hangs(text, target_tokens):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(target_tokens)
            raise

    result = asyncio.run(Compactors(hangs, deadline=0.05).run_async(TEXT, 10, words))
    assert [attempt.outcome for attempt in result.attempts] == ["timed_out", "compacted"]
    assert cancelled == [10]


def test_the_threads_that_hang_are_bounded_and_the_fallback_still_answers(release):
    def hangs(text, target_tokens):
        release.wait(500)

    compactors = Compactors(hangs, deadline=0.001)
    outcomes = [compactors.run(TEXT, 10, words) for _ in range(compact_workers.MAX_HANGING + 4)]
    assert [str(outcome.attempts[0].outcome) for outcome in outcomes[-4:]] == ["refused"] * 4
    assert all(outcome.text for outcome in outcomes)
    assert compact_workers.count_hanging() == compact_workers.MAX_HANGING
    alive = [thread for thread in threading.enumerate() if thread.name == "otel-assembly-compactor"]
    assert len(alive) == compact_workers.MAX_HANGING
    assert all(thread.daemon for thread in alive)
    again = asyncio.run(compactors.run_async(TEXT, 10, words))
    assert [attempt.outcome for attempt in again.attempts] == ["refused", "compacted"]

    release.set()
    for thread in alive:
        thread.join()
    assert Compactors(summary).run(TEXT, 10, words).attempts[0].outcome == "compacted"


def test_a_process_ends_while_a_compactor_hangs():
    program = (
        "import threading\n"
        "from otel_assembly.budget import Compactors\n"
        "hang = lambda text, target: threading.Event().wait()\n"
        "print(Compactors(hang, deadline=0.01).run('a b c d e f', 2, lambda t: len(t.split())).tokens)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "2\n"


def test_the_watch_stands_around_each_attempt_in_order():
    watched = Watched()
    Compactors(raises).run(TEXT, 10, words, watched)
    assert watched.begun == [
        ("raises", 1, 10, None),
        ("raises", 2, 10, None),
        ("ExtractiveCompactor", 3, 10, None),
    ]
    assert watched.ended == [("raises", "raised"), ("raises", "raised"), ("ExtractiveCompactor", "compacted")]


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_a_compactor_does_belongs_to_its_attempt(is_async):
    seen = []

    def compact(text, target_tokens):
        seen.append(CURRENT.get())
        return ""

    async def compact_async(text, target_tokens):
        return compact(text, target_tokens)

    compactors = Compactors(compact_async if is_async else compact)
    await compactors.run_async(TEXT, 10, words, Watched())
    if not is_async:
        compactors.run(TEXT, 10, words, Watched())
    assert seen == ["attempt 1", "attempt 2"] * (1 if is_async else 2)
    assert CURRENT.get() == "outside"


@pytest.mark.parametrize(
    "error",
    [
        HaltedError("over", "monitor"),
        ContextOverflowError(1, 2, {"system": 2}),
        KeyboardInterrupt(),
        SystemExit(3),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_stops_an_agent_is_no_failure_of_the_compactor(error):
    def stops(text, target_tokens):
        raise error

    watched = Watched()
    with pytest.raises(type(error)):
        Compactors(stops).run(TEXT, 10, words, watched)
    assert watched.ended == [("stops", "raised")]


async def test_a_halt_passes_through_an_async_compactor_too():
    async def stops(text, target_tokens):
        raise HaltedError("over", "monitor")

    with pytest.raises(HaltedError):
        await Compactors(stops).run_async(TEXT, 10, words)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_caller_that_is_cancelled_is_cancelled(release, is_async):
    started, ended = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def hangs(text, target_tokens):
        loop.call_soon_threadsafe(started.set)
        release.wait(500)

    async def hangs_async(text, target_tokens):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("async")

    watched = Watched()
    compactors = Compactors(hangs_async if is_async else hangs)
    task = asyncio.create_task(compactors.run_async(TEXT, 10, words, watched))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [outcome for _, outcome in watched.ended] == ["raised"]
    assert ended == (["async"] if is_async else [])


async def test_a_slow_compactor_that_is_not_async_leaves_the_loop_free(release):
    others = []

    def slow(text, target_tokens):
        release.wait(500)
        return "done"

    async def other():
        others.append(1)
        release.set()

    result, _ = await asyncio.gather(Compactors(slow).run_async(TEXT, 10, words), other())
    assert (result.text, others) == ("done", [1])


def test_an_async_compactor_in_the_sync_form_is_an_error_that_names_the_mend():
    async def compact(text, target_tokens):
        return "x"

    for item in (compact, functools.partial(compact), lambda text, target: compact(text, target)):
        with pytest.raises(ConfigurationError, match="run_async"):
            Compactors(item).run(TEXT, 10, words)
    assert Compactors(compact).is_async


async def test_a_function_that_hands_out_an_awaitable_is_awaited():
    async def compact(text, target_tokens):
        return f"{target_tokens} at most"

    result = await Compactors(lambda text, target: compact(text, target)).run_async(TEXT, 10, words)
    assert result.text == "10 at most"
    assert result.attempts[0].compactor == "lambda"


class Object:
    def __call__(self, text, target_tokens):
        return f"{target_tokens} asked by name"

    def method(self, text, limit):
        return f"{limit} by place"


class Counting:
    def __call__(self, text, tokens, *, count):
        return f"{count(text)} counted"


@pytest.mark.parametrize(
    ("compact", "text", "name"),
    [
        (lambda text, target: f"{target} by place", "10 by place", "lambda"),
        (lambda text, *, target_tokens: f"{target_tokens} by name", "10 by name", "lambda"),
        (lambda words, target_tokens, /: f"{target_tokens} by place", "10 by place", "lambda"),
        (lambda text, **options: f"{options}", "{'target_tokens': 10}", "lambda"),
        (lambda *values: f"{values[1]} of all", "10 of all", "lambda"),
        (functools.partial(lambda kind, text, target: f"{kind} {target}", "brief"), "brief 10", "lambda"),
        (Object(), "10 asked by name", "Object"),
        (Object().method, "10 by place", "method"),
        (Counting(), f"{words(TEXT)} counted", "Counting"),
    ],
)
def test_a_compactor_is_called_as_its_signature_asks(compact, text, name):
    result = both(Compactors(compact))
    assert (result.text, result.attempts[0].compactor) == (text, name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"compact": "not a function"},
        {"compact": lambda text: text},
        {"compact": lambda: ""},
        {"fallback": 3},
        {"attempts": 0},
        {"attempts": True},
        {"deadline": 0},
        {"deadline": float("inf")},
        {"deadline": float("nan")},
        {"deadline": "30"},
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(arguments):
    with pytest.raises(ConfigurationError):
        Compactors(**arguments)


def test_a_deadline_may_be_as_long_as_one_likes():
    assert both(Compactors(summary, deadline=1e300)).attempts[0].outcome == "compacted"


def test_a_token_count_that_is_known_is_not_made_again():
    counted = []

    def count(text):
        counted.append(text)
        return words(text)

    result = Compactors(summary).run(TEXT, 10, count, tokens_in=777)
    assert result.attempts[0].tokens_in == 777
    assert TEXT not in counted


def test_the_outcomes_are_a_closed_set():
    assert {str(item) for item in CompactionOutcome} == {
        "compacted",
        "raised",
        "timed_out",
        "empty",
        "error_text",
        "too_long",
        "refused",
    }
