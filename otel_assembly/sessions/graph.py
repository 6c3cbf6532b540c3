"""`TransitionGraph`: who speaks after whom in a workflow, as data that a session keeps among its knobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

from otel_assembly._internal.arguments import LARGEST_INTEGER
from otel_assembly.errors import ConfigurationError
from otel_assembly.sessions.transitions import (
    AgentTarget,
    Always,
    ContextEquals,
    FromSpeaker,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionCondition,
    TransitionDecision,
    TransitionTarget,
    Turns,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.sessions.envelope import Envelope


class TransitionRegistry:
    """The targets and conditions that a graph's data may name; it has the built-in ones from the start."""

    def __init__(self) -> None:
        targets = (AgentTarget, RoundRobinTarget, StayTarget, RevertToInitiatorTarget, TerminateTarget)
        conditions = (Always, FromSpeaker, ToolCalled, ContextEquals)
        self._targets: dict[str, type[TransitionTarget]] = {kind.name: kind for kind in targets}
        self._conditions: dict[str, type[TransitionCondition]] = {kind.name: kind for kind in conditions}

    def register_target(self, kind: type[TransitionTarget]) -> None:
        """Know a target by its name; the last one of a name is taken."""
        self._targets[kind.name] = kind

    def register_condition(self, kind: type[TransitionCondition]) -> None:
        """Know a condition by its name; the last one of a name is taken."""
        self._conditions[kind.name] = kind

    def target(self, found: Any) -> TransitionTarget:
        """The target that data describes.

        Raises:
            ConfigurationError: It names none that is registered, or not its fields.
        """
        return cast("TransitionTarget", _made(found, self._targets, "target"))

    def condition(self, found: Any) -> TransitionCondition:
        """The condition that data describes.

        Raises:
            ConfigurationError: It names none that is registered, or not its fields.
        """
        return cast("TransitionCondition", _made(found, self._conditions, "condition"))


_DEFAULT: Final = TransitionRegistry()


def register_target(kind: type[TransitionTarget]) -> None:
    """Let graphs everywhere in this process name a target of your own."""
    _DEFAULT.register_target(kind)


def register_condition(kind: type[TransitionCondition]) -> None:
    """Let graphs everywhere in this process name a condition of your own."""
    _DEFAULT.register_condition(kind)


