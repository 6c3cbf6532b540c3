"""Descriptions of a framework's built-in reducers, such as a sliding window.

Of any reducer the instrumentation sees the input and the output. For a built-in one, a `ReducerSpec` adds its settings,
its limit, and why it drops messages. Each framework has a table of specs by class name, which `known_of` searches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.decision import DecisionReason, OverflowCause
from otel_assembly.instrumentation.reducers import is_in, orphaned
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from otel_assembly.conversation_state import AlertFacts
    from otel_assembly.instrumentation.reductions import Reduction

T = TypeVar("T")


def _value_of(setting: Callable[..., Any] | str, reducer: Any, *messages: Any) -> Any:
    """Return a setting of a `ReducerSpec`: the result of its function, or the value of its attribute."""
    return setting(reducer, *messages) if callable(setting) else getattr(reducer, setting, None)


def known_of(cls: type, table: Mapping[str, T], packages: Collection[str]) -> T | None:
    """Return the entry for a class, or for its nearest base class, that the framework defines; None if there is none.

    The table has the names of the framework's classes as keys. A class is the framework's if it is defined in
    `packages`.
    """
    names = (base.__name__ for base in cls.__mro__ if is_in(base, packages))
    return next((table[name] for name in names if name in table), None)


@dataclass(frozen=True, slots=True)
class ReducerSpec:
    """The description of one of a framework's built-in reducers.

    A function in `keeps`, `limit` or `reported` takes the reducer, its input and its output.

    Attributes:
        policy: The name of the reducer's step, of low cardinality.
        kind: ``reduction`` or ``injection``; None if it is not known.
        reason: Why the reducer drops messages.
        settings: The recorded settings, by name: the attribute of the reducer, or a function of the reducer.
        keeps: Returns the messages that the reducer's rule keeps. If the output lacks one of them, the reducer dropped
            it because the other half of its tool pair is missing.
        limit: The attribute with the reducer's limit, or a function that returns it. A limit in tokens is recorded as
            the budget. The limit was exceeded if the output is empty (tokens), or longer than the limit (items).
        unit: The unit of the limit: ``tokens`` or ``items``.
        reported: Returns the number of dropped messages that the reducer states, for example in its output; None if
            it states none.
    """

    policy: str = ""
    kind: str | None = "reduction"
    reason: DecisionReason = DecisionReason.POLICY
    settings: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    keeps: Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None
    limit: Callable[[Any, Sequence[Any], Sequence[Any]], int | None] | str | None = None
    unit: str = "tokens"
    reported: Callable[[Any, Sequence[Any], Sequence[Any]], int | None] | None = None

    def config(self, reducer: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the reducer's settings, without those that cannot be read."""
        values = {name: _value_of(setting, reducer) for name, setting in self.settings.items()}
        return {name: value for name, value in values.items() if value is not None}

    def done(
        self,
        reduction: Reduction,
        reducer: Any,
        after: Sequence[Any],
        *,
        prompts: Sequence[str] | None = None,
        alerts: Sequence[AlertFacts] = (),
    ) -> None:
        """Record the step of one reduction, with an overflow if the output exceeds the reducer's limit.

        A built-in reducer's step is recorded even if it changed nothing. `prompts` are the system prompts after the
        reducer; None if it did not change them. `alerts` are those that the reducer delivered to the model.
        """
        arguments = reducer, reduction.before, after
        limit = None if self.limit is None else _value_of(self.limit, *arguments)
        orphans = () if self.keeps is None else orphaned(self.keeps(*arguments), after)
        is_too_long = self.unit == "items" and len(after) > max(0, limit or 0)
        is_emptied = self.unit == "tokens" and reduction.before and not after and not orphans
        if limit is not None and (is_too_long or is_emptied) and (step := reduction.open()) is not None:
            needed, cause = len(after), OverflowCause.FRAMEWORK
            if is_emptied:  # the framework counted more tokens than the limit, even if our tokenizer counts fewer
                needed = max(limit + 1, sum(map(step.count, describe(reduction.before[-1]).texts)))
                cause = OverflowCause.NEWEST_ATOM
            step.overflow(budget=limit, needed=needed, cause=cause, unit=self.unit)
        reduction.report = replace(
            reduction.report,
            prompts=prompts,
            reason=self.reason,
            # Verdicts of a summarizer's hook concern the same messages, and say more.
            verdicts=reduction.report.verdicts or orphans,
            budget=limit if self.unit == "tokens" else None,
            alerts=alerts,
            reported=None if self.reported is None else self.reported(*arguments),
        )
        reduction.done(after, always=True)


hide_frames(globals())
