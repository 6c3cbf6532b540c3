"""Snapshots: the states of sessions as JSON, so that hubs need not read a log from its start.

A folded session is the state of a session that was computed from its rows, one after another.
"""

from __future__ import annotations

import json
import logging
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, TypeAdapter

from otel_assembly.sessions.expectations import PendingWaits
from otel_assembly.sessions.folded_session import FoldedSession
from otel_assembly.sessions.log import Snapshot
from otel_assembly.sessions.metadata import SessionState

if TYPE_CHECKING:
    from otel_assembly.sessions.adapter import SessionAdapter

_log = logging.getLogger(__name__)

#: The version of the JSON format; a snapshot of another version is ignored, and the rows are read from the start.
_FORMAT: Final = 1

#: The fields of a folded session that are JSON values already.
_JSON_FIELDS: Final = tuple(f.name for f in fields(FoldedSession) if f.name not in ("adapter_state", "state", "waits"))

_WAITS: Final = TypeAdapter(PendingWaits)


def adapter_key(adapter: SessionAdapter) -> str:
    """Return the key of a protocol's snapshots: the adapter's type and version, such as ``discussion/1``."""
    return f"{adapter.manifest.type}/{adapter.manifest.version}"


def dump_snapshot(folded: FoldedSession, adapter: SessionAdapter) -> Snapshot | None:
    """Return a snapshot of a folded session; None if the state of its protocol cannot be restored exactly from JSON."""
    try:
        state = _dump_state(folded.adapter_state, adapter)
        values = {name: getattr(folded, name) for name in _JSON_FIELDS}
        waits = _WAITS.dump_python(folded.waits, mode="json")
        content = {"form": _FORMAT, "state": folded.state.value, "adapter_state": state, "waits": waits, **values}
        text = json.dumps(content, allow_nan=False)
        snapshot = Snapshot(folded.seq, text)
        is_exact = load_snapshot(snapshot, folded, adapter) == folded
    except Exception as error:  # noqa: BLE001 - without a snapshot, hubs read the rows from the start
        _log.debug("no snapshot of %s: %s", adapter_key(adapter), type(error).__name__)
        return None
    return snapshot if is_exact else None


def load_snapshot(snapshot: Snapshot, fresh: FoldedSession, adapter: SessionAdapter) -> FoldedSession | None:
    """Return the folded session from a snapshot; None if the snapshot has another format version.

    Args:
        snapshot: The stored snapshot.
        fresh: The session before its first row; its ``adapter_state`` has the type to restore.
        adapter: The adapter of the session's protocol.
    """
    content = json.loads(snapshot.state)
    if content.get("form") != _FORMAT:
        return None
    plain = {name: _tuple(content[name]) for name in _JSON_FIELDS}
    state = _load_state(content["adapter_state"], fresh.adapter_state, adapter)
    waits = _WAITS.validate_python(content["waits"])
    return replace(fresh, adapter_state=state, state=SessionState(content["state"]), waits=waits, **plain)


def _tuple(value: Any) -> Any:
    """Return a list as a tuple, because JSON has no tuples; other values as they are."""
    return tuple(value) if isinstance(value, list) else value


def _dump_state(state: Any, adapter: SessionAdapter) -> Any:
    dump = getattr(adapter, "dump_state", None)
    if dump is not None:
        return dump(state)
    if isinstance(state, BaseModel) or is_dataclass(state):
        return TypeAdapter(type(state)).dump_python(state, mode="json")
    raise TypeError(type(state).__name__)


def _load_state(stored: Any, like: Any, adapter: SessionAdapter) -> Any:
    load = getattr(adapter, "load_state", None)
    if load is not None:
        return load(stored)
    # In JSON mode, pydantic converts a list to the tuple or set of the field's type.
    return TypeAdapter(type(like)).validate_json(json.dumps(stored))
