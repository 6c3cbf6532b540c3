"""The protocol of a policy, and the base class and helpers of the built-in policies."""

from __future__ import annotations

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
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from otel_assembly._internal.arguments import whole_number
from otel_assembly.decision import DecisionOutcome, DecisionReason, Outcome, Verdict
from otel_assembly.history.first_message import NON_CONVERSATION, before_user
from otel_assembly.history.history import History, ListHistory
from otel_assembly.history.tool_pairs import CLOSES, cut_atoms, unpaired
from otel_assembly.history.view import EventList, Range, View, difference, merged
from otel_assembly.messages.event_facts import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from otel_assembly.context import Context
    from otel_assembly.history.first_message import Essential

Decide = TypeVar("Decide", bound="Callable[..., Any]")

INJECTION: Final = "injection"
REDUCTION: Final = "reduction"
#: The setting on a reduction's span if the provider requires that a prompt starts with a user's request.
USER_FIRST: Final = "user_first"
#: The setting on the span of a `BudgetPolicy` that makes summaries, if the provider requires that user and assistant
#: messages alternate. The policy may then insert an assistant message after a summary.
ALTERNATES: Final = "alternates"
#: The reason for dropping the events of each class of `History.classes`; None for those that may be sent.
CLASS_REASONS: Final = (
    None,
    DecisionReason.NOT_CONVERSATION,
    DecisionReason.ORPHANED_TOOL_RESULT,
    DecisionReason.ORPHANED_TOOL_CALL,
    DecisionReason.ORPHANED_TOOL_RESULT,
    DecisionReason.ORPHANED_REASONING,
)
#: The types of values that a configuration file can contain.
CONFIG_TYPES: Final = (str, int, float, bool, NoneType)


class PolicyLike(Protocol):
    """An `AssemblyPolicy` whose name may be read-only.

    Assemblers accept this type, so that type checkers also accept a policy whose name is a property or a field of a
    frozen dataclass. `AssemblyPolicy` declares a writable attribute, because subclasses assign to it.
    """

    @property
    def name(self) -> str:
        """The policy's name."""
        ...

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """Return the prompts and the events for the next policy."""
        ...


@runtime_checkable
class AssemblyPolicy(PolicyLike, Protocol):
    """Transforms the prompts and events that the model receives (as in AG2).

    A policy returns modified copies and never changes its arguments. If possible, a policy is idempotent.

    Besides `apply`, a policy may have:

    * ``kind``: ``injection`` or ``reduction``;
    * ``config``: a mapping of numbers and enum strings, which is recorded on the policy's span;
    * ``async decide(prompts, events, context) -> Outcome``: returns the result with a reason for each change. Its
      `events` argument is an immutable `View`.
    """

    name: str
    """The policy's name in spans, configuration files and warnings."""


@dataclass(frozen=True, slots=True)
class PolicyLimit:
    """The setting that limits a reduction's output.

    Attributes:
        setting: The name of that setting in the policy's `config`.
        unit: The unit of the limit: ``tokens`` or ``events``.
        reserve: The setting for the part of the limit that is kept free; empty if there is none.
        additional: The setting for a second limit, which applies to other events, such as the oldest ones; empty if
            there is none.
        step: The setting for the tokens by which the cut (the oldest kept event) moves at a time; empty if there is
            none.
        first: Kinds of events that take precedence over older turns, regardless of their position.
    """

    setting: str
    unit: Literal["tokens", "events"] = "tokens"
    reserve: str = ""
    additional: str = ""
    step: str = ""
    first: frozenset[str] = frozenset()


