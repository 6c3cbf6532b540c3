"""Selects and orders the events that are sent to a provider, with each tool result after its call.

Providers accept the results of a response's calls only directly after the response, one per call. `Pairing` assigns
results to calls. Duplicates of other events, and results without a call, are not sent.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import RenderError
from otel_assembly.events import ModelResponse, ToolCallEvent, ToolErrorEvent, ToolResultEvent, ToolResultsEvent
from otel_assembly.history.tool_pairs import ECHO, ORPHAN, Pairing
from otel_assembly.messages.event_facts import ROLES, EventFacts, EventKind, describe, sendable
from otel_assembly.runtime.rendered_parts import CallPart, ResultPart, Text, content_parts, is_chat_message, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.runtime.rendered_parts import Part

#: The deepest nesting of JSON that a model may write. Deeper values fail in some Python versions and HTTP clients.
_MAX_LEVELS: Final = 100
_TOO_DEEP: Final = f"it is nested more than {_MAX_LEVELS} levels deep"
_FIX: Final = (
    "pass events of otel_assembly or message dicts of a supported provider; or send it with the client that created it"
)


@dataclass(slots=True)
class Answer:
    """The result of one tool call.

    Attributes:
        position: The index of the event that contains the result.
        call_id: The call's id in the event.
        parts: The parts of the result's content.
        is_error: True if the tool failed.
        message: The message dict, if the whole message is the result; otherwise None.
        raw: The part of a message dict that is the result; None if there is no such part.
    """

    position: int
    call_id: str
    parts: Sequence[Part]
    is_error: bool = False
    message: dict[str, Any] | None = None
    raw: dict[str, Any] | None = None


@dataclass(slots=True)
class Call:
    """A tool call of a response, with its result.

    Attributes:
        id: The call's id in the event.
        name: The tool's name.
        arguments: The arguments as text, usually JSON.
        answer: The result; None if the call has no result.
    """

    id: str
    name: str
    arguments: str
    answer: Answer | None = None


@dataclass(slots=True)
class RenderedTurn:
    """An event that is sent to the provider as a message, with the results of its tool calls.

    Attributes:
        position: The event's index.
        event: The event.
        facts: The facts that `describe` returns for the event.
        parts: The parts of a message dict, without tool results; for a chat message, the parts of its content.
        calls: The event's tool calls.
        answers: The results of the calls, in the order in which they occur.
    """

    position: int
    event: Any
    facts: EventFacts
    parts: Sequence[Part] = ()
    calls: list[Call] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def is_chat(self) -> bool:
        """True if the event is a message dict in the form of OpenAI's Chat Completions."""
        return isinstance(self.event, dict) and self.event.get("role") in ROLES and is_chat_message(self.event)

    @property
    def role(self) -> str:
        """The role in which a message dict is sent: ``system``, ``user`` or ``assistant``."""
        kind = self.facts.kind
        if kind == EventKind.SYSTEM:
            return "system"
        if kind in (EventKind.RESPONSE, EventKind.TOOL_CALL):
            return "assistant"
        role = self.event.get("role")
        return "user" if role is None else _ROLES.get(ROLES.get(role, EventKind.RESPONSE), "user")

    def add_answer(self, answer: Answer) -> None:
        """Add the result of a tool call, and assign it to its call.

        Several calls may have the same id. The result belongs to the first of them that has no result yet.

        Args:
            answer: The result, with the id of its call (`Answer.call_id`).
        """
        for call in self.calls:
            if call.answer is None and call.id == answer.call_id:
                call.answer = answer
                break
        self.answers.append(answer)

    def render_error(self, provider: str, problem: str) -> RenderError:
        """Return the error for this event, which cannot be converted to the form of a provider.

        Args:
            provider: The provider's name.
            problem: Why the event cannot be converted.
        """
        return RenderError(type(self.event), provider, problem, self.position, _FIX)


_ROLES: Final = {EventKind.SYSTEM: "system", EventKind.RESPONSE: "assistant"}


def rendered_turns(events: Sequence[Any], provider: str) -> list[RenderedTurn]:
    """Return the events that are messages, in order, each with the results of its calls.

    Args:
        events: The events, of any supported type.
        provider: The name of the target provider, for errors.

    Raises:
        DescribeError: The type of an event is not supported.
        RenderError: A message has tool calls or results in a form that cannot be converted.
    """
    pairing = Pairing()
    turns: list[RenderedTurn] = []
    turns_by_position: dict[int, RenderedTurn] = {}
    for position, event in enumerate(events):
        facts = describe(event)
        call_positions = pairing.answered_by(facts)
        flags = pairing.append(facts)
        if flags & ECHO or not facts.rendered:
            continue
        turn = RenderedTurn(position, event, facts)
        parts = _parts(turn)
        turn.parts = [part for part in parts if not isinstance(part, ResultPart)]
        turn.calls = _calls(turn, provider)
        answers = list(_answers(turn, parts, provider))
        if not flags & ORPHAN:
            for call_position, answer in zip(call_positions, answers, strict=True):
                if call_position >= 0:  # below 0: a duplicate of an earlier result
                    turns_by_position[call_position].add_answer(answer)
        has_other_parts = any(isinstance(part, ResultPart) for part in parts) and turn.parts
        if facts.kind == EventKind.TOOL_RESULT and not has_other_parts:
            continue
        turns.append(turn)
        turns_by_position[position] = turn
    return turns


