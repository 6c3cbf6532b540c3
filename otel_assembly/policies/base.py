"""What a policy is, and what ours share."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter, isfunction, signature
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    Protocol,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from otel_assembly._internal.arguments import whole_number
from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.broken_pairs import unpaired
from otel_assembly.history.edited import EventList
from otel_assembly.history.first_message import NON_CONVERSATION, before_user, newest_response, opens
from otel_assembly.history.history import History, ListHistory
from otel_assembly.history.tool_pairs import (
    ANSWERS,
    ASKS,
    ECHO,
    PAIRED,
    REASONED,
    broken_atoms,
    may_have_lost_some,
)
from otel_assembly.history.view import Run, View, complement, runs_of, to_runs
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_assembly.context import Context

INJECTION: Final = "injection"
REDUCTION: Final = "reduction"
#: The setting, on a reducer's span, which says that the prompt had to start with a user's request.
USER_FIRST: Final = "user_first"
#: The setting on a span of a budget with a compactor: roles alternate, so that a reply may stand behind a summary.
ALTERNATES: Final = "alternates"
#: The types of what a configuration file can say.
SAYABLE: Final = (str, int, float, bool, NoneType)


@runtime_checkable
class AssemblyPolicy(Protocol):
    """Transforms what the model gets to see (as in AG2): pure, and idempotent where it can be.

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


@dataclass(frozen=True, slots=True)
class PolicyLimit:
    """What bounds the output of a policy that makes room.

    Attributes:
        setting: The setting that says it, by its name in the policy's `config`.
        unit: What it counts: ``tokens`` or ``events``.
        reserve: The setting that says how much of it is kept free for something else; empty where there is none.
        beside: The setting that says how much more it lets out, from another place; empty where there is none.
        step: The setting that says in what steps the cut moves; empty where there is none.
        first: Kinds of events that come before older ones, wherever they stand.
    """

    setting: str
    unit: Literal["tokens", "events"] = "tokens"
    reserve: str = ""
    beside: str = ""
    step: str = ""
    first: frozenset[str] = frozenset()


