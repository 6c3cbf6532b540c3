"""`BudgetPolicy`: the allocator inside a chain, on any framework's events; the reducer to start with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from otel_assembly._internal.arguments import OnOverflow, one_of
from otel_assembly.budget.compaction import Compact, Compactors, compactors_of
from otel_assembly.decision import Compaction, Outcome, Overflow, OverflowCause
from otel_assembly.errors import ConfigurationError, ContextOverflowError
from otel_assembly.history.view import View
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.messages.replacements import summary_like, summary_reply
from otel_assembly.policies.base import ALTERNATES, DecidingPolicy, PolicyLimit, as_view, at_least
from otel_assembly.policies.budget_plan import BudgetPlan
from otel_assembly.policies.compaction_cache import CompactionCache, compaction_cache_of, takes_summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.decision import Verdict
    from otel_assembly.history.view import View


logger: Final = logging.getLogger("otel_assembly")

#: What configuration files call the compactor that needs no model.
EXTRACTIVE: Final = "extractive"


class BudgetPolicy(DecidingPolicy):
    """Keeps the rendered prompt within ``window − output_reserve`` tokens: the allocator, as a policy.

    Prompts and history are blocks by kind: instructions, tool schemas, the newest user request and calls that await an
    approval are fixed; then come the newest tool call with its results, or the newest message; then summaries; then
    older turns, from the newest backwards. The order of events never changes. With ``step_tokens=0`` and nothing that
    compacts, what it keeps is what `allocate` keeps of those blocks, a summary that does not fit being a turn among
    others; that it reads no further back than there is room for changes the cost and not the answer.

    The cut through older turns moves in steps, so that for most turns the prompt begins as it did before and is read
    from the provider's cache: then fewer turns may be kept than `allocate` would keep, never others. What that costs is
    up to `step_tokens` of the budget now and then: the span's ``assembly.budget.utilization`` tells.

    Args:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply. Of the rest, the context's `budget_ratio` is held.
        step_tokens: How far the cut moves at a time: only to atoms that begin in another cell of ``4 × step_tokens``
            bytes than the atom before them; 0 moves it to any atom, and so does a step that would keep less than a
            quarter of what there is room for.
        on_overflow: What to do where the newest atom does not fit although the fixed content does: ``raise`` or
            ``drop``, which leaves it out whole, reason ``over_budget``.
        compact: What makes texts shorter, as for `allocate`; ``"extractive"`` (or ``Compactors()``) needs no model.
            With it, a summary stands for the turns that are cut, made anew when the cut moves; and a tool's result that
            does not fit is shortened to half of what is free instead of an overflow. None: what does not fit is
            dropped.
        summary_tokens: Tokens of that summary at most; so many are kept free for it once something is cut.

    Raises:
        ConfigurationError: A number cannot work.
    """

    name: str = "budget"
    limit: ClassVar[PolicyLimit | None] = PolicyLimit(
        "window", reserve="output_reserve", step="step_tokens", first=frozenset({EventKind.SUMMARY})
    )
    replayable: ClassVar[bool] = True
    replay_defaults: ClassVar[Mapping[str, Any]] = {"on_overflow": "drop"}

    def __init__(
        self,
        window: int,
        output_reserve: int,
        step_tokens: int = 2_000,
        on_overflow: OnOverflow = "raise",
        compact: Compact | Compactors | Literal["extractive"] | None = None,
        summary_tokens: int = 500,
    ) -> None:
        self.window = at_least(self.name, "window", window)
        self.output_reserve = at_least(self.name, "output_reserve", output_reserve, least=0)
        if output_reserve >= window:
            raise ConfigurationError(
                f"{self.name}: output_reserve ({output_reserve}) leaves nothing of the window ({window}); it must be "
                "smaller"
            )
        self.step_tokens = at_least(self.name, "step_tokens", step_tokens, least=0)
        one_of(f"{self.name}: on_overflow", on_overflow, OnOverflow)
        self.on_overflow = on_overflow
        self.summary_tokens = at_least(self.name, "summary_tokens", summary_tokens)
        self._compact = compact
        self._compactors = _compactors(compact)
        self._warned_of_no_room = False

    @property
    def compacts(self) -> bool:
        """Whether it makes texts shorter, and does not only leave them out."""
        return self._compactors is not None

    @property
    def max_tokens(self) -> int:
        """The most tokens that the rendered prompt may take."""
        return self.window - self.output_reserve

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings as given."""
        return {
            **{name: value for name, value in super().config.items() if name != "summary_tokens"},
            "window": self.window,
            "output_reserve": self.output_reserve,
            "step_tokens": self.step_tokens,
            "on_overflow": self.on_overflow,
            **({"compact": EXTRACTIVE} if self._compact == EXTRACTIVE else {}),
            **({"summary_tokens": self.summary_tokens} if self._compactors is not None else {}),
        }

    def config_in(self, context: Context) -> Mapping[str, int | float | bool | str | None]:
        """The settings, with a reserve that leaves of the window what is held in this assembly."""
        held_back = self.max_tokens - context.held(self.max_tokens)
        config = {**self.config, "output_reserve": self.output_reserve + held_back} if held_back else self.config
        config = self.with_rules(config, context)
        has_replies = self._compactors is not None and context.provider_rules().alternates
        return {**config, ALTERNATES: True} if has_replies else config

    @classmethod
    def settings_to_rerun(cls, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Without a compactor, which has no words to work on."""
        replayed = super().settings_to_rerun(settings)
        return replayed and {name: replayed[name] for name in replayed if name not in {"compact", "summary_tokens"}}

    @property
    def only_in_code(self) -> str:
        """``compact``, where it is a function or an object."""
        return "compact" if self._compactors is not None and self._compact != EXTRACTIVE else ""

    @property
    def setting_warnings(self) -> Sequence[str]:
        """Return a warning if no budget of these settings has room for a summary."""
        if self._compactors is None or self.summary_tokens < self.max_tokens:
            return ()
        problem = (
            f"summary_tokens ({self.summary_tokens}) leaves no room in the budget of {self.max_tokens} tokens "
            f"(window {self.window} minus output_reserve {self.output_reserve}), so that no summary is ever made: "
            "dropped events are not summarized. Lower summary_tokens, or raise the window."
        )
        return (problem,)

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return what fits.

        Raises:
            ContextOverflowError: The fixed content alone is over the budget; or the newest atom does not fit beside it
                and `on_overflow` is ``raise``.
        """
        view, budget = as_view(events), context.held(self.max_tokens)
        cache = compaction_cache_of(view, self) if self._compactors is not None else None
        shortened = cache.tokens(context.meter) if cache is not None else None
        plan = BudgetPlan(view, context.meter, prompts, context, budget, shortened)
        drops = self.on_overflow == "drop"
        compactions: list[Compaction] = []
        try:
            plan.place_fixed(self.name)
            if cache is not None and self._compactors is not None and plan.newest_tokens > plan.sharing.free:
                compactions += await cache.shorten_newest(view, plan, budget, self._compactors, context)
            overflow = plan.place_newest(self.on_overflow, self.name)
        except ContextOverflowError as error:
            if context.listening:
                found = Overflow(budget, error.needed, OverflowCause(error.cause))
                error.report = plan.report(self.window, None, found, drops_newest=drops)
            raise
        plan.place_summaries()
        cut = plan.cut(self.step_tokens)
        kept, verdicts = plan.selected(cut)
        summary: Compaction | None = None
        if cache is not None and cut > plan.leading:
            summary = await self._summary(plan, view, cache, context)
            if summary is not None:
                if summary.into is not None:
                    kept, verdicts = self._beside_summary(plan, view)
                    summary = cache.with_reply(summary, kept, plan.leading)
                compactions.append(summary)
        report = None
        if context.listening:
            reserved = self._summary_reserve(plan, view)
            report = plan.report(self.window, kept, overflow, drops_newest=drops, summary=summary, reserved=reserved)
        outcome = Outcome(prompts, kept, verdicts, budget=budget, fixed=plan.fixed, overflow=overflow, report=report)
        return outcome if cache is None else cache.edited(outcome, kept, plan.leading, compactions)

    async def _summary(
        self, plan: BudgetPlan, view: View, cache: CompactionCache, context: Context
    ) -> Compaction | None:
        """A summary of what is cut where room is kept for one; None where there is no room, or nothing to say."""
        if self._compactors is None or not takes_summary(view[plan.leading]):
            return None
        room = self.reserved(plan, view)
        if room > plan.sharing.free:
            self._warn_of_no_room(plan, room)
            return None
        gone = plan.gone(self._beside_summary(plan, view)[1])
        if gone is None:
            return None
        room = self.summary_tokens + plan.meter.event(describe(_empty_summary(plan, view)))
        return await cache.summarise(gone, self.summary_tokens, room, self._compactors, context)

    def _beside_summary(self, plan: BudgetPlan, view: View) -> tuple[View, list[Verdict]]:
        return plan.selected(plan.cut(self.step_tokens, self.reserved(plan, view)), summarized=True)

    def _warn_of_no_room(self, plan: BudgetPlan, room: int) -> None:
        """Log once that events are dropped without the summary that `compact` asks for."""
        if self._warned_of_no_room or self.setting_warnings:  # an `Assembler` has logged those already
            return
        self._warned_of_no_room = True
        logger.warning(
            "%s: no summary was made of the events that were dropped: it needs up to %d tokens, and %d of the budget "
            "are free beside the fixed content (%d tokens), the newest tool call or message, and earlier summaries. "
            "Lower summary_tokens (%d) or raise the window (%d). This is logged once",
            self.name,
            room,
            max(0, plan.sharing.free),
            plan.fixed,
            self.summary_tokens,
            self.window,
        )

    def _summary_reserve(self, plan: BudgetPlan, view: View) -> int:
        """Return what is kept free for a summary once something is cut; 0 if none can stand among these events."""
        stands = self._compactors is not None and plan.leading < len(view) and _empty_summary(plan, view) is not None
        return self.reserved(plan, view) if stands else 0

    def reserved(self, plan: BudgetPlan, view: View) -> int:
        """Return the tokens that are kept free for a summary, its message's framing and the reply to it included."""
        empty = _empty_summary(plan, view)
        reply = summary_reply(empty, empty)
        made = [empty] if reply is None else [empty, reply]
        return self.summary_tokens + sum(plan.meter.event(describe(event)) for event in made)


def _empty_summary(plan: BudgetPlan, view: View) -> Any:
    # A system message in front can have another form than the messages that the summary stands for.
    return summary_like(view[plan.leading], "", ())


def _compactors(compact: Any) -> Compactors | None:
    if compact is None or isinstance(compact, Compactors):
        return compact
    if isinstance(compact, str):
        if compact != EXTRACTIVE:
            raise ConfigurationError(f"budget: compact must be {EXTRACTIVE!r} or a function, got {compact!r}")
        return Compactors()
    return compactors_of(compact)
