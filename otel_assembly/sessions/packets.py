"""Packets: an agent's round in a workflow, with its handoff and the variables that it sets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from otel_assembly.errors import ProtocolError
from otel_assembly.events import ModelResponse, ToolCallEvent, ToolResultEvent, ToolResultsEvent
from otel_assembly.sessions.envelope import EV_CONTEXT_SET, EV_PACKET, Envelope

_ROUTINGS: Final = ("text", "handoff", "finish")

#: How deep the value of a workflow's variable may be nested.
_DEEPEST: Final = 50


@dataclass(frozen=True, slots=True)
class Handoff:
    """A handoff to a participant. A tool returns it to choose the next speaker.

    Attributes:
        target: The participant's id, or its name in the session's knob ``names``.
        reason: Why; the next speaker reads it.
    """

    target: str
    reason: str = ""
    routing: Literal["handoff"] = "handoff"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the session. A tool returns it to finish a workflow.

    Attributes:
        summary: The result.
        reason: The close reason of the session.
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
    """Return the data of a packet."""
    updates = {"set": dict(context_set or {}), "delete": list(context_delete)}
    return {"routing": dict(routing or {"kind": "text"}), "context_updates": updates, "body": body}


def check_packet(envelope: Envelope, participants: Sequence[str]) -> None:
    """Raise `ProtocolError` if the content of an ``EV_PACKET`` is invalid."""
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
    """Raise `ProtocolError` if an ``EV_CONTEXT_SET`` contains no valid update."""
    data, where = envelope.event_data, _where(envelope)
    if "set" not in data and "delete" not in data:
        raise ProtocolError(f"{where} changes nothing; give event_data={{'set': {{…}}}} or {{'delete': […]}}")
    _check_updates(data, where)


def _check_updates(updates: Any, where: str) -> None:
    if not isinstance(updates, Mapping):
        raise ProtocolError(
            f"{where}: its updates are of type {type(updates).__name__}; give {{'set': {{…}}, 'delete': […]}}"
        )
    put, gone = updates.get("set", {}), updates.get("delete", [])
    if not isinstance(put, Mapping) or not all(isinstance(key, str) for key in put):
        raise ProtocolError(f"{where}: 'set' of its updates is no JSON object; give names and values")
    if not isinstance(gone, list | tuple) or not all(isinstance(key, str) for key in gone):
        raise ProtocolError(f"{where}: 'delete' of its updates is no list of names")
    for key, value in put.items():
        if not _shallow(value, _DEEPEST):
            raise ProtocolError(f"{where}: the value of {key!r} is nested deeper than {_DEEPEST} levels")


def routing_of(envelope: Envelope) -> Mapping[str, Any]:
    """Return a packet's routing; empty if it is missing or invalid."""
    routing = envelope.event_data.get("routing") if envelope.event_type == EV_PACKET else None
    return routing if isinstance(routing, Mapping) else {}


def updated(variables: Mapping[str, Any], envelope: Envelope) -> Mapping[str, Any]:
    """Return a workflow's variables after an envelope; invalid updates are ignored."""
    data: Any = envelope.event_data
    updates = data if envelope.event_type == EV_CONTEXT_SET else data.get("context_updates")
    if not isinstance(updates, Mapping):
        return variables
    put, gone = updates.get("set"), updates.get("delete")
    after = dict(variables)
    if isinstance(put, Mapping):
        values = {key: value for key, value in put.items() if isinstance(key, str) and _shallow(value, _DEEPEST)}
        after.update({key: _copied(value) for key, value in values.items()})
    if isinstance(gone, list | tuple):
        for key in gone:
            if isinstance(key, str):
                after.pop(key, None)
    return after


def packet_text(envelope: Envelope) -> str | None:
    """Return a packet as text for the next speaker: handoff, reason and body; None if it is empty."""
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
    """Return the routing of an agent's round; the first call with a routing decides.

    A call has a routing if its tool returned a `Handoff` or a `Finish`, or if a transition of the graph names the tool.
    Agents of other libraries may put a `Handoff` or a `Finish` directly among the events.
    """
    calls: list[ToolCallEvent] = []
    results: dict[str, str] = {}
    for event in events:
        if isinstance(event, Handoff | Finish):
            return _routed(event)
        if isinstance(event, ToolCallEvent):
            calls.append(event)
        elif isinstance(event, ModelResponse):
            calls.extend(event.tool_calls)
        for result in event.results if isinstance(event, ToolResultsEvent) else (event,):
            if isinstance(result, ToolResultEvent):
                results[result.parent_id] = result.content
    for call in calls:
        if returned := _returned(results.get(call.id)):
            return {**_routed(returned), "tool": call.name}
        if call.name in routing_tools:
            reason = _object(call.arguments).get("reason")
            return {"kind": "handoff", "tool": call.name, "reason": reason if isinstance(reason, str) else ""}
    return {"kind": "text"}


def _routed(result: Handoff | Finish) -> dict[str, Any]:
    if isinstance(result, Handoff):
        return {"kind": "handoff", "target": result.target, "reason": result.reason}
    return {"kind": "finish", "summary": result.summary, "reason": result.reason}


def _returned(content: str | None) -> Handoff | Finish | None:
    """Return the `Handoff` or `Finish` in a tool result's JSON."""
    found = _object(content or "")
    if not all(isinstance(value, str) for value in found.values()):
        return None
    if found.keys() == {"target", "reason", "routing"} and found["routing"] == "handoff":
        return Handoff(found["target"], found["reason"])
    if found.keys() == {"summary", "reason", "routing"} and found["routing"] == "finish":
        return Finish(found["summary"], found["reason"])
    return None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _shallow(value: Any, levels: int) -> bool:
    """Return True if a value has at most this many levels of nesting."""
    if not isinstance(value, Mapping | list | tuple):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_shallow(one, levels - 1) for one in inner)


def _copied(value: Any) -> Any:
    """Return a deep copy, so that a folded state never changes."""
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list | tuple) else value


def _where(envelope: Envelope) -> str:
    return f"session {envelope.session_id!r}: an envelope of type {envelope.event_type!r} from {envelope.sender_id!r}"