class DecidingPolicy:
    """The base of a policy that says why: it decides, and `apply` follows from it.

    Whoever derives from it writes `decide`. Where the events of its `Outcome` are the `View` that it was given, or a
    slice of it, a turn costs what is new and what the policy looks at, however long the conversation is. Everything
    else about the policy is in its class:

    Attributes:
        name: What it is called, in spans, in warnings and on the command line.
        kind: ``reduction``, or ``injection`` for one that adds prompts and lets every event pass.
        limit: What bounds its output; None for one that has no limit.
        filters: The kinds of event that it takes out wherever they stand, for one that makes no room but filters; None
            for one that makes room. An injection may stand behind a filter, unless it reads what that takes out.
        reads: The kinds of event that it has to see to do its work.
        replayable: Whether it goes by kinds, tokens, bytes and pairs alone, and never by what an event says: then
            `explain` runs it again on what the spans state.
        skippable: Whether ``on_policy_error="skip"`` goes on without it where it raises.
        replay_defaults: Settings that ``otel-assembly replay`` gives it where its entry does not.
    """

    name: str = ""
    kind: str = REDUCTION
    limit: ClassVar[PolicyLimit | None] = None
    filters: ClassVar[frozenset[str] | None] = None
    reads: ClassVar[frozenset[str]] = frozenset()
    replayable: ClassVar[bool] = False
    skippable: ClassVar[bool] = True
    replay_defaults: ClassVar[Mapping[str, Any]] = {}

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings, for spans and configuration files: the constructor's parameters that are attributes as well."""
        settings = [(name, getattr(self, name, self)) for name in parameters_of(type(self))]
        return {name: value for name, value in settings if isinstance(value, SAYABLE)}

    def config_in(self, context: Context) -> Mapping[str, int | float | bool | str | None]:
        """The settings that it goes by in an assembly, for its span: a budget of which a share is held says that."""
        return self.with_rules(self.config, context)

    def with_rules(
        self, config: Mapping[str, int | float | bool | str | None], context: Context
    ) -> Mapping[str, int | float | bool | str | None]:
        """Return settings with the provider's rules that the policy obeys: ``user_first`` if it has that rule."""
        obeys = self.kind == REDUCTION and context.provider_rules().is_user_first
        return {**config, USER_FIRST: True} if obeys else config

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

    @property
    def setting_warnings(self) -> Sequence[str]:
        """Return what `validate_order` reports about the settings: settings that work, and do not do what they say."""
        return ()

    @classmethod
    def settings_to_rerun(cls, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The settings with which `explain` runs it again on kinds, tokens, bytes and pairs; None where it cannot.

        Args:
            settings: Those of the policy that ran, as its span states them.
        """
        return settings if cls.replayable else None

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.config.items())
        return f"{type(self).__name__}({settings})"


def parameters_of(policy: type[Any]) -> Mapping[str, tuple[Any, Any]]:
    """The parameters of a policy's constructor, each with its type and its default (`Parameter.empty` for none).

    What a constructor takes as ``**keywords`` are its base's.
    """
    return _parameters_of(policy)  # type: ignore[arg-type]  # a class has a hash


@lru_cache(maxsize=512)
def _parameters_of(policy: type[Any]) -> Mapping[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for one in policy.__mro__[:-1]:
        init = vars(one).get("__init__")
        if not isfunction(init):
            continue
        parameters = list(signature(init).parameters.values())[1:]
        try:
            hints = get_type_hints(init)
        except Exception:  # noqa: BLE001  # an annotation may be any expression, of what is not there as it runs too
            hints = {name: hint for name, hint in init.__annotations__.items() if not isinstance(hint, str)}
        for parameter in parameters:
            if parameter.kind not in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
                found.setdefault(parameter.name, (hints.get(parameter.name, Any), parameter.default))
        if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


@lru_cache(maxsize=512)
def words_of(policy: type) -> Mapping[str, frozenset[Any]]:
    """The strings that each parameter of a policy's constructor may be."""
    return {name: frozenset(_literals(hint)) for name, (hint, _) in parameters_of(policy).items()}


def _literals(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for part in get_args(hint) for word in _literals(part)]


def as_view(events: Sequence[Any]) -> View:
    """The events as a `View`; a list is read into a history that lives as long as the view.

    So is a view that parts what belongs together: a slice that holds half a pair, or one whose calls were answered
    after it was made. What pairs with what is then another matter than in its history.
    """
    if isinstance(events, History):
        return events.view()
    view = events.view if isinstance(events, EventList) else events
    if isinstance(view, View) and (view.end == len(view.history) or not _answered_since(view)):
        if not view.is_slice:
            return view
        if _holds_whole_pairs(view):
            return view.mended()
    return ListHistory(events).view()


def _holds_whole_pairs(view: View) -> bool:
    """Whether a slice reads as it does in its history: it holds no half of a pair, and leads as the history does."""
    history = view.history
    behind = (at for at in view.positions() if at >= history.leading and history.kind(at) not in NON_CONVERSATION)
    first = next(behind, None)
    leads_anew = first is not None and history.kind(first) is EventKind.SYSTEM
    return not leads_anew and not (history.pairing.span and broken_atoms(history.pairing, runs_of(view)))


def _answered_since(view: View) -> bool:
    history = view.history
    return any(
        history.flags(position) & ANSWERS and view.holds(history.atom(position))
        for position in range(view.end, len(history))
    )


def at_least(policy: str, parameter: str, value: int, least: int = 1) -> int:
    """Return the limit of a policy.

    Raises:
        ConfigurationError: The limit is not a whole number, is too small, or is above 2**63 - 1.
    """
    return whole_number(f"{policy}: {parameter}", value, least)


def is_user_first(view: View, context: Context) -> bool:
    """Return whether the provider refuses a prompt that does not start with a user's request."""
    return context.provider_rules(view.history.provider).is_user_first


def opening_request(view: View, held: Iterable[int]) -> list[int]:
    """Return the request that has to be kept because what is held wherever the cut is starts with none.

    A call that awaits an approval can be older than the newest request. The request in front of the call then is fixed
    too, else the prompt would start with the call.

    Args:
        view: The events.
        held: Positions of the events that every cut keeps.
    """
    history, first = view.history, min(held, default=-1)
    if first < 0 or opens(view, first):
        return []
    requests = history.requests.held
    for index in range(bisect_left(requests, first) - 1, -1, -1):
        if view.holds(requests[index]) and opens(view, requests[index]):
            return [requests[index]]
    return []


def start_with_user(kept: View, verdicts: list[Verdict]) -> tuple[View, list[Verdict]]:
    """Drop what is kept in front of the first user's request or summary (see `before_user`).

    Args:
        kept: What a policy keeps.
        verdicts: What it says of the rest.

    Returns:
        What is kept, and the verdicts with those on what was dropped.
    """
    lost = before_user(kept)
    if not lost:
        return kept, verdicts
    dropped = Verdict(kept.pick_positions(lost), DecisionOutcome.DROPPED, DecisionReason.BEFORE_USER_MESSAGE)
    out = to_runs(sorted(map(kept.index_of, lost)))
    return kept.pick(complement(len(kept), out)).mended(), [*verdicts, dropped]


def orphan_verdicts(view: View, lost: Iterable[int]) -> list[Verdict]:
    """Verdicts on items that have lost the other half of their pair."""
    history = view.history
    calls: list[int] = []
    results: list[int] = []
    reasoning: list[int] = []
    for position in sorted(lost):
        flags = history.flags(position)
        if flags & PAIRED == REASONED:
            reasoning.append(position)
            continue
        asks = flags & ASKS or (flags & ECHO and history.kind(position) is EventKind.TOOL_CALL)
        (calls if asks else results).append(position)
    return [
        Verdict(view.pick_positions(positions), DecisionOutcome.DROPPED, reason)
        for positions, reason in (
            (calls, DecisionReason.ORPHANED_TOOL_CALL),
            (results, DecisionReason.ORPHANED_TOOL_RESULT),
            (reasoning, DecisionReason.ORPHANED_REASONING),
        )
        if positions
    ]


def keep(view: View, runs: Sequence[Run], reason: DecisionReason) -> tuple[View, list[Verdict]]:
    """Keep runs of a view's indexes, and mend the pairs that this parts.

    Returns:
        What is kept, and verdicts: `reason` for what the runs leave out, an orphan's reason for what the mend took.
    """
    kept, count = view.pick(runs), len(view)
    verdicts: list[Verdict] = []
    if len(kept) < count:
        straight = len(runs) == 1 and runs[0][1] == count
        outside = view.pick([(0, runs[0][0])] if straight else complement(count, runs))
        verdicts.append(Verdict(outside, DecisionOutcome.DROPPED, reason))
    if (
        view.history.has_pairs
        and may_have_lost_some(kept)
        and (lost := unpaired(view.history.pairing, kept.backward(), newest_response(view)))
    ):
        verdicts += orphan_verdicts(kept, lost)
        indexes = sorted(kept.index_of(position) for position in lost)
        kept = kept.pick(complement(len(kept), [(index, index + 1) for index in indexes]))
    return kept.mended(), verdicts


def keep_from(
    view: View,
    cut: int,
    reason: DecisionReason,
    *,
    first: int,
    held: Iterable[int],
    request: Sequence[int],
    pending: Sequence[int],
    left_out: Iterable[int] = (),
) -> tuple[View, list[Verdict]]:
    """Keep a view from an index on, and of what is in front of that, what leads the view and what is held.

    Args:
        view: The view.
        cut: The index.
        reason: Why the rest goes.
        first: How many items lead the view.
        held: Positions of what stays wherever the cut is.
        request: Those of it that are the newest user request, which the rule would have taken.
        pending: Those of it that are calls that await an approval, of which the same is true.
        left_out: Positions of what goes wherever the cut is.
    """
    before = sorted([index for index in map(view.index_of, held) if first <= index < cut])
    runs, at = to_runs([*range(first), *before]), cut
    for index in sorted(map(view.index_of, left_out)):
        if index >= cut:
            runs.append((at, index))
            at = index + 1
    kept, verdicts = keep(view, [run for run in (*runs, (at, len(view))) if run[0] < run[1]], reason)
    if before:
        outside = set(filter(kept.holds, map(view.position, before)))
        for positions, why in (request, DecisionReason.PINNED), (pending, DecisionReason.PENDING_TOOL_CALL):
            if stays := view.pick_positions(outside.intersection(positions)):
                verdicts.append(Verdict(stays, DecisionOutcome.KEPT, why))
    return kept, verdicts
