"""Random conversations under random chains, what truly became of every item, and a sampler that says no at random."""

from __future__ import annotations

from dataclasses import dataclass, field

from counting import WordCounter
from hypothesis import strategies as st
from strategies import as_events, scripts

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyError,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.decision import DecisionOutcome
from otel_assembly.events import CompactionSummary


class DropAnswers:
    name = "drop_answers"

    async def apply(self, prompts, events, context):
        return prompts, [e for e in events if not (isinstance(e, ModelResponse) and not e.tool_calls)]


class Summarise:
    """Stands one event in the place of all but the last four."""

    name = "summarise"

    async def apply(self, prompts, events, context):
        if len(events) < 6:
            return prompts, list(events)
        return prompts, [CompactionSummary(id=f"s{len(events) // 3}", summary="so far"), *events[-4:]]


class Shorten:
    """Puts copies in the place of long requests."""

    name = "shorten"

    async def apply(self, prompts, events, context):
        return prompts, [
            e.model_copy(update={"content": e.content[:10]}) if isinstance(e, ModelRequest) else e for e in events
        ]


class Remind:
    name = "remind"

    async def apply(self, prompts, events, context):
        return [*prompts, "remember"], [*events, ModelRequest(id=f"r{len(events) // 2}", content="do not forget")]


class Newest:
    """The newest event first: an order that no policy of ours would make."""

    name = "newest"

    async def apply(self, prompts, events, context):
        return prompts, [*events[-1:], *events[:-1]]


class Flaky:
    name = "flaky"

    async def apply(self, prompts, events, context):
        if len(events) % 3 == 0:
            raise RuntimeError("no luck")
        return prompts, list(events)[1:]


POLICIES = {
    "conversation": lambda n: ConversationPolicy(),
    "window": lambda n: SlidingWindowPolicy(n, transparent=True),
    "stride": lambda n: SlidingWindowPolicy(n + 1, stride=2),
    "budget": lambda n: TokenBudgetPolicy(30 * n, on_overflow="drop"),
    "strict_budget": lambda n: TokenBudgetPolicy(40 * n),
    "alert": lambda n: AlertPolicy(),
    "drop_answers": lambda n: DropAnswers(),
    "summarise": lambda n: Summarise(),
    "shorten": lambda n: Shorten(),
    "remind": lambda n: Remind(),
    "newest": lambda n: Newest(),
    "flaky": lambda n: Flaky(),
}

#: Those that give events a new order, or put others in their place.
REFRAMING = {"summarise", "shorten", "remind", "newest"}

chains = st.lists(st.tuples(st.sampled_from(sorted(POLICIES)), st.integers(1, 6)), min_size=1, max_size=3)


@dataclass
class Run:
    """A conversation in turns: each turn's input, and whether its span is sampled."""

    chain: list
    events: list
    cuts: list
    edits: list
    sampled: list
    as_history: bool


@st.composite
def runs(draw):
    events = as_events(draw(scripts(max_blocks=7)))
    turns = draw(st.integers(2, 5))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), min_size=turns, max_size=turns)))
    edits = draw(st.lists(st.sampled_from(["", "", "swap", "cut", "copy"]), min_size=turns, max_size=turns))
    sampled = draw(st.lists(st.booleans(), min_size=turns, max_size=turns))
    return Run(draw(chains), events, cuts, edits, sampled, draw(st.booleans()))


def _edited(events, edit):
    """A list as a caller might rearrange it between two turns."""
    if edit == "swap" and len(events) > 1:
        return [*events[1:2], *events[:1], *events[2:]]
    if edit == "cut" and len(events) > 2:
        return events[1:]
    if edit == "copy" and events:
        return [e if isinstance(e, dict) else e.model_copy() for e in events]
    return list(events)


@dataclass
class Truth:
    """What became of every item, by what the assemblies themselves said: after each turn that sent something."""

    kept: dict = field(default_factory=dict)
    exits: dict = field(default_factory=dict)
    tokens: dict = field(default_factory=dict)
    turns: list = field(default_factory=list)
    _now: dict = field(default_factory=dict)

    def take(self, assembly):
        for decision in assembly.decisions:
            if decision.outcome in {DecisionOutcome.DROPPED, DecisionOutcome.COMPACTED}:
                why = (str(decision.outcome), str(decision.reason), decision.policy, decision.index)
                self._now[decision.item] = why
            else:
                self._now.pop(decision.item, None)
            if decision.tokens is not None:
                self.tokens[decision.item] = decision.tokens
        self.turns.append(assembly.turn)
        self.kept[assembly.turn] = assembly.items
        self.exits[assembly.turn] = dict(self._now)


async def played(run, recorder):
    """Play a run, and return the truth of it."""
    policies = [POLICIES[name](n) for name, n in run.chain]
    assembler = Assembler(policies, counter=WordCounter(), recorder=recorder, on_policy_error="skip")
    context, history, truth = Context(), History(), Truth()
    for cut, edit in zip(run.cuts, run.edits, strict=True):
        if run.as_history:
            history.extend(run.events[len(history) : cut])
        given = history if run.as_history else _edited(run.events[:cut], edit)
        try:
            truth.take(await assembler.assemble(["be kind"], given, context))
        except AssemblyError:
            continue
    return truth
