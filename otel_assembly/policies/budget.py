"""`BudgetPolicy`: limits the prompt's tokens with the rules of `allocate`, for the events of any framework."""

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
from otel_assembly.policies.base import ALTERNATES, DecidingPolicy, PolicyLimit, as_view, at_least, waits_if
from otel_assembly.policies.budget_plan import BudgetPlan
from otel_assembly.policies.compaction_cache import CompactionCache, can_summarize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.decision import Verdict
    from otel_assembly.history.view import View


logger: Final = logging.getLogger("otel_assembly")

#: The value of `compact` in configuration files: select sentences by rules, without a model.
EXTRACTIVE: Final = "extractive"


class BudgetPolicy(DecidingPolicy):
    """Keep the rendered prompt within ``window − output_reserve`` tokens.

    The policy keeps content in this order of priority, like `allocate`:

    1. Fixed content, which is never dropped: prompts, leading system messages, tool schemas, the newest user request,
       and calls that await an approval.
    2. The newest atom: the newest tool call with its results, or the newest message.
    3. Summaries, newest first.
    4. Older turns, newest first.

    The order of events never changes. With ``step_tokens=0`` and no compactor, `allocate` would keep the same content,
    with one difference: this policy treats a summary that does not fit like other turns.

    Older turns are dropped in steps. Most turns then start with the same events as the turn before, which the
    provider's cache can serve. A step may leave up to `step_tokens` tokens of the budget unused; the span's
    ``assembly.budget.utilization`` records how full the budget is.

    Args:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply. The context's `budget_ratio` lowers the rest.
        step_tokens: How many tokens of older turns are dropped at a time. The conversation is divided into cells of
            ``4 × step_tokens`` bytes, and the oldest kept turn is the first of a cell. With 0, or if that would keep
            less than a quarter of the available tokens, any turn can be the oldest.
        on_overflow: What happens if the fixed content fits but the newest atom does not: ``raise`` an error, or
            ``drop`` the atom whole, with the reason ``over_budget``.
        compact: Shortens texts, as for `allocate`. ``"extractive"`` (or ``Compactors()``) needs no model. A summary
            then replaces the dropped turns, and a new summary is made when more turns are dropped. A tool result that
            does not fit is shortened to half of the free tokens. None: drop what does not fit.
        summary_tokens: The most tokens of the summary's text. These tokens are reserved as soon as an event is dropped.

    Raises:
        ConfigurationError: A number is out of range.
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
        """Whether the policy compacts texts, in addition to dropping events."""
        return self._compactors is not None

    @property
    def max_tokens(self) -> int:
        """The most tokens that the rendered prompt may have."""
        return self.window - self.output_reserve

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings, except `compact` if it is a function or an object, and `summary_tokens` without `compact`."""
        return {
            **{name: value for name, value in super().config.items() if name != "summary_tokens"},
            "window": self.window,  # also of a subclass whose constructor has other parameters
            "output_reserve": self.output_reserve,
            "step_tokens": self.step_tokens,
            "on_overflow": self.on_overflow,
            **({"compact": EXTRACTIVE} if self._compact == EXTRACTIVE else {}),
            **({"summary_tokens": self.summary_tokens} if self._compactors is not None else {}),
        }

    def config_in(self, context: Context) -> Mapping[str, int | float | bool | str | None]:
        """Return the settings that are in effect in this assembly, for the policy's span.

        `output_reserve` includes the tokens that the policy may not use because of the context's `budget_ratio`.
        """
        unusable = self.max_tokens - context.apply_budget_ratio(self.max_tokens)
        config = {**self.config, "output_reserve": self.output_reserve + unusable} if unusable else self.config
        config = self.with_rules(config, context)
        has_replies = self._compactors is not None and context.provider_rules().alternates
        return {**config, ALTERNATES: True} if has_replies else config

    @classmethod
    def settings_to_rerun(cls, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the settings with which `explain` runs the policy again on recorded values.

        The result does not contain `compact` and `summary_tokens`, because spans record no text to summarize.
        """
        replayed = super().settings_to_rerun(settings)
        return replayed and {name: replayed[name] for name in replayed if name not in {"compact", "summary_tokens"}}

    @property
    def only_in_code(self) -> str:
        """The name ``compact`` if no configuration file can contain this setting; else empty.

        That is the case if `compact` is a function or an object.
        """
        return "compact" if self._compactors is not None and self._compact != EXTRACTIVE else ""

    @property
    def setting_warnings(self) -> Sequence[str]:
        """A warning if `summary_tokens` leaves no room in the budget, so that no summary is ever made."""
        if self._compactors is None or self.summary_tokens < self.max_tokens:
            return ()
        problem = (
            f"summary_tokens ({self.summary_tokens}) leaves no room in the budget of {self.max_tokens} tokens "
            f"(window {self.window} minus output_reserve {self.output_reserve}), so that no summary is ever made: "
            "dropped events are not summarized. Lower summary_tokens, or raise the window."
        )
        return (problem,)

    @waits_if(lambda policy, _: policy.compacts)
    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the events that fit in the budget, with the summary if one was made, and the verdicts.

        Raises:
            ContextOverflowError: The fixed content exceeds the budget; or the newest atom (a tool call with its
                results, or a message) does not fit in the rest, and `on_overflow` is ``raise``.
        """
        view, budget = as_view(events), context.apply_budget_ratio(self.max_tokens)
        cache: CompactionCache | None = None
        shortened: dict[int, int] = {}
        if self._compactors is not None:
            cache = view.history.kept_for.setdefault(self, CompactionCache())
            shortened = {position: context.meter.event(describe(event)) for position, event in cache.short.items()}
        plan = BudgetPlan(view, context.meter, prompts, context, budget, shortened)
        drops = self.on_overflow == "drop"
        compactions: list[Compaction] = []
        try:
            plan.place_fixed(self.name)
            if cache is not None and self._compactors is not None and plan.newest_tokens > plan.free:
                compactions += await cache.shorten_newest(view, plan, budget, self._compactors, context)
            overflow = plan.place_newest(self.on_overflow, self.name)
        except ContextOverflowError as error:
            if context.is_enabled:
                exceeded = Overflow(budget, error.needed, OverflowCause(error.cause))
                error.report = plan.report(self.window, None, exceeded, drops_newest=drops)
            raise
        plan.place_summaries()
        cut = plan.cut(self.step_tokens)
        kept, verdicts = plan.selected(cut)
        summary: Compaction | None = None
        if cache is not None and cut > plan.leading:
            summary = await self._summary(plan, view, cache, context)
            if summary is not None:
                if summary.into is not None:
                    kept, verdicts = self._selected_with_reserve(plan, view)
                    summary = cache.with_reply(summary, kept, plan.leading)
                compactions.append(summary)
        report = None
        if context.is_enabled:
            # No summary is possible without a compactor, or if no function creates one for the type of the events.
            possible = cache is not None and plan.leading < len(view) and _empty_summary(plan, view) is not None
            reserved = self.reserved(plan, view) if possible else 0
            report = plan.report(self.window, kept, overflow, drops_newest=drops, summary=summary, reserved=reserved)
        outcome = Outcome(prompts, kept, verdicts, budget=budget, fixed=plan.fixed, overflow=overflow, report=report)
        made = summary if summary is not None and summary.into is not None else None
        return outcome if cache is None else cache.edited(outcome, kept, plan.leading, compactions, made)

    async def _summary(
        self, plan: BudgetPlan, view: View, cache: CompactionCache, context: Context
    ) -> Compaction | None:
        """Return the summary of the dropped events; None if there is no room for it, or nothing to summarize.

        If every attempt to make the summary failed, the returned `Compaction` has no replacement.
        """
        if self._compactors is None or not can_summarize(view[plan.leading]):
            return None
        room = self.reserved(plan, view)
        if room > plan.free:
            if not (self._warned_of_no_room or self.setting_warnings):  # an `Assembler` logs `setting_warnings` itself
                self._warned_of_no_room = True
                logger.warning(
                    "%s: no summary was made of the events that were dropped: it needs up to %d tokens, but only %d "
                    "are free next to the fixed content (%d tokens), the newest tool call or message, and earlier "
                    "summaries. Lower summary_tokens (%d) or raise the window (%d). This is logged once",
                    self.name,
                    room,
                    max(0, plan.free),
                    plan.fixed,
                    self.summary_tokens,
                    self.window,
                )
            return None
        dropped = plan.summarizable(self._selected_with_reserve(plan, view)[1])
        if dropped is None:
            return None
        room = self.summary_tokens + plan.meter.event(describe(_empty_summary(plan, view)))
        return await cache.summarize(dropped, self.summary_tokens, room, self._compactors, context)

    def _selected_with_reserve(self, plan: BudgetPlan, view: View) -> tuple[View, list[Verdict]]:
        """Return the events that fit next to a summary, and the verdicts on the others."""
        return plan.selected(plan.cut(self.step_tokens, self.reserved(plan, view)), summarized=True)

    def reserved(self, plan: BudgetPlan, view: View) -> int:
        """Return the tokens to reserve for a summary's text and framing, and for an assistant message after it."""
        empty = _empty_summary(plan, view)
        reply = summary_reply(empty, empty)
        events = [empty] if reply is None else [empty, reply]
        return self.summary_tokens + sum(plan.meter.event(describe(event)) for event in events)


def _empty_summary(plan: BudgetPlan, view: View) -> Any:
    # Take the type from the first event after the leading system messages, which may be of another type.
    return summary_like(view[plan.leading], "", ())


def _compactors(compact: Any) -> Compactors | None:
    if compact is None or isinstance(compact, Compactors):
        return compact
    if isinstance(compact, str):
        if compact != EXTRACTIVE:
            raise ConfigurationError(f"budget: compact must be {EXTRACTIVE!r} or a function, got {compact!r}")
        return Compactors()
    return compactors_of(compact)