@dataclass(frozen=True, slots=True)
class TransitionGraph:
    """Who speaks after whom.

    Attributes:
        initial_speaker: Who begins.
        transitions: The rules; the first that fits is taken.
        default_target: Where it goes when none fits.
        max_turns: After so many turns the session ends; None for no end.

    Raises:
        ConfigurationError: A number of turns that is none.
    """

    initial_speaker: str
    transitions: Sequence[Transition] = ()
    default_target: TransitionTarget = field(default_factory=TerminateTarget)
    max_turns: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transitions", tuple(self.transitions))
        if not isinstance(self.initial_speaker, str):
            raise ConfigurationError(f"initial_speaker of a graph is {self.initial_speaker!r}; give a participant's id")
        if self.max_turns is not None and (type(self.max_turns) is not int or self.max_turns < 1):
            raise ConfigurationError(f"max_turns of a graph is {self.max_turns!r}; give 1 or more, or None")

    def select(self, state: Turns, envelope: Envelope) -> TransitionDecision:
        """Who speaks after an envelope; the state is the one after it."""
        for transition in sorted(self.transitions, key=lambda one: one.priority):
            if transition.when.evaluate(state, envelope):
                return transition.then.resolve(state, envelope)
        return self.default_target.resolve(state, envelope)

    def named(self) -> tuple[str, ...]:
        """The participants whom it names: its first speaker, and those of its built-in targets and conditions."""
        parts = [*(t.when for t in self.transitions), *(t.then for t in self.transitions), self.default_target]
        return (self.initial_speaker, *(one.agent_id for one in parts if isinstance(one, AgentTarget | FromSpeaker)))

    def to_dict(self) -> dict[str, Any]:
        """The graph as JSON, for a session's knobs; `loads` reads it back."""
        return {
            "initial_speaker": self.initial_speaker,
            "transitions": [
                {"when": _described(one.when), "then": _described(one.then), "priority": one.priority}
                for one in self.transitions
            ],
            "default_target": _described(self.default_target),
            "max_turns": self.max_turns,
        }

    def dumps(self) -> str:
        """`to_dict` as a JSON text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def loads(cls, found: str | Mapping[str, Any], *, registry: TransitionRegistry | None = None) -> TransitionGraph:
        """Read what `to_dict` or `dumps` wrote.

        Args:
            found: The data.
            registry: The targets and conditions that it may name; None for those of the process.

        Raises:
            ConfigurationError: It is no graph, or names what is not registered; the message says where.
        """
        known = _DEFAULT if registry is None else registry
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except (ValueError, RecursionError) as error:
                raise ConfigurationError(f"a graph is no JSON: {error}") from error
        if not isinstance(found, Mapping):
            raise ConfigurationError(f"a graph is a JSON object, not {type(found).__name__}")
        listed = found.get("transitions") or []
        if not isinstance(listed, list | tuple):
            raise ConfigurationError(f"transitions of a graph is a list, not {type(listed).__name__}")
        default = found.get("default_target")
        return cls(
            initial_speaker=found.get("initial_speaker"),  # type: ignore[arg-type]  # looked at when it is made
            transitions=tuple(_transition(one, index, known) for index, one in enumerate(listed)),
            default_target=TerminateTarget() if default is None else known.target(default),
            max_turns=found.get("max_turns"),
        )

    @classmethod
    def round_robin(cls, participants: Iterable[str], *, max_turns: int | None = None) -> TransitionGraph:
        """All in turn, as the session lists them, until `max_turns`; the first of these begins.

        Raises:
            ConfigurationError: There is nobody.
        """
        first = next(iter(participants), None)
        if first is None:
            raise ConfigurationError("round_robin takes at least 1 participant")
        return cls(
            first, (Transition(Always(), RoundRobinTarget()),), TerminateTarget("round_robin_complete"), max_turns
        )

    @classmethod
    def sequence(cls, steps: Iterable[str]) -> TransitionGraph:
        """One after the other, and then the end (``sequence_complete``).

        Raises:
            ConfigurationError: There is no step, or one participant has two; give transitions for that.
        """
        steps = list(steps)
        if not steps:
            raise ConfigurationError("sequence takes at least 1 step")
        if twice := sorted({step for step in steps if steps.count(step) > 1}):
            raise ConfigurationError(
                f"sequence names {', '.join(map(repr, twice))} twice, and a step follows from who spoke; "
                "give transitions with conditions that tell the two apart"
            )
        pairs = pairwise(steps)
        transitions = tuple(Transition(FromSpeaker(one), AgentTarget(other)) for one, other in pairs)
        return cls(steps[0], transitions, TerminateTarget("sequence_complete"), len(steps))


def _transition(found: Any, index: int, known: TransitionRegistry) -> Transition:
    if not isinstance(found, Mapping):
        raise ConfigurationError(f"transition {index} of a graph is a JSON object, not {type(found).__name__}")
    priority = found.get("priority", 0)
    if type(priority) is not int or abs(priority) > LARGEST_INTEGER:
        raise ConfigurationError(f"priority of transition {index} of a graph is {priority!r}; give a whole number")
    try:
        return Transition(known.condition(found.get("when")), known.target(found.get("then")), priority)
    except ConfigurationError as error:
        raise ConfigurationError(f"transition {index} of a graph: {error}") from error


def _made(found: Any, kinds: Mapping[str, Any], what: str) -> Any:
    name = found.get("name") if isinstance(found, Mapping) else None
    if not isinstance(name, str):
        raise ConfigurationError(f"a {what} is a JSON object with a name, not {found!r}")
    if name not in kinds:
        raise ConfigurationError(f"there is no transition {what} {name!r}; known: {', '.join(sorted(kinds))}")
    args = found.get("args") or {}
    try:
        made = kinds[name](**args)
    except TypeError as error:
        raise ConfigurationError(f"transition {what} {name!r} cannot be made of {args!r}: {error}") from error
    wrong = [key for key in ("agent_id", "tool_name", "key", "reason") if not isinstance(args.get(key, ""), str)]
    if wrong:
        raise ConfigurationError(f"{wrong[0]} of transition {what} {name!r} is {args[wrong[0]]!r}; give a text")
    return made


def _described(one: Any) -> dict[str, Any]:
    return {"name": one.name, "args": asdict(one) if is_dataclass(type(one)) else {}}