def _parts(turn: RenderedTurn) -> Sequence[Part]:
    """Return the parts of a message dict.

    A call and its result in the same message both become texts, because providers accept no such pair.
    """
    if not isinstance(turn.event, dict):
        return ()
    parts: list[Part] = []
    open_call_ids, answered_call_ids = list(turn.facts.opens), list(turn.facts.closes)
    for part in parts_of(turn.event):
        if isinstance(part, CallPart):
            if part.id not in open_call_ids:
                parts += [Text(part.name), Text(part.arguments)]
                continue
            open_call_ids.remove(part.id)
        elif isinstance(part, ResultPart):
            if part.call_id not in answered_call_ids:
                parts += part.content
                continue
            answered_call_ids.remove(part.call_id)
        parts.append(part)
    return parts


def _calls(turn: RenderedTurn, provider: str) -> list[Call]:
    event, facts = turn.event, turn.facts
    if isinstance(event, dict):
        calls = [Call(part.id, part.name, part.arguments) for part in turn.parts if isinstance(part, CallPart)]
        calls_outside_content = facts.calls[sum(isinstance(part, CallPart) for part in parts_of(event)) :]
        calls += [Call(call.id, call.name, call.arguments) for call in calls_outside_content]
        if len(calls) != len(facts.opens):
            raise turn.render_error(provider, "it contains tool calls in an unknown form")
        return calls
    if facts.opens and not isinstance(event, (ModelResponse, ToolCallEvent)):
        raise turn.render_error(provider, "it contains tool calls in a form that only its framework can read")
    return [Call(call.id, call.name, call.arguments) for call in facts.calls]


def _answers(turn: RenderedTurn, parts: Sequence[Part], provider: str) -> Iterator[Answer]:
    event, position = turn.event, turn.position
    if isinstance(event, (ToolResultEvent, ToolErrorEvent)):
        yield _answer(position, event)
    elif isinstance(event, ToolResultsEvent):
        yield from (_answer(position, result) for result in event.results)
    elif isinstance(event, dict):
        results = [part for part in parts if isinstance(part, ResultPart)]
        for part in results:
            yield Answer(position, part.call_id, part.content, part.is_error, raw=part.raw)
        for index, call_id in enumerate(
            turn.facts.closes[len(results) :]
        ):  # transcript recorders join several results into one text
            yield Answer(position, call_id, [] if index else turn.parts, message=event)
    elif turn.facts.closes:
        raise turn.render_error(provider, "it contains tool results in a form that only its framework can read")


def _answer(position: int, event: ToolResultEvent | ToolErrorEvent) -> Answer:
    is_error = isinstance(event, ToolErrorEvent)
    text = event.error if isinstance(event, ToolErrorEvent) else event.content
    return Answer(position, event.parent_id, content_parts(text), is_error)


def sendable_json(value: Any) -> Any:
    """Replace text that cannot be encoded as UTF-8 in a JSON value; return the same object if there is none."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        changed = {sendable_json(key): sendable_json(item) for key, item in value.items()}
        return value if all(map(is_, chain(changed, changed.values()), chain(value, value.values()))) else changed
    if isinstance(value, (list, tuple)):
        items = [sendable_json(item) for item in value]
        return value if all(map(is_, items, value)) else items
    return value


def read_json(text: str) -> Any:
    """Parse a JSON text and return a value that can be sent as JSON again.

    Raises:
        ValueError: The text is not JSON, contains NaN or an infinite number, or is nested more than 100 levels deep.
    """
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > _MAX_LEVELS < _nesting_depth(value):
        raise ValueError(_TOO_DEEP)
    return sendable_json(value)


def _nesting_depth(value: Any) -> int:
    """Return how deep objects and lists are nested in a JSON value."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _finite(number: str) -> float:
    """Parse a number; raise `ValueError` for NaN and infinite numbers, also for texts that overflow, such as 1e999."""
    if not math.isfinite(value := float(number)):
        raise ValueError(number)
    return value


def unique_ids(ids: Sequence[str]) -> list[str]:
    """Return unique ids for the calls of one response; a model may use the same id twice."""
    unique: list[str] = []
    for original in ids:
        candidate, number = original, 2
        while candidate in unique or (candidate != original and candidate in ids):
            candidate, number = f"{original}_{number}", number + 1
        unique.append(candidate)
    return unique
