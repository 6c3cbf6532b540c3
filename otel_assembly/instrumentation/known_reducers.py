"""What is known of a framework's own reducers, beside what goes into each and what comes out: a row each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.decision import DecisionReason, OverflowCause
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.reducers import is_in, orphaned
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import Reduction

T = TypeVar("T")


class MadeWith(IdentityWeakMap[Any]):
    """What reducers were made with, of which they do not keep all.

    Args:
        place: Where the argument stands in `__init__`.
        name: Its name.
    """

    __slots__ = ("_name", "_place")

    def __init__(self, place: int, name: str) -> None:
        super().__init__()
        self._place = place
        self._name = name

    def wrap(self, original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
        """The hook of `__init__`: a provider may be configured later, before the reducer runs."""

        @wraps(original)
        def init(reducer: Any, *args: Any, **kwargs: Any) -> None:
            original(reducer, *args, **kwargs)
            if instrumentation.open:
                with instrumentation.suppress_errors():
                    self.put(reducer, argument(args, kwargs, self._place, self._name))

        return init


def behind(cut: Callable[[Any, Sequence[Any]], int]) -> Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """What a reducer keeps that cuts: what stays behind that place, or, where nothing was cut, what came out.

    Args:
        cut: Where it cuts, of the reducer and what goes in; below 0 it takes nothing out.
    """
    return lambda reducer, given, after: given[max(0, cut(reducer, given)) :] if len(after) < len(given) else after


def newest(attribute: str) -> Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """What a reducer keeps that holds in this attribute how many of the newest messages stay."""
    return behind(lambda reducer, given: len(given) - int(getattr(reducer, attribute)))


def _said_by(setting: Callable[..., Any] | str, reducer: Any, *read: Any) -> Any:
    return setting(reducer, *read) if callable(setting) else getattr(reducer, setting, None)


def known_of(met: type, known: Mapping[str, T], packages: Collection[str]) -> T | None:
    """What is known of a class, such as one of reducers: of one that derives from a framework's, what is known of that.

    Args:
        met: The class.
        known: What is known of the framework's own, by the names of their classes.
        packages: The framework's packages.
    """
    own = (base.__name__ for base in met.__mro__ if is_in(base, packages))
    return next((known[name] for name in own if name in known), None)


@dataclass(frozen=True, slots=True)
class ReducerSpec:
    """What is known of one reducer of a framework's.

    Each function takes the reducer, what goes in and what comes out.

    Attributes:
        policy: Its name, of low cardinality.
        kind: ``reduction`` or ``injection``; None where that is not known.
        reason: Why messages leave that its own rule does not keep.
        settings: The settings that are reported: the attribute that holds each, or what says it of the reducer.
        stays: What its own rule keeps; what of that does not come out had lost its other half.
        limit: Its limit, or the attribute that holds it: a budget where that is in tokens. Where nothing comes out, or
            more items do, it did not hold.
        unit: What the limit is in.
        reported: How many messages it says itself that it left out.
    """

    policy: str = ""
    kind: str | None = "reduction"
    reason: DecisionReason = DecisionReason.POLICY
    settings: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    stays: Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None
    limit: Callable[[Any, Sequence[Any], Sequence[Any]], int | None] | str | None = None
    unit: str = "tokens"
    reported: Callable[[Any, Sequence[Any], Sequence[Any]], int | None] | None = None

    def config(self, reducer: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Its settings, as far as they can be read."""
        held = {name: _said_by(setting, reducer) for name, setting in self.settings.items()}
        return {name: value for name, value in held.items() if value is not None}

    def done(self, reduction: Reduction, reducer: Any, after: Sequence[Any], **said: Any) -> None:
        """Say of one run of it what came out, and why."""
        read = reducer, reduction.before, after
        limit = None if self.limit is None else _said_by(self.limit, *read)
        verdicts = () if self.stays is None else orphaned(self.stays(*read), after)
        if limit is not None and self.unit == "items" and len(after) > max(0, limit):
            self._overflow(reduction, limit, len(after), OverflowCause.FRAMEWORK)
        elif limit is not None and self.unit == "tokens" and reduction.before and not (after or verdicts):
            step = reduction.open()
            needed = sum(map(step.count, describe(reduction.before[-1]).texts)) if step is not None else 0
            # The framework's own count was above the limit, whatever ours is.
            self._overflow(reduction, limit, max(needed, limit + 1), OverflowCause.NEWEST_ATOM)
        budget = limit if self.unit == "tokens" else None
        said |= {"budget": budget, "verdicts": verdicts, "reported": self.reported and self.reported(*read)}
        known = {name: value for name, value in said.items() if value not in (None, ())}
        if self.reason is not DecisionReason.POLICY:
            known["reason"] = self.reason
        reduction.done(after, always=True, **known)

    def _overflow(self, reduction: Reduction, limit: int, needed: int, cause: OverflowCause) -> None:
        step = reduction.open()
        if step is not None:
            step.overflow(budget=limit, needed=needed, cause=cause, unit=self.unit)


hide_frames(globals())
