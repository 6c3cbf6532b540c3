"""What a reader makes of the decisions alone, turn by turn, is what the prompt was; for any chain and any input."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field
from itertools import count

import pytest
from assembling import Coin, Turn
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from recount import pair

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    DecisionReason,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    ToolCallEvent,
    ToolResultEvent,
    Verdict,
    describe,
)
from otel_assembly.budget import Compactors
from otel_assembly.decision import DecisionOutcome, Outcome
from otel_assembly.events import CompactionSummary, TurnStarted
from otel_assembly.recorder import NullRecorder
from otel_assembly.testing import RecordedTelemetry
from otel_assembly.tokens import CharacterCounter, TokenMeter

OUT = {DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED}
COUNTER = CharacterCounter(4)
METER = TokenMeter(COUNTER)


# --- Events -----------------------------------------------------------------------------------------------------------


def text_of(value):
    if isinstance(value, dict):
        return str(value.get("content"))
    for name in ("content", "summary", "message"):
        if hasattr(value, name):
            return getattr(value, name)
    return ""


def said(value):
    """A number by which policies choose, the same whatever copies are made."""
    return hashlib.blake2b(text_of(value).encode(), digest_size=2).digest()[0]


def _block(draw, number, chat):
    text = draw(st.sampled_from(["yes", "go on", f"remark {number}", f"long {number} " * 9]))
    what = draw(st.sampled_from(["user", "say", "call", "call", "open", "stray", "alert", "note"]))
    call = f"c{number % 3}"
    if chat:
        spelled = [{"id": call, "type": "function", "function": {"name": "f", "arguments": f'{{"n":{number}}}'}}]
        asks = {"role": "assistant", "content": None, "tool_calls": spelled}
        answers = {"role": "tool", "tool_call_id": call, "content": text}
        return {
            "user": [{"role": "user", "content": text}],
            "say": [{"role": "assistant", "content": text}],
            "call": [asks, answers],
            "open": [asks],
            "stray": [answers],
            "alert": [{"role": "system", "content": text}],
            "note": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        }[what]
    asks = ModelResponse(tool_calls=(ToolCallEvent(id=call, name="f"),))
    answers = ToolResultEvent(parent_id=call, content=text)
    stray = ToolResultEvent(parent_id="never asked", content=text)
    return {
        "user": [ModelRequest(content=text)],
        "say": [ModelResponse(content=text)],
        "call": [asks, answers],
        "open": [asks],
        "stray": [stray],
        "alert": [ObserverAlert(source="monitor", severity="warning", message=text)],
        "note": [TurnStarted(turn=number)],
    }[what]


# --- Policies of other people -----------------------------------------------------------------------------------------


@dataclass
class Filter:
    """Drops by content; nothing else."""

    rest: int
    name: str = "filter"
    pure = True

    async def apply(self, prompts, events, context):
        return prompts, [event for event in events if said(event) % 3 != self.rest]


@dataclass
class Moody:
    """Drops another part each turn."""

    turns: int = 0
    name: str = "moody"
    pure = False  # applied twice it is of another mood

    async def apply(self, prompts, events, context):
        self.turns += 1
        return prompts, [event for event in events if said(event) % 3 != self.turns % 3]


@dataclass
class Reasoner:
    """Says why, by `decide`; and lies about what it keeps, twice over."""

    rest: int
    name: str = "reasoner"
    pure = True

    async def apply(self, prompts, events, context):
        outcome = await self.decide(prompts, events, context)
        return list(outcome.prompts), list(outcome.events)

    async def decide(self, prompts, events, context):
        gone = [event for event in events if said(event) % 4 == self.rest]
        stays = [event for event in events if said(event) % 4 != self.rest]
        return Outcome(
            prompts,
            stays,
            [
                Verdict(gone, DecisionOutcome.DROPPED, DecisionReason.STALE),
                Verdict(gone[:1], DecisionOutcome.KEPT, DecisionReason.FITS),
                Verdict(stays[:1], DecisionOutcome.DROPPED, DecisionReason.DUPLICATE),
                Verdict(stays[-1:], DecisionOutcome.KEPT, DecisionReason.PINNED),
            ],
        )


@dataclass
class Slicer:
    """Decides by slices of the view it is given, and names nothing."""

    most: int
    name: str = "slicer"
    pure = True

    async def apply(self, prompts, events, context):
        return prompts, events[-self.most :]

    async def decide(self, prompts, events, context):
        return Outcome(prompts, events[-self.most :])


@dataclass
class Injector:
    """Puts an event in; another one each few events."""

    at: int
    every: int
    name: str = "injector"
    pure = False

    async def apply(self, prompts, events, context):
        note = ModelRequest(content=f"note {len(events) // self.every}")
        return [*prompts, "injected"], [*events[: self.at], note, *events[self.at :]]


@dataclass
class Shortener:
    """Replaces by shorter copies."""

    most: int
    name: str = "shortener"
    pure = False

    def _short(self, message):
        if isinstance(message, dict):
            return (
                {**message, "content": message["content"][: self.most]}
                if isinstance(message.get("content"), str)
                else message
            )
        if isinstance(message, ModelRequest | ToolResultEvent):
            return message.model_copy(update={"content": message.content[: self.most]})
        return message

    async def apply(self, prompts, events, context):
        return prompts, [self._short(event) for event in events]


@dataclass
class Copier:
    """Returns equal copies of everything."""

    name: str = "copier"
    pure = False

    async def apply(self, prompts, events, context):
        return prompts, copy.deepcopy(events)


@dataclass
class Summariser:
    """One new event stands for a stretch; its id is a new one each time."""

    keep: int
    every: int
    name: str = "summariser"
    pure = False

    async def apply(self, prompts, events, context):
        upto = max(0, (len(events) - self.keep) // self.every * self.every)
        if not upto:
            return prompts, events
        return prompts, [CompactionSummary(summary=f"{upto} events, in short"), *events[upto:]]


@dataclass
class Shuffler:
    """Turns the newest ones round."""

    newest: int
    name: str = "shuffler"
    pure = False

    async def apply(self, prompts, events, context):
        return prompts, [*events[: -self.newest], *reversed(events[-self.newest :])]


@dataclass
class Repeater:
    """Says the first event again at the end: the very object, a second time."""

    name: str = "repeater"
    pure = False

    async def apply(self, prompts, events, context):
        return prompts, [*events, *events[:1]]


@dataclass
class Reminder:
    """Puts in the very same event each turn; another one may take it out again."""

    note: ModelRequest
    name: str = "reminder"
    pure = False

    async def apply(self, prompts, events, context):
        return prompts, [*events, self.note]


@dataclass
class Rescuer:
    """Puts a reminder back, on some turns, where another one has taken it out."""

    note: ModelRequest
    every: int
    turns: int = 0
    name: str = "rescuer"
    pure = False

    async def apply(self, prompts, events, context):
        self.turns += 1
        gone = all(event is not self.note for event in events)
        return prompts, [*events, self.note] if gone and self.turns % self.every == 0 else events


@dataclass
class Flaky:
    """Raises on every other turn, after it has spoiled what it was given."""

    turns: int = 0
    name: str = "flaky"
    pure = False

    async def apply(self, prompts, events, context):
        self.turns += 1
        if self.turns % 2:
            for item in events:
                if isinstance(item, dict):
                    item.clear()
            del events[:]
            raise ValueError("not today")
        return prompts, [event for event in events if said(event) % 5]


@dataclass
class Careless(Flaky):
    """Returns what nobody can read, on every other turn."""

    name: str = "careless"

    async def apply(self, prompts, events, context):
        self.turns += 1
        return ["changed"], [object(), *events] if self.turns % 2 else events[1:]


small = st.integers(1, 6)
policies = st.one_of(
    st.builds(ConversationPolicy),
    st.builds(AlertPolicy),
    st.builds(SlidingWindowPolicy, small, st.booleans()),
    st.builds(lambda stride, more: SlidingWindowPolicy(stride + more, stride=stride), st.integers(1, 3), small),
    st.builds(
        lambda tokens, step: TokenBudgetPolicy(tokens, step_tokens=step, on_overflow="drop"),
        st.integers(60, 260),
        st.sampled_from([0, 8]),
    ),
    st.builds(
        lambda tokens, step, compact: BudgetPolicy(tokens, 0, step, "drop", Compactors() if compact else None, 20),
        st.integers(60, 260),
        st.sampled_from([0, 8]),
        st.booleans(),
    ),
    st.builds(Filter, st.integers(0, 2)),
    st.builds(Moody),
    st.builds(Reasoner, st.integers(0, 3)),
    st.builds(Slicer, small),
    st.builds(Injector, st.integers(0, 3), small),
    st.builds(Shortener, st.sampled_from([0, 5, 20])),
    st.builds(Copier),
    st.builds(Summariser, small, st.integers(1, 3)),
    st.builds(Shuffler, st.integers(2, 4)),
    st.builds(Repeater),
    st.builds(Flaky),
    st.builds(Careless),
)


def _reminded(between, after, every):
    """A chain that makes a note, may take it out, and puts it back on some turns."""
    note = ModelRequest(content="remember this")
    return [Reminder(note), *between, Rescuer(note, every), *after]


chains = st.one_of(
    st.lists(policies, max_size=4),
    st.builds(_reminded, st.lists(policies, max_size=2), st.lists(policies, max_size=1), st.integers(1, 3)),
)


# --- The reader -------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """One item, as far as the decisions tell."""

    inside: bool
    outcome: DecisionOutcome
    reason: DecisionReason
    index: int | None


@dataclass
class Model:
    """Keeps per-item state from `assembly.decisions` alone."""

    items: dict[str, State] = field(default_factory=dict)

    def turn(self, assembly, offered):
        told = set()
        # What nobody offers or makes any more is gone, and no policy has decided that.
        there = {*offered, *assembly.items, *(item.item for item in assembly.decisions)}
        self.items = {item: state for item, state in self.items.items() if item in there or not state.inside}
        for decision in assembly.decisions:
            assert (decision.item, decision.outcome, decision.index) not in told, (
                f"{decision} was told twice in one assembly"
            )
            told.add((decision.item, decision.outcome, decision.index))
            if decision.outcome is DecisionOutcome.REORDERED:
                assert self.items[decision.item].inside
                continue
            now = State(decision.outcome not in OUT, decision.outcome, decision.reason, decision.index)
            was = self.items.get(decision.item)
            assert was != now, f"{decision} is no change"
            if decision.outcome is DecisionOutcome.INJECTED:
                assert was is None, f"{decision} was there before"
            self.items[decision.item] = now
        inside = sorted(item for item, state in self.items.items() if state.inside)
        assert inside == sorted(assembly.items)


#: What takes tokens in a prompt and is no item.
NO_ITEMS = {"prompt", "tool_schemas", "framing", "separators"}


@dataclass
class Reader:
    """Reads the spans of those turns that were sampled, and knows nothing else."""

    telemetry: RecordedTelemetry
    #: Whether a policy puts shorter copies in the place of events, which take fewer tokens than what arrived.
    reshapes: bool
    tokens: dict[str, int] = field(default_factory=dict)
    last: str | None = None

    def turn(self, *, alike):
        """Read what the last turn has left, if anything; `alike`: each item costs what it does where it came in."""
        spans = self.telemetry.spans_named("assemble_context")
        self.telemetry.clear()
        for turn in map(Turn, spans):
            if "error.type" in turn.span.attributes:  # it tells what arrived, and is the one before the next
                self.tokens.update(turn.arrived)
                self.last = turn.id
            else:
                self.read(turn, alike=alike)

    def read(self, turn, *, alike):
        assert turn.previous == self.last
        self.last = turn.id
        self.tokens.update(turn.arrived)
        offered, known, out = turn.span.offered, set(turn.span.offered), set()
        for step in turn.steps:
            known.update(step.injected)
            out.difference_update(step.injected)
            out.update(step.dropped_reasons, step.compacted)
        assert len(set(offered)) == len(offered)
        assert known <= self.tokens.keys()
        assert not out & set(turn.kept)
        assert {*turn.kept, *out} == known
        tokens = [self.tokens[item] for item in turn.kept]
        if alike and not self.reshapes:
            told = turn.span.whole
            kinds = zip(told.get("assembly.kind.names", ()), told.get("assembly.kind.tokens", ()), strict=True)
            assert sum(tokens) == sum(n for kind, n in kinds if kind not in NO_ITEMS)

    def close(self):
        assert "assembly.telemetry.errors" not in self.telemetry.metrics
        self.telemetry.shutdown()


# --- The truth --------------------------------------------------------------------------------------------------------


async def truth(chain, prompts, events, context):
    """Which policy took each event out, and why, found by applying each by hand; None where it cannot be known."""
    events = History(events).view()
    out = {}
    for index, policy in enumerate(chain):
        if not getattr(policy, "pure", True) or (policy.name == "alert" and len(chain) > 1):
            return None  # an alert is delivered once, so that it cannot be applied by hand as well
        if hasattr(policy, "decide"):
            outcome = await policy.decide(prompts, events, context)
            prompts, after, verdicts = list(outcome.prompts), outcome.events, outcome.decisions
        else:
            (prompts, after), verdicts = await policy.apply(prompts, list(events), context), ()
        stays = set(map(id, after))
        why = {id(event): v.reason for v in verdicts if v.outcome in OUT for event in v.events}
        out.update(
            {
                id(event): (index, why.get(id(event), DecisionReason.POLICY))
                for event in events
                if id(event) not in stays
            }
        )
        events = after if len(after) < len(events) else events
    return out


def restates_alike(items, came, assembly):
    """Whether what restates another item in the prompt, and costs nothing there, is what does so where it came in.

    A result that is put in front of its call reads as one more of an earlier call of that id.
    """
    before = {items[at] for at in pair(came).echoes}
    now = {assembly.items[at] for at in pair(assembly.events).echoes}
    return now == before & set(assembly.items)


def rendered(assembly):
    """The prompt by item: what kind of message, every text in it, and whether that is said here for the first time."""
    facts = [describe(event) for event in assembly.events]
    echoes = pair(assembly.events).echoes
    return [
        *(("prompt", (text,), True) for text in assembly.prompts),
        *((str(fact.kind), fact.texts, at not in echoes) for at, fact in enumerate(facts)),
    ]


def check_prefix(assembly, before, *, exact, resumes):
    """The prefix is what the items of two prompts have in common, and never more bytes than they have."""
    now, prefix = rendered(assembly), assembly.prefix
    if before is None:
        assert prefix.cause == ("resumed" if resumes else "first")
        return now
    same = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
    old, new = (
        b"".join(text.encode() for _, texts, first in items if first for text in texts) for items in (before, now)
    )
    assert old.startswith(new[: prefix.bytes])
    assert prefix.previous_bytes == len(old)
    assert prefix.prompts + prefix.events <= same
    if exact and assembly.prompts == [texts[0] for kind, texts, _ in before if kind == "prompt"]:
        assert prefix.prompts + prefix.events == same
    assert (prefix.cause is None) == (
        prefix.prompts + prefix.events == len(before) and same == len(before)
    ) or not exact
    return now


def check(assembly, came, items, expected, model):
    totals = assembly.totals
    assert totals.events_in == len(came)
    assert totals.events_out == len(assembly.events) == len(assembly.items)
    assert totals.events_in + totals.events_injected == totals.events_out + totals.dropped + totals.compacted
    assert len(set(assembly.items)) == len(assembly.items)
    if expected is None:
        return
    event("reasons checked against the truth")
    for item, message in zip(items, came, strict=True):
        state = model.items[item]
        if id(message) in expected:
            assert (state.inside, state.index, state.reason) == (False, *expected[id(message)])
        else:
            assert state.inside
    identities = set(map(id, came))
    made = [event for event in assembly.events if id(event) not in identities]
    assert len(made) == totals.events_injected, "what came out is neither what came in nor a summary of it"


RELAXED = settings(
    deadline=None,
    max_examples=40,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
LONG = settings(RELAXED, max_examples=300)


def reader_of(chain, pattern):
    """Telemetry of some of the turns, and who reads it; None where nobody looks on."""
    if not pattern:
        return None
    telemetry = RecordedTelemetry(sampler=Coin(bool(pattern >> (turn % 6) & 1) for turn in count(1)))
    return Reader(telemetry, any(isinstance(policy, Shortener) for policy in chain))


async def replay(data, chain, pattern, turns, *, chat, grow, rearrange=None):
    reader, model, context = reader_of(chain, pattern), Model(), Context()
    recorder = NullRecorder() if reader is None else reader.telemetry.recorder
    assembler = Assembler(chain, on_policy_error="skip", counter=COUNTER, recorder=recorder)
    # One that does nothing says which item each event is.
    plain, beside = Assembler([], counter=COUNTER, recorder=NullRecorder()), Context()
    events, before_it = grow, None
    number = 0
    for turn in range(turns):
        for _ in range(data.draw(st.integers(0, 3))):
            number += 1
            for item in _block(data.draw, number, chat):
                events.append(item)
        if rearrange is not None:
            events = rearrange(data.draw, events, number)
        came = list(events)
        before = copy.deepcopy(came) if chat else None
        items = (await plain.assemble(["prompt"], events, beside)).items
        try:
            expected = await truth(chain, ["prompt"], came, Context().for_assembly(METER))
            assembly = await assembler.assemble(["prompt"], events, context)
        except ContextOverflowError:
            assert list(events) == came
            continue
        assert assembly.turn == turn
        assert list(events) == came
        if chat:
            assert came == before, "an event was changed"
        assert all(a is b for a, b in zip(events, came, strict=True))
        if data.draw(st.booleans()):
            assembly.totals  # noqa: B018  # counting, or not counting yet, must make no difference
        model.turn(assembly, items)
        check(assembly, came, items, expected, model)
        fresh = await Assembler([], counter=COUNTER).assemble(assembly.prompts, assembly.events)
        assert assembly.totals.tokens_out == fresh.totals.tokens_out
        resumes = any(str(describe(message).kind) in {"response", "tool_call"} for message in came)
        before_it = check_prefix(assembly, before_it, exact=not (chat and rearrange), resumes=resumes)
        if reader is not None:
            reader.turn(alike=restates_alike(items, came, assembly))
    if reader is not None:
        reader.close()


@RELAXED
@given(st.data(), chains, st.booleans(), st.integers(0, 63))
async def test_a_history_is_explained_by_its_decisions(data, chain, chat, pattern):
    await replay(data, chain, pattern, 6, chat=chat, grow=History())


@RELAXED
@given(st.data(), chains, st.booleans(), st.integers(0, 63))
async def test_a_growing_list_is_explained_by_its_decisions(data, chain, chat, pattern):
    await replay(data, chain, pattern, 6, chat=chat, grow=[])


def _rebuilt(draw, events, number):
    """What frameworks do to their lists between turns."""
    how = draw(st.sampled_from(["same", "copies", "same list", "cut", "undo", "summary", "swap", "shorten", "again"]))
    if not events or how == "same list":
        return events
    at = draw(st.integers(0, len(events) - 1))
    if how == "copies":
        return copy.deepcopy(events)
    if how == "cut":
        return events[at:]
    if how == "undo":
        return events[:at]
    if how == "summary":
        return [CompactionSummary(summary=f"up to {number}"), *events[at:]]
    if how == "swap":
        return [*events[at:], *events[:at]]
    if how == "again":
        return [*events, copy.deepcopy(events[at])]
    if how == "shorten":
        one = events[at]
        if isinstance(one, dict) and isinstance(one.get("content"), str):
            one["content"] = one["content"][:7]
        elif isinstance(one, ModelRequest):
            return [*events[:at], one.model_copy(update={"content": one.content[:7]}), *events[at + 1 :]]
    return list(events)


@RELAXED
@given(st.data(), chains, st.booleans(), st.integers(0, 63))
async def test_a_list_that_is_rebuilt_is_explained_by_its_decisions(data, chain, chat, pattern):
    await replay(data, chain, pattern, 7, chat=chat, grow=[], rearrange=_rebuilt)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("grow", [list, History])
@LONG
@given(data=st.data(), chain=chains, chat=st.booleans(), pattern=st.integers(0, 63))
async def test_hundreds_of_conversations_are_explained_by_their_decisions(grow, data, chain, chat, pattern):
    await replay(data, chain, pattern, 6, chat=chat, grow=grow())


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@LONG
@given(st.data(), chains, st.booleans(), st.integers(0, 63))
async def test_hundreds_of_lists_that_are_rebuilt_are_explained_by_their_decisions(data, chain, chat, pattern):
    await replay(data, chain, pattern, 7, chat=chat, grow=[], rearrange=_rebuilt)
