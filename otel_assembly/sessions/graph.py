"""`TransitionGraph`: the order of speakers in a workflow, stored as JSON in the session's settings (`knobs`)."""

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
    """The classes of targets and conditions that a graph's JSON data may name, including the built-in ones.

    A condition says when a transition applies, and a target says who speaks next.
    """

    def __init__(self) -> None:
        targets = (AgentTarget, RoundRobinTarget, StayTarget, RevertToInitiatorTarget, TerminateTarget)
        conditions = (Always, FromSpeaker, ToolCalled, ContextEquals)
        self._targets: dict[str, type[TransitionTarget]] = {kind.name: kind for kind in targets}
        self._conditions: dict[str, type[TransitionCondition]] = {kind.name: kind for kind in conditions}

    def register_target(self, kind: type[TransitionTarget]) -> None:
        """Register a target class under its `name`, and replace an earlier class of the same name."""
        self._targets[kind.name] = kind

    def register_condition(self, kind: type[TransitionCondition]) -> None:
        """Register a condition class under its `name`, and replace an earlier class of the same name."""
        self._conditions[kind.name] = kind

    def target(self, found: Any) -> TransitionTarget:
        """Build a target from its JSON object, ``{"name": …, "args": {…}}``.

        Raises:
            ConfigurationError: The name is not registered, or the target does not accept the arguments.
        """
        return cast("TransitionTarget", _build(found, self._targets, "target"))

    def condition(self, found: Any) -> TransitionCondition:
        """Build a condition from its JSON object, ``{"name": …, "args": {…}}``.

        Raises:
            ConfigurationError: The name is not registered, or the condition does not accept the arguments.
        """
        return cast("TransitionCondition", _build(found, self._conditions, "condition"))


_PROCESS_REGISTRY: Final = TransitionRegistry()


def register_target(kind: type[TransitionTarget]) -> None:
    """Register a target class for all graphs in this process."""
    _PROCESS_REGISTRY.register_target(kind)


def register_condition(kind: type[TransitionCondition]) -> None:
    """Register a condition class for all graphs in this process."""
    _PROCESS_REGISTRY.register_condition(kind)


