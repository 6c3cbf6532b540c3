"""`TokenBudgetPolicy`: limits the whole rendered prompt by tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly._internal.arguments import OnOverflow, one_of
from otel_assembly.decision import Outcome
from otel_assembly.policies.base import DecidingPolicy, PolicyLimit, as_view, at_least, never_waits
from otel_assembly.policies.budget_plan import BudgetPlan
from otel_assembly.tokens import CharacterCounter, TokenMeter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context


class TokenBudgetPolicy(DecidingPolicy):
    """Keep the newest events that fit in a prompt of `max_tokens` tokens.

    The name and the first three parameters are those of AG2's `TokenBudgetPolicy`, which counts characters only.

    An atom is the unit that is kept or dropped: a tool call with its results, or a single message. The count covers the
    rendered prompt: prompts, tool schemas, message framing and the full text of every event. Fixed content is never
    dropped: the prompts, the schemas, the tokens that start the reply, leading system messages, calls that await an
    approval, and the newest user request. The rule is that of `BudgetPolicy`, except that summaries are treated like
    other messages.

    Args:
        max_tokens: The most tokens that the rendered prompt may have. The context's `budget_ratio` lowers the limit.
        chars_per_token: Estimate tokens by this many characters per token. None: use the model's tokenizer.
        transparent: Append a note to the prompts if events were dropped and the note fits.
        step_tokens: About how many tokens are dropped at a time. Most prompts then start with the same events as the
            previous prompt, which the provider's cache can serve. The conversation is divided into cells of
            ``4 × step_tokens`` bytes of text, because a token has about 4 bytes, and the oldest kept atom is the first
            of a cell. With 0, or if the kept atoms would use less than a quarter of the available tokens, any atom can
            be the oldest.
        on_overflow: What happens if the fixed content fits but the newest atom does not: ``raise`` an error, or
            ``drop`` the atom whole, with the reason ``over_budget``.

    Raises:
        ConfigurationError: A limit is out of range.
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
        """Return the settings for the policy's span, with the limit that `budget_ratio` lowered for this assembly."""
        limit = context.apply_budget_ratio(self.max_tokens)
        config = {**self.config, "max_tokens": limit} if limit != self.max_tokens else self.config
        return self.with_rules(config, context)

    @classmethod
    def settings_to_rerun(cls, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the settings with which `explain` runs the policy again on recorded values.

        None if the policy counted characters, because no span records their number.
        """
        return None if settings.get("chars_per_token") is not None else super().settings_to_rerun(settings)

    @never_waits
    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the events that fit in the budget, with verdicts on the dropped events.

        Raises:
            ContextOverflowError: The fixed content exceeds the budget; or the newest atom (a tool call with its
                results, or a message) does not fit in the rest, and `on_overflow` is ``raise``.
        """
        view, budget = as_view(events), context.apply_budget_ratio(self.max_tokens)
        plan = BudgetPlan(view, self._meter_in(context), prompts, context, budget)
        plan.place_fixed(self.name)
        overflow = plan.place_newest(self.on_overflow, self.name)
        cut = plan.cut(self.step_tokens)
        reserved = 0
        if self.transparent and cut > plan.leading:
            # Reserve the note's tokens whenever an event is dropped, even if the note does not fit. Otherwise, with a
            # slightly larger budget, the note would fit and an event would be dropped for it.
            reserved = plan.meter.prompt(self._note(len(view), len(view)))
            cut = plan.cut(self.step_tokens, reserved)
        kept, verdicts = plan.selected(cut)
        if 0 < reserved <= plan.free and len(kept) < len(view):
            prompts = [*prompts, self._note(len(kept), len(view))]
        return Outcome(prompts, kept, verdicts, budget=budget, fixed=plan.fixed, overflow=overflow)

    def _meter_in(self, context: Context) -> TokenMeter:
        """Return the assembly's meter, or one that counts characters with the assembly's framing."""
        if self._counter is None:
            return context.meter
        meter = self._meter
        if meter is None or meter.framing != context.meter.framing:
            meter = self._meter = TokenMeter(self._counter, context.meter.framing)
        return meter

    def _note(self, kept: int, total: int) -> str:
        return f"[{self.name}] Showing {kept} of {total} events (token budget)."
