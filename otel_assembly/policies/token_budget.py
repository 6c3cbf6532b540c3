"""`TokenBudgetPolicy`: a limit in tokens, of the whole rendered prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly._internal.arguments import OnOverflow, one_of
from otel_assembly.decision import Outcome
from otel_assembly.policies.base import DecidingPolicy, PolicyLimit, as_view, at_least
from otel_assembly.policies.budget_plan import BudgetPlan
from otel_assembly.tokens import CharacterCounter, TokenMeter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context


class TokenBudgetPolicy(DecidingPolicy):
    """Keeps the newest atoms whose prompt, with all that is fixed, takes at most `max_tokens` tokens (as in AG2).

    Counted is what is rendered: prompts, tool schemas, message framing and the full text of every event. Fixed are the
    prompts, the schemas, the reply's priming, the system messages that lead the events, calls that await an approval,
    and the newest user request. It is the rule of `BudgetPolicy`, with summaries as turns among others.

    Args:
        max_tokens: The most tokens that the rendered prompt may take; of them, the context's `budget_ratio` is held.
        chars_per_token: Estimate by this many characters a token instead of counting with the model's tokenizer.
        transparent: Append a note to the prompts when something was dropped, and there is room for it.
        step_tokens: The cut moves only at atoms that begin in another cell of ``4 × step_tokens`` bytes than the atom
            before them, so that the prompt's beginning stays the same, and cached, for most turns; 0 cuts at any atom,
            and so does a step that would keep less than a quarter of what there is room for.
        on_overflow: What to do where the newest atom does not fit although the fixed content does: ``raise`` or
            ``drop``, which leaves it out whole, reason ``over_budget``.

    Raises:
        ConfigurationError: A limit that cannot work.
    """

    name: str = "token_budget"
    limit: ClassVar[PolicyLimit | None] = PolicyLimit("max_tokens", step="step_tokens")
    replayable: ClassVar[bool] = True
    replay_defaults: ClassVar[Mapping[str, Any]] = {"on_overflow": "drop"}

    def __init__(
        self,
        max_tokens: int,
        chars_per_token: float | None = None,
        transparent: bool = False,
        step_tokens: int = 0,
        on_overflow: OnOverflow = "raise",
    ) -> None:
        self.max_tokens = at_least(self.name, "max_tokens", max_tokens)
        self.step_tokens = at_least(self.name, "step_tokens", step_tokens, least=0)
        self.chars_per_token = chars_per_token
        self._counter = None if chars_per_token is None else CharacterCounter(chars_per_token)
        self._meter: TokenMeter | None = None
        self.transparent = bool(transparent)
        one_of(f"{self.name}: on_overflow", on_overflow, OnOverflow)
        self.on_overflow = on_overflow

    def config_in(self, context: Context) -> Mapping[str, int | float | bool | str | None]:
        """The settings, with the limit that is held in this assembly."""
        held = context.held(self.max_tokens)
        config = {**self.config, "max_tokens": held} if held != self.max_tokens else self.config
        return self.with_rules(config, context)

    @classmethod
    def settings_to_rerun(cls, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """None where it counted by characters: no span states how many there are."""
        return None if settings.get("chars_per_token") is not None else super().settings_to_rerun(settings)

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return what fits.

        Raises:
            ContextOverflowError: The fixed content alone is over the budget; or the newest atom does not fit beside it
                and `on_overflow` is ``raise``.
        """
        view, budget = as_view(events), context.held(self.max_tokens)
        plan = BudgetPlan(view, self._meter_in(context), prompts, context, budget)
        plan.place_fixed(self.name)
        overflow = plan.place_newest(self.on_overflow, self.name)
        cut = plan.cut(self.step_tokens)
        reserved = 0
        if self.transparent and cut > plan.leading:
            # The note comes before any older item, also where there is no room for it: with a larger budget it would
            # else take the place of one.
            reserved = plan.meter.prompt(self._note(len(view), len(view)))
            cut = plan.cut(self.step_tokens, reserved)
        kept, verdicts = plan.selected(cut)
        if 0 < reserved <= plan.sharing.free and len(kept) < len(view):
            prompts = [*prompts, self._note(len(kept), len(view))]
        return Outcome(prompts, kept, verdicts, budget=budget, fixed=plan.fixed, overflow=overflow)

    def _meter_in(self, context: Context) -> TokenMeter:
        """The assembly's own, or one by characters with the assembly's framing."""
        if self._counter is None:
            return context.meter
        meter = self._meter
        if meter is None or meter.framing != context.meter.framing:
            meter = self._meter = TokenMeter(self._counter, context.meter.framing)
        return meter

    def _note(self, kept: int, total: int) -> str:
        return f"[{self.name}] Showing {kept} of {total} events (token budget)."