@dataclass(frozen=True, slots=True)
class TransitionGraph:
    """The order of speakers in a workflow: rules that select who speaks next after each envelope.

    Attributes:
        initial_speaker: The participant that speaks first.
        transitions: The rules. The first matching rule applies, in ascending order of priority.
        default_target: The target if no rule matches.
        max_turns: The number of turns after which the session ends; None for no limit.

    Raises:
        ConfigurationError: `initial_speaker` is not a text, or `max_turns` is not a whole number above 0.
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
        """Return who speaks next after an envelope, or that the session ends; `state` is the state after it."""
        for transition in sorted(self.transitions, key=lambda transition: transition.priority):
            if transition.when.evaluate(state, envelope):
                return transition.then.resolve(state, envelope)
        return self.default_target.resolve(state, envelope)

    def named(self) -> tuple[str, ...]:
        """Return the ids of all participants that the graph names: the first speaker, then those of its rules.

        Only built-in targets and conditions are searched, and an id can occur several times.
        """
        parts = [*(t.when for t in self.transitions), *(t.then for t in self.transitions), self.default_target]
        return (self.initial_speaker, *(part.agent_id for part in parts if isinstance(part, AgentTarget | FromSpeaker)))

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as a JSON object for a session's settings (`knobs`); `loads` reads it."""
        return {
            "initial_speaker": self.initial_speaker,
            "transitions": [
                {"when": _to_object(rule.when), "then": _to_object(rule.then), "priority": rule.priority}
                for rule in self.transitions
            ],
            "default_target": _to_object(self.default_target),
            "max_turns": self.max_turns,
        }

    def dumps(self) -> str:
        """Return the result of `to_dict` as a JSON text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def loads(cls, found: str | Mapping[str, Any], *, registry: TransitionRegistry | None = None) -> TransitionGraph:
        """Build a graph from the output of `to_dict` or `dumps`.

        Args:
            found: The JSON object or text.
            registry: The targets and conditions that the data may name; None for the registry of the process.

        Raises:
            ConfigurationError: The data is not a graph, or contains an unregistered name; the message names the place.
        """
        registry = _PROCESS_REGISTRY if registry is None else registry
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except (ValueError, RecursionError) as error:
                raise ConfigurationError(f"a graph is not valid JSON: {error}") from error
        if not isinstance(found, Mapping):
            raise ConfigurationError(f"a graph is a JSON object, not {type(found).__name__}")
        rules = found.get("transitions") or []
        if not isinstance(rules, list | tuple):
            raise ConfigurationError(f"transitions of a graph is a list, not {type(rules).__name__}")
        default = found.get("default_target")
        return cls(
            initial_speaker=found.get("initial_speaker"),  # type: ignore[arg-type]  # __post_init__ checks it
            transitions=tuple(_transition(rule, index, registry) for index, rule in enumerate(rules)),
            default_target=TerminateTarget() if default is None else registry.target(default),
            max_turns=found.get("max_turns"),
        )

    @classmethod
    def round_robin(cls, participants: Iterable[str], *, max_turns: int | None = None) -> TransitionGraph:
        """Return a graph in which all participants speak in turn, in the order of the session's participants.

        Args:
            participants: Participants of the session. The first one speaks first; the others are ignored.
            max_turns: The number of turns after which the session ends; None for no limit.

        Raises:
            ConfigurationError: `participants` is empty.
        """
        first_speaker = next(iter(participants), None)
        if first_speaker is None:
            raise ConfigurationError("round_robin takes at least 1 participant")
        return cls(
            first_speaker,
            (Transition(Always(), RoundRobinTarget()),),
            TerminateTarget("round_robin_complete"),
            max_turns,
        )

    @classmethod
    def sequence(cls, steps: Iterable[str]) -> TransitionGraph:
        """Return a graph in which each participant speaks once, in this order; then the session ends.

        The session closes with the reason ``sequence_complete``.

        Raises:
            ConfigurationError: `steps` is empty or names a participant twice. For repeated speakers, write transitions.
        """
        steps = list(steps)
        if not steps:
            raise ConfigurationError("sequence takes at least 1 step")
        if repeated := sorted({step for step in steps if steps.count(step) > 1}):
            raise ConfigurationError(
                f"sequence names {', '.join(map(repr, repeated))} twice, but the speaker alone selects the next step; "
                "write transitions with conditions that distinguish the two steps"
            )
        pairs = pairwise(steps)
        transitions = tuple(Transition(FromSpeaker(speaker), AgentTarget(successor)) for speaker, successor in pairs)
        return cls(steps[0], transitions, TerminateTarget("sequence_complete"), len(steps))


def _transition(rule: Any, index: int, registry: TransitionRegistry) -> Transition:
    if not isinstance(rule, Mapping):
        raise ConfigurationError(f"transition {index} of a graph is a JSON object, not {type(rule).__name__}")
    priority = rule.get("priority", 0)
    if type(priority) is not int or abs(priority) > LARGEST_INTEGER:
        raise ConfigurationError(f"priority of transition {index} of a graph is {priority!r}; give a whole number")
    try:
        return Transition(registry.condition(rule.get("when")), registry.target(rule.get("then")), priority)
    except ConfigurationError as error:
        raise ConfigurationError(f"transition {index} of a graph: {error}") from error


def _build(data: Any, classes: Mapping[str, Any], role: str) -> Any:
    """Build a target or a condition from its JSON object; `role` is "target" or "condition"."""
    name = data.get("name") if isinstance(data, Mapping) else None
    if not isinstance(name, str):
        raise ConfigurationError(f"a {role} is a JSON object with a name, not {data!r}")
    if name not in classes:
        raise ConfigurationError(f"there is no transition {role} {name!r}; known: {', '.join(sorted(classes))}")
    args = data.get("args") or {}
    try:
        part = classes[name](**args)
    except TypeError as error:
        raise ConfigurationError(f"transition {role} {name!r} does not accept {args!r}: {error}") from error
    for key in ("agent_id", "tool_name", "key", "reason"):
        if not isinstance(args.get(key, ""), str):
            raise ConfigurationError(f"{key} of transition {role} {name!r} is {args[key]!r}; give a text")
    return part


def _to_object(part: Any) -> dict[str, Any]:
    return {"name": part.name, "args": asdict(part) if is_dataclass(type(part)) else {}}
