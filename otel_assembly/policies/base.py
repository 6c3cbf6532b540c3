"""What a policy is, and what ours share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from otel_assembly._internal.intervals import Run, complement
from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.errors import ConfigurationError
from otel_assembly.history.history import History, ListHistory
from otel_assembly.history.view import View
from otel_assembly.messages.describe import EventKind
from otel_assembly.messages.tool_pairs import ANSWERS, ASKS, ECHO, RESPONSE, unpaired

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.context import Context

INJECTION: Final = "injection"
REDUCTION: Final = "reduction"


@runtime_checkable
class AssemblyPolicy(Protocol):
    """Transforms what the model gets to see (seed 000): pure, and idempotent where it can be.

    A policy returns modified copies; it never changes the lists or the events it was given. Beside `apply` it may have
    a ``kind`` (``injection`` or ``reduction``), a ``config`` (a mapping of numbers and enum strings, for its span), and
    ``async decide(prompts, events, context) -> Outcome``, which says why. `decide` is given an immutable `View`.
    """

    name: str
    """What the policy is called, in spans, in configuration files and in warnings."""

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """Return the prompts and the events that go on to the next policy."""
        ...


class PolicyLike(Protocol):
    """What an assembler takes for a policy: an `AssemblyPolicy`, or one whose name can only be read.

    So a type checker accepts a property and a frozen dataclass too; the former's name is an attribute for those who
    derive from it.
    """

    @property
    def name(self) -> str:
        """What the policy is called."""
        ...

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """Return the prompts and the events that go on to the next policy."""
        ...


class DecidingPolicy:
    """The base of our policies: they decide, and `apply` follows from it."""

    name: str = ""
    kind: str = REDUCTION

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings as given, for spans and configuration files."""
        return {}

    @property
    def only_in_code(self) -> str:
        """The parameter that was given something which no configuration can say; empty where there is none."""
        return ""

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return what goes on, and why the rest does not."""
        raise AssertionError(f"{type(self).__name__} decides nothing")

    async def apply(self, prompts: list[str], events: list[Any], context: Context) -> tuple[list[str], list[Any]]:
        """Return the prompts and the events that go on to the next policy."""
        outcome = await self.decide(prompts, events, context)
        return list(outcome.prompts), list(outcome.events)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.config.items())
        return f"{type(self).__name__}({settings})"


def as_view(events: Sequence[Any]) -> View:
    """The events as a `View`; a list is read into a history that lives as long as the view.

    So is a view that may part what belongs together: a slice, or one whose calls were answered after it was made. What
    pairs with what is then another matter than in its history.
    """
    if isinstance(events, History):
        return events.view()
    if isinstance(events, View) and not events.is_slice and not _answered_since(events):
        return events
    return ListHistory(events).view()


def _answered_since(view: View) -> bool:
    history = view.history
    return any(
        history.flags(position) & ANSWERS and view.holds(history.atom(position))
        for position in range(view.end, len(history))
    )


def at_least(policy: str, parameter: str, value: int, least: int = 1) -> int:
    """A limit that a policy can work with.

    Raises:
        ConfigurationError: It is no whole number, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{policy}: {parameter} must be a whole number, got {value!r}")
    if value < least:
        raise ConfigurationError(f"{policy}: {parameter} must be at least {least}, got {value}")
    return value


def leading(view: View) -> int:
    """How many items lead the view up to its last leading system message: they are prompts, and no reducer takes one.

    Alerts and lifecycle notes in front of one count with it.
    """
    count, most = 0, min(view.history.leading, len(view))
    while count < most and view.position(count) < view.history.leading:
        count += 1
    return count


def newest_response(view: View) -> int:
    """The position of the view's newest response; −1 where it has none."""
    pairing = view.history.pairing
    newest = pairing.last_response
    if newest < 0 or view.holds(newest):
        return newest
    return next((position for position in view.backward() if pairing.flags[position] & RESPONSE), -1)


def newest_atom(view: View, response: int) -> list[int]:
    """The positions of the view's newest atom, newest first.

    Alerts and lifecycle notes are no part of any, and what cannot be sent (see `Pairing.is_sendable`) is passed over.
    """
    history = view.history
    members: list[int] = []
    atom = -1
    for position in view.backward():
        if atom < 0:
            if history.kind(position) in _ASIDES or not history.pairing.is_sendable(position, response):
                continue
            atom = history.atom(position)
        if history.atom(position) == atom:
            members.append(position)
        if position <= atom:
            break
    return members


def newest_request(view: View) -> list[int]:
    """The positions of the view's newest user request: its own, and where it also answers tools, all of that atom."""
    history = view.history
    request = history.newest_request(view)
    if request < 0 or not history.flags(request) & ANSWERS:
        return [request] if request >= 0 else []
    atom = history.atom(request)
    members = range(atom, min(len(history), atom + history.max_atom_span + 1))
    return [position for position in members if history.atom(position) == atom and view.holds(position)]


_ASIDES: Final = frozenset({EventKind.ALERT, EventKind.OTHER})


def orphan_verdicts(view: View, lost: Iterable[int]) -> list[Verdict]:
    """Verdicts on items that have lost the other half of their pair."""
    history = view.history
    calls: list[int] = []
    results: list[int] = []
    for position in sorted(lost):
        flags = history.flags(position)
        asks = flags & ASKS or (flags & ECHO and history.kind(position) is EventKind.TOOL_CALL)
        (calls if asks else results).append(position)
    return [
        Verdict(view.pick_positions(positions), DecisionOutcome.DROPPED, reason)
        for positions, reason in (
            (calls, DecisionReason.ORPHANED_TOOL_CALL),
            (results, DecisionReason.ORPHANED_TOOL_RESULT),
        )
        if positions
    ]


def keep(view: View, runs: Sequence[Run], reason: DecisionReason) -> tuple[View, list[Verdict]]:
    """Keep runs of a view's indexes, and mend the pairs that this parts.

    Returns:
        What is kept, and verdicts: `reason` for what the runs leave out, an orphan's reason for what the mend took.
    """
    kept = view.pick(runs)
    verdicts: list[Verdict] = []
    outside = view.pick(complement(len(view), runs)) if len(kept) < len(view) else None
    if outside:
        verdicts.append(Verdict(outside, DecisionOutcome.DROPPED, reason))
    lost = unpaired(view.history.pairing, kept.backward(), newest_response(view))
    if lost:
        verdicts += orphan_verdicts(kept, lost)
        indexes = sorted(kept.index_of(position) for position in lost)
        kept = kept.pick(complement(len(kept), [(index, index + 1) for index in indexes]))
    return kept, verdicts


def keep_verdicts(view: View, kept: View, pinned: Iterable[int], reason: DecisionReason) -> list[Verdict]:
    """A verdict on items that stay although the rule would have taken them."""
    held = view.pick_positions(position for position in pinned if kept.holds(position))
    return [Verdict(held, DecisionOutcome.KEPT, reason)] if held else []
