"""What it costs to look on while a framework's reducers run, against what the SDK takes for the same spans alone.

Each turn adds two messages to a conversation that a framework holds in a list; its reducers are two functions. Beside
them runs the SDK by itself: the same three spans with the same attributes, the same metric records, and nothing worked
out. It is the processor time of the thread that counts; what a message takes when it is first read and counted is in
no turn that counts.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Size, Table, Timing, race, times
from benchmarks.telemetry import Watch, recording, sampled_out
from otel_assembly import EventFacts, describe
from otel_assembly.instrumentation import Instrumentation
from otel_assembly.messages import EventKind
from otel_assembly.telemetry import OpenTelemetryRecorder
from otel_assembly.tokens import CharacterCounter

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES: dict[Size, tuple[tuple[int, ...], int]] = {
    "full": ((1_000, 10_000, 100_000), 100),
    "quick": ((1_000, 10_000), 60),
    "tiny": ((100, 200), 4),
}
WARM_UP = 15


@dataclass(eq=False)
class Message:
    """A framework's message: no copy of ours, no id."""

    number: int
    text: str


@describe.register
def _(message: Message) -> EventFacts:
    return EventFacts(EventKind.RESPONSE if message.number % 2 else EventKind.REQUEST, message.text)


def messages(start: int, count: int) -> list[Any]:
    return [Message(number, f"message {number} says a few words of text") for number in range(start, start + count)]


REDUCERS: dict[str, tuple[Any, Any]] = {
    "nothing trimmed": (lambda e: e, lambda e: e),
    "window of 50": (lambda e: e, lambda e: e[-50:]),
    "window of 90 %": (lambda e: e, lambda e: e[len(e) // 10 :]),
    "head 5 and tail 45": (lambda e: e, lambda e: e[:5] + e[-45:]),
    "every other, then 50": (lambda e: e[::2], lambda e: e[-50:]),
}


class Looker:
    """A framework with two reducers, looked upon."""

    def __init__(self, recorder: Any, reducers: tuple[Any, Any], length: int) -> None:
        self.instrumentation = Instrumentation("bench", recorder)
        self.instrumentation.observed._counter = CharacterCounter(4)
        self.reducers = reducers
        self.events = messages(0, length)

    def turn(self, _: Any = None) -> None:
        events, (first, second) = self.events, self.reducers
        assembly = self.instrumentation.observed.begin(self, events, prompts=("be kind",), agent_name="bench")
        if assembly is None:
            second(first(events))
            return
        with assembly.step("first", kind="reduction") as step:
            made = first(events)
            step.out(made)
        with assembly.step("second", kind="reduction", config={"max": 50}) as step:
            made = second(made)
            step.out(made)
        assembly.end()

    def grow(self) -> None:
        self.events += messages(len(self.events), 2)


def _by_hand(reducers: tuple[Any, Any]) -> Callable[[Any], None]:
    watch = Watch()
    looker = Looker(watch.recorder, reducers, 1_000)
    for _ in range(4):
        watch.forget()
        looker.turn()
        looker.grow()
    return watch.by_hand()


def _cell(timings: dict[str, Timing]) -> str:
    ours, by_hand, bare = (timings[name].median * 1e6 for name in ("ours", "by hand", "bare"))
    return f"{ours - bare:,.0f} ({by_hand:,.0f}) **{times((ours - bare) / by_hand)}**"


async def report(size: Size) -> list[Table]:
    """A row for each pair of reducers and each length."""
    lengths, rounds = SIZES[size]
    table = Table(
        "observed",
        "two reducers of a framework, a turn that added two messages: added median µs, including the SDK; in brackets "
        "the same spans and points by hand; and the ratio",
        ["events", *(f"{length:,}" for length in lengths)],
    )
    for name, reducers in REDUCERS.items():
        first, second = reducers
        for length in lengths:
            lookers = {"ours": Looker(recording(), reducers, length), "bare": Looker(None, reducers, length)}
            runners: dict[str, Callable[[Any], Any]] = {
                "ours": lookers["ours"].turn,
                "by hand": _by_hand(reducers),
                "bare": lambda _, value=lookers["bare"], f=first, s=second: s(f(value.events)),
            }
            table.put(name, _cell(await _race(runners, lookers, rounds)))
    looker = Looker(sampled_out(), REDUCERS["window of 50"], lengths[-1])
    timings = await _race({"out": looker.turn}, {"out": looker}, rounds)
    bare = Instrumentation("bench", OpenTelemetryRecorder())
    started = time.thread_time()
    for _ in range(100_000):
        bare.is_enabled()
    checked = (time.thread_time() - started) * 10
    table.notes += [
        f"Sampled out, no metrics, {lengths[-1]:,} events: {timings['out'].median * 1e6:.1f} µs.",
        f"No provider configured: {checked:.2f} µs.",
    ]
    return [table]


async def _race(runners: dict[str, Callable[[Any], Any]], lookers: dict[str, Looker], rounds: int) -> dict[str, Timing]:
    def grow(name: str, one: int) -> None:
        if name in lookers:
            lookers[name].grow()

    gc.collect()
    gc.freeze()
    timings = await race(runners, rounds, before=grow, warm_up=WARM_UP, clock=time.thread_time)
    gc.unfreeze()
    return timings
