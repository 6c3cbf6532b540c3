"""Packets: envelopes with an agent's answer in a workflow, its handoff, and changes of the workflow's variables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from otel_assembly.errors import ProtocolError
from otel_assembly.events import ModelResponse, ToolCallEvent, ToolResultEvent, ToolResultsEvent
from otel_assembly.sessions.envelope import EV_CONTEXT_SET, EV_PACKET, Envelope

_ROUTINGS: Final = ("text", "handoff", "finish")

#: The most levels of nesting in the value of a workflow's variable.
_MOST_LEVELS: Final = 50


@dataclass(frozen=True, slots=True)
class Handoff:
    """A handoff to another participant; a tool of an agent returns it to choose the next speaker.

    Attributes:
        target: The participant's id, or its name in the session's setting ``names``.
        reason: The reason for the handoff; the next speaker's model reads it.
        routing: Marks the tool's result as a handoff.
    """

    target: str
    reason: str = ""
    routing: Literal["handoff"] = "handoff"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a workflow; a tool of an agent returns it to close the session.

    Attributes:
        summary: The result of the workflow.
        reason: The session's close reason.
        routing: Marks the tool's result as an end.
    """

    summary: str = ""
    reason: str = "finished"
    routing: Literal["finish"] = "finish"


def packet_data(
    body: str,
    routing: Mapping[str, Any] | None = None,
    context_set: Mapping[str, Any] | None = None,
    context_delete: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the ``event_data`` of a packet.

    Args:
        body: The answer's text.
        routing: The choice of the next speaker, such as ``{"kind": "handoff", "target": "bob"}``; None if the
            workflow's graph chooses.
        context_set: The workflow's variables to set, by name; None for none.
        context_delete: The names of the workflow's variables to delete.
    """
    updates = {"set": dict(context_set or {}), "delete": list(context_delete)}
    return {"routing": dict(routing or {"kind": "text"}), "context_updates": updates, "body": body}


def check_packet(envelope: Envelope, participants: Sequence[str]) -> None:
    """Raise `ProtocolError` if a packet (an envelope of type ``EV_PACKET``) is invalid."""
    data, where = envelope.event_data, _where(envelope)
    routing = data.get("routing")
    if not isinstance(routing, Mapping):
        raise ProtocolError(f"{where} has no routing; give event_data={{'routing': {{'kind': 'text'}}, 'body': '…'}}")
    kind = routing.get("kind")
    if kind not in _ROUTINGS:
        raise ProtocolError(f"{where} has the routing kind {kind!r}; known: {', '.join(_ROUTINGS)}")
    for name in ("tool", "reason", "summary", "target"):
        if not isinstance(routing.get(name, ""), str):
            raise ProtocolError(
                f"{where}: {name} of its routing is of type {type(routing[name]).__name__}; give a text"
            )
    if kind == "handoff":
        target = routing.get("target")
        if not target and not routing.get("tool"):
            raise ProtocolError(
                f"{where} is a handoff without a target; give its routing a target, "
                "or the name of a tool in a transition of the graph"
            )
        if target and target not in participants:
            raise ProtocolError(
                f"{where} hands off to {target!r}, not a participant; give one of {', '.join(map(repr, participants))}"
            )
    if not isinstance(data.get("body", ""), str):
        raise ProtocolError(f"{where}: its body is of type {type(data['body']).__name__}; give a text")
    if "context_updates" in data:
        _check_updates(data["context_updates"], where)


def check_context_set(envelope: Envelope) -> None:
    """Raise `ProtocolError` if an envelope of type ``EV_CONTEXT_SET`` has no valid changes of variables."""
    data, where = envelope.event_data, _where(envelope)
    if "set" not in data and "delete" not in data:
        raise ProtocolError(f"{where} changes nothing; give event_data={{'set': {{…}}}} or {{'delete': […]}}")
    _check_updates(data, where)


def _check_updates(updates: Any, where: str) -> None:
    if not isinstance(updates, Mapping):
        raise ProtocolError(
            f"{where}: its updates are of type {type(updates).__name__}; give {{'set': {{…}}, 'delete': […]}}"
        )
    to_set, to_delete = updates.get("set", {}), updates.get("delete", [])
    if not isinstance(to_set, Mapping) or not all(isinstance(key, str) for key in to_set):
        raise ProtocolError(f"{where}: 'set' of its updates is no JSON object; give a dict from names to values")
    if not isinstance(to_delete, list | tuple) or not all(isinstance(key, str) for key in to_delete):
        raise ProtocolError(f"{where}: 'delete' of its updates is no list of names; give a list of texts")
    for key, value in to_set.items():
        if not _is_shallow(value, _MOST_LEVELS):
            raise ProtocolError(f"{where}: the value of {key!r} is nested deeper than {_MOST_LEVELS} levels")


def routing_of(envelope: Envelope) -> Mapping[str, Any]:
    """Return how a packet chooses the next speaker (its routing); empty if the routing is missing or invalid."""
    routing = envelope.event_data.get("routing") if envelope.event_type == EV_PACKET else None
    return routing if isinstance(routing, Mapping) else {}


def updated_variables(variables: Mapping[str, Any], envelope: Envelope) -> Mapping[str, Any]:
    """Return a workflow's variables after the changes of an envelope; invalid changes are ignored."""
    data: Any = envelope.event_data
    updates = data if envelope.event_type == EV_CONTEXT_SET else data.get("context_updates")
    if not isinstance(updates, Mapping):
        return variables
    to_set, to_delete = updates.get("set"), updates.get("delete")
    after = dict(variables)
    if isinstance(to_set, Mapping):
        values = {
            key: value for key, value in to_set.items() if isinstance(key, str) and _is_shallow(value, _MOST_LEVELS)
        }
        after.update({key: _deep_copy(value) for key, value in values.items()})
    if isinstance(to_delete, list | tuple):
        for key in to_delete:
            if isinstance(key, str):
                after.pop(key, None)
    return after


def packet_text(envelope: Envelope) -> str | None:
    """Return a packet as text for the next speaker: its handoff, the reason and the body; None if it has neither."""
    routing, body = routing_of(envelope), envelope.event_data.get("body")
    lines = []
    if routing.get("kind") == "handoff":
        tool, reason = routing.get("tool"), routing.get("reason")
        signal = f"[Handed off via {tool}]" if isinstance(tool, str) and tool else "[Handed off]"
        lines.append(f"{signal} {reason}" if isinstance(reason, str) and reason else signal)
    if isinstance(body, str) and body:
        lines.append(body)
    return "\n".join(lines) or None


def routing_of_round(events: Sequence[Any], routing_tools: frozenset[str]) -> dict[str, Any]:
    """Return the routing of an agent's round: how the round chooses the next speaker.

    The first tool call with a routing decides. A call has a routing if its tool returned a `Handoff` or a `Finish`, or
    if a transition of the workflow's graph names the tool. Agents of other libraries can put a `Handoff` or a `Finish`
    directly among the events.

    Args:
        events: The events of the round, in order.
        routing_tools: The names of the tools in the graph's transitions.
    """
    calls: list[ToolCallEvent] = []
    results: dict[str, str] = {}
    for event in events:
        if isinstance(event, Handoff | Finish):
            return _as_routing(event)
        if isinstance(event, ToolCallEvent):
            calls.append(event)
        elif isinstance(event, ModelResponse):
            calls.extend(event.tool_calls)
        for result in event.results if isinstance(event, ToolResultsEvent) else (event,):
            if isinstance(result, ToolResultEvent):
                results[result.parent_id] = result.content
    for call in calls:
        if returned := _handoff_or_finish(results.get(call.id)):
            return {**_as_routing(returned), "tool": call.name}
        if call.name in routing_tools:
            reason = _json_object(call.arguments).get("reason")
            return {"kind": "handoff", "tool": call.name, "reason": reason if isinstance(reason, str) else ""}
    return {"kind": "text"}


def _as_routing(result: Handoff | Finish) -> dict[str, Any]:
    if isinstance(result, Handoff):
        return {"kind": "handoff", "target": result.target, "reason": result.reason}
    return {"kind": "finish", "summary": result.summary, "reason": result.reason}


def _handoff_or_finish(content: str | None) -> Handoff | Finish | None:
    """Return the `Handoff` or `Finish` that a tool returned as JSON; None for other results."""
    fields = _json_object(content or "")
    if not all(isinstance(value, str) for value in fields.values()):
        return None
    if fields.keys() == {"target", "reason", "routing"} and fields["routing"] == "handoff":
        return Handoff(fields["target"], fields["reason"])
    if fields.keys() == {"summary", "reason", "routing"} and fields["routing"] == "finish":
        return Finish(fields["summary"], fields["reason"])
    return None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_shallow(value: Any, levels: int) -> bool:
    """Return True if a value has at most this many levels of nesting."""
    if not isinstance(value, Mapping | list | tuple):
        return True
    children = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_is_shallow(child, levels - 1) for child in children)


def _deep_copy(value: Any) -> Any:
    """Return a deep copy of JSON data, so that later changes of an envelope's data do not change the state."""
    if isinstance(value, Mapping):
        return {key: _deep_copy(child) for key, child in value.items()}
    return [_deep_copy(child) for child in value] if isinstance(value, list | tuple) else value


def _where(envelope: Envelope) -> str:
    return f"session {envelope.session_id!r}: an envelope of type {envelope.event_type!r} from {envelope.sender_id!r}"