class DecidingPolicy:
    """The base class of policies that return a reason for each change.

    A subclass implements `decide`; `apply` calls it. `decide` receives the events as a `View`, an immutable sequence.
    If it returns that view or a slice of it, the computing time of an assembly depends on the number of new events and
    not on the length of the conversation.

    Attributes:
        name: The policy's name in spans, in warnings and on the command line.
        kind: ``reduction``, or ``injection`` for a policy that adds prompts and keeps every event.
        limit: The setting that limits the output; None if there is no limit.
        filters: The kinds of events that the policy drops at any position, if it is a filter. None if it is not a
            filter, for example because it drops events to meet a limit. `validate_order` warns about an injection after
            a reduction; after a filter, it warns only if the injection reads a kind that the filter drops.
        reads: The kinds of events that the policy reads from its input.
        replayable: Whether `explain` can run the policy again on the values that spans record. This requires that
            decisions depend only on the events' kinds, tokens, bytes and tool pairs, and never on their texts.
        skippable: Whether ``on_policy_error="skip"`` continues without the policy if it raises.
        replay_defaults: Settings that ``otel-assembly replay`` uses if the policy's entry in the configuration file or
            in ``--policies`` does not contain them.
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
        """The settings, for spans and configuration files.

        The result contains each parameter of the constructor that is also an attribute of the policy and whose value is
        a text, a number, a boolean or None. Other values, such as functions and lists, are left out.
        """
        config: dict[str, int | float | bool | str | None] = {}
        for name in parameters_of(type(self)):
            value = getattr(self, name, self)
            if isinstance(value, CONFIG_TYPES):
                config[name] = value
        return config

    def config_in(self, context: Context) -> Mapping[str, int | float | bool | str | None]:
        """Return the settings that are in effect in an assembly, for the policy's span.

        These settings differ from `config` if, for example, the context's `budget_ratio` lowers a limit.
        """
        return self.with_rules(self.config, context)

    def with_rules(
        self, config: Mapping[str, int | float | bool | str | None], context: Context
    ) -> Mapping[str, int | float | bool | str | None]:
        """Return settings, with ``user_first`` added if the policy has to keep a user's request in front.

        This is the case if the policy is a reduction and the provider refuses a prompt that does not start with a
        user's request. The policy's span then records the reason for such drops.
        """
        is_user_first = self.kind == REDUCTION and context.provider_rules().is_user_first
        return {**config, USER_FIRST: True} if is_user_first else config

    @property
    def only_in_code(self) -> str:
        """The name of a parameter whose value, such as a function, no configuration file can contain; else empty."""
        return ""

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the prompts and events for the next policy, with a reason for each change."""
        raise AssertionError(f"{type(self).__name__} does not implement decide")

    async def apply(self, prompts: list[str], events: list[Any], context: Context) -> tuple[list[str], list[Any]]:
        """Return the prompts and the events for the next policy."""
        outcome = await self.decide(prompts, events, context)
        return list(outcome.prompts), list(outcome.events)

    @property
    def setting_warnings(self) -> Sequence[str]:
        """Warnings for `validate_order` about settings that are valid but cannot have an effect."""
        return ()

    @classmethod
    def settings_to_rerun(cls, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the settings with which `explain` ranges the policy again on recorded values; None if it cannot.

        The recorded values are the events' kinds, tokens, bytes and tool pairs, but not their texts.

        Args:
            settings: The settings of the policy that ran, as recorded on its span.
        """
        return settings if cls.replayable else None

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.config.items())
        return f"{type(self).__name__}({settings})"


def waits_if(condition: Callable[[Any, Context], bool]) -> Callable[[Decide], Decide]:
    """Mark the `decide` of a built-in policy that waits for an event loop only under a condition."""

    def mark(decide: Decide) -> Decide:
        vars(decide)["waits_if"] = condition
        return decide

    return mark


#: Marks the `decide` of a built-in policy that never waits for an event loop.
never_waits: Final = waits_if(lambda _, __: False)


def waits(policy: Any, context: Context) -> bool:
    """Return whether a policy's `decide` may wait for an event loop; an overridden `decide` may."""
    condition: Callable[[Any, Context], bool] | None = getattr(policy.decide, "waits_if", None)
    return condition is None or condition(policy, context)


def parameters_of(policy: type[Any]) -> Mapping[str, tuple[Any, Any]]:
    """Return the parameters of a policy's constructor: for each name, its type and its default.

    The default is `Parameter.empty` if there is none. If the constructor accepts ``**keywords``, the parameters of its
    base class are included.
    """
    return _parameters_of(policy)  # type: ignore[arg-type]  # a class has a hash


@lru_cache(maxsize=512)
def _parameters_of(policy: type[Any]) -> Mapping[str, tuple[Any, Any]]:
    types_and_defaults: dict[str, tuple[Any, Any]] = {}
    for base in policy.__mro__[:-1]:
        init = vars(base).get("__init__")
        if not isfunction(init):
            continue
        parameters = list(signature(init).parameters.values())[1:]
        try:
            hints = get_type_hints(init)
        except Exception:  # noqa: BLE001  # an annotation may name what only type checkers import
            hints = {name: hint for name, hint in init.__annotations__.items() if not isinstance(hint, str)}
        for parameter in parameters:
            if parameter.kind not in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
                type_and_default = hints.get(parameter.name, Any), parameter.default
                types_and_defaults.setdefault(parameter.name, type_and_default)
        if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return types_and_defaults


@lru_cache(maxsize=512)
def literals_of(policy: type) -> Mapping[str, frozenset[Any]]:
    """Return the values that each parameter of a policy's constructor accepts by its ``Literal`` annotation."""
    return {name: frozenset(_literals(hint)) for name, (hint, _) in parameters_of(policy).items()}


def _literals(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for part in get_args(hint) for word in _literals(part)]


def as_view(events: Sequence[Any]) -> View:
    """Return the events as a `View`, an immutable selection of a `History`.

    For a list, a new history is created, which lives as long as the view. A new history is also created for a view
    whose tool pairs (calls with their results) differ from those of its history: a slice with half of a pair, or a view
    whose calls were answered after it was made.
    """
    if isinstance(events, History):
        return events.view()
    view = events.view if isinstance(events, EventList) else events
    if not isinstance(view, View):
        return ListHistory(events).view()
    history, pairing = view.history, view.history.pairing
    later = range(view.end, len(history.events))
    if later and any(pairing.flags[at] & CLOSES and view.holds(pairing.atoms[at]) for at in later):
        return ListHistory(events).view()
    if not view.is_slice:
        return view
    # A system message from the middle of the history would become a leading one, if the slice starts with it.
    kinds = (history.kind(at) for at in view.positions() if at >= history.leading)
    first = next((kind for kind in kinds if kind not in NON_CONVERSATION), None)
    is_whole = first is not EventKind.SYSTEM and not cut_atoms(view)
    return View(history, view.column, view.ranges) if is_whole else ListHistory(events).view()


def at_least(policy: str, parameter: str, value: int, least: int = 1) -> int:
    """Return `value`, a policy's setting, after checking its range.

    Raises:
        ConfigurationError: The value is not a whole number, is below `least`, or is above 2**63 - 1.
    """
    return whole_number(f"{policy}: {parameter}", value, least)


def start_with_user(kept: View, verdicts: list[Verdict]) -> tuple[View, list[Verdict]]:
    """Drop the kept events in front of the first user's request or summary (see `before_user`).

    Returns:
        The remaining events, and the verdicts with one more for the events that were dropped here.
    """
    unwanted = before_user(kept)
    if not unwanted:
        return kept, verdicts
    dropped = Verdict(kept.pick_positions(unwanted), DecisionOutcome.DROPPED, DecisionReason.BEFORE_USER_MESSAGE)
    return kept.without(unwanted), [*verdicts, dropped]


def orphan_verdicts(view: View, orphans: Iterable[int]) -> list[Verdict]:
    """Return verdicts that drop calls without results, results without calls, and reasoning without its item."""
    positions: dict[DecisionReason | None, list[int]] = {}
    for position in orphans:
        reason = CLASS_REASONS[view.history.class_of(position, is_sendable=False)]
        positions.setdefault(reason, []).append(position)
    order = (DecisionReason.ORPHANED_TOOL_CALL, DecisionReason.ORPHANED_TOOL_RESULT, DecisionReason.ORPHANED_REASONING)
    return [
        Verdict(view.pick_positions(positions[reason]), DecisionOutcome.DROPPED, reason)
        for reason in order
        if reason in positions
    ]


def keep(view: View, ranges: Sequence[Range], reason: DecisionReason) -> tuple[View, list[Verdict]]:
    """Keep ranges of a view's indexes, except calls whose results and results whose calls are outside the ranges.

    Returns:
        The kept events, and the verdicts on the dropped ones. Events outside the ranges have the reason `reason`, calls
        and results without their counterpart a reason such as ``orphaned_tool_call``.
    """
    if len(ranges) == 1 and ranges[0][1] == view.length:
        kept, outside = view.part(ranges[0][0], view.length), view.part(0, ranges[0][0])
    else:
        kept, outside = view.pick(ranges), view.pick(difference([(0, view.length)], ranges))
    verdicts = [Verdict(outside, DecisionOutcome.DROPPED, reason)] if outside.length else []
    if orphans := unpaired(kept, view):
        verdicts += orphan_verdicts(kept, orphans)
        kept = kept.without(orphans)
    kept.is_slice = False  # it has whole pairs now, and nobody else has this view yet
    return kept, verdicts


def keep_from(
    view: View,
    cut: int,
    reason: DecisionReason,
    *,
    first: int,
    essential: Essential,
    summaries: Sequence[int] = (),
    left_out: Collection[int] = (),
) -> tuple[View, list[Verdict]]:
    """Keep the events from an index on, the leading events, and certain older events.

    Args:
        view: The events.
        cut: The index in the view of the first event to keep.
        reason: Why the other events are dropped.
        first: The number of events at the beginning of the view that are kept too.
        essential: Events that are kept too.
        summaries: The positions of summaries that are kept too.
        left_out: The positions of events that are dropped even if they are after the cut.

    Returns:
        The kept events, and the verdicts: on dropped events, and on older events that were kept.
    """
    ranges, kept_from = [(cut, view.length)], view.position(cut) if cut < view.length else view.end
    essentials = (*essential.request, *essential.pending, *essential.newest, *summaries)
    older = {position for position in essentials if position < kept_from and first <= view.index_of(position)}
    if left_out:
        ranges = difference(ranges, view.ranges_at(left_out))
    if first or older:
        ranges = merged([(0, first), *view.ranges_at(older), *ranges])
    kept, verdicts = keep(view, ranges, reason)
    pinned = (essential.request, DecisionReason.PINNED), (essential.pending, DecisionReason.PENDING_TOOL_CALL)
    for positions, kept_reason in pinned if older else ():
        if older_kept := view.pick_positions(filter(kept.holds, older.intersection(positions))):
            verdicts.append(Verdict(older_kept, DecisionOutcome.KEPT, kept_reason))
    return kept, verdicts
