"""Snapshots: folded sessions as JSON, so that hubs need not read a log from its start."""

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

#: The format version; snapshots of another version are ignored and the session is folded from its rows.
_FORM: Final = 1

#: The fields of a folded session that are serialized directly, unlike the adapter's state.
_PLAIN: Final = tuple(f.name for f in fields(FoldedSession) if f.name not in ("adapter_state", "state", "waits"))

_WAITS: Final = TypeAdapter(PendingWaits)


def adapter_key(adapter: SessionAdapter) -> str:
    """Return the key of an adapter's snapshots: its type and version."""
    return f"{adapter.manifest.type}/{adapter.manifest.version}"


def dump_snapshot(folded: FoldedSession, adapter: SessionAdapter) -> Snapshot | None:
    """Return a snapshot of a folded session; None if the adapter's state cannot be restored exactly."""
    try:
        state = _dump_state(folded.adapter_state, adapter)
        kept = {name: getattr(folded, name) for name in _PLAIN}
        waits = _WAITS.dump_python(folded.waits, mode="json")
        made = {"form": _FORM, "state": folded.state.value, "adapter_state": state, "waits": waits, **kept}
        text = json.dumps(made, allow_nan=False)
        snapshot = Snapshot(folded.seq, text)
        same = load_snapshot(snapshot, folded, adapter) == folded
    except Exception as error:  # noqa: BLE001 - without a snapshot, the state is folded from the rows
        _log.debug("no snapshot of %s: %s", adapter_key(adapter), type(error).__name__)
        return None
    return snapshot if same else None


def load_snapshot(snapshot: Snapshot, fresh: FoldedSession, adapter: SessionAdapter) -> FoldedSession | None:
    """Return the folded session from a snapshot; None if its format version differs.

    Args:
        snapshot: The stored snapshot.
        fresh: The session before its first row; its state has the type to restore.
        adapter: The session's adapter.
    """
    found = json.loads(snapshot.state)
    if found.get("form") != _FORM:
        return None
    plain = {name: _tuple(found[name]) for name in _PLAIN}
    state = _load_state(found["adapter_state"], fresh.adapter_state, adapter)
    waits = _WAITS.validate_python(found["waits"])
    return replace(fresh, adapter_state=state, state=SessionState(found["state"]), waits=waits, **plain)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _dump_state(state: Any, adapter: SessionAdapter) -> Any:
    dump = getattr(adapter, "dump_state", None)
    if dump is not None:
        return dump(state)
    if isinstance(state, BaseModel) or is_dataclass(state):
        return TypeAdapter(type(state)).dump_python(state, mode="json")
    raise TypeError(type(state).__name__)


def _load_state(kept: Any, like: Any, adapter: SessionAdapter) -> Any:
    load = getattr(adapter, "load_state", None)
    if load is not None:
        return load(kept)
    # In JSON mode, pydantic converts a list to the tuple or set of the field's type.
    return TypeAdapter(type(like)).validate_json(json.dumps(kept))
