"""Folded sessions as JSON: what a hub keeps so that another one need not read a log from its start."""

from __future__ import annotations

import json
import logging
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, TypeAdapter

from otel_assembly.sessions.expectations import Waits
from otel_assembly.sessions.folded import FoldedSession
from otel_assembly.sessions.log import Snapshot
from otel_assembly.sessions.metadata import SessionState

if TYPE_CHECKING:
    from otel_assembly.sessions.adapter import SessionAdapter

_log = logging.getLogger(__name__)

#: Raised with the form, so that what an earlier release kept is folded anew.
_FORM: Final = 1

#: What is kept of a folded session as it is; the adapter's state is kept in its own form.
_PLAIN: Final = tuple(f.name for f in fields(FoldedSession) if f.name not in ("adapter_state", "state", "waits"))

_WAITS: Final = TypeAdapter(Waits)


def adapter_key(adapter: SessionAdapter) -> str:
    """The name that an adapter's snapshots are kept under: its type and its version."""
    return f"{adapter.manifest.type}/{adapter.manifest.version}"


def dump_snapshot(folded: FoldedSession, adapter: SessionAdapter) -> Snapshot | None:
    """A folded session as a snapshot; None where its adapter's state has no form that is read back equal."""
    try:
        state = _dump_state(folded.adapter_state, adapter)
        kept = {name: getattr(folded, name) for name in _PLAIN}
        waits = _WAITS.dump_python(folded.waits, mode="json")
        made = {"form": _FORM, "state": folded.state.value, "adapter_state": state, "waits": waits, **kept}
        text = json.dumps(made, allow_nan=False)
        snapshot = Snapshot(folded.seq, text)
        same = load_snapshot(snapshot, folded, adapter) == folded
    except Exception as error:  # noqa: BLE001 - a state of the user's own, in whatever form: without a snapshot it is folded
        _log.debug("no snapshot of %s: %s", adapter_key(adapter), type(error).__name__)
        return None
    return snapshot if same else None


def load_snapshot(snapshot: Snapshot, fresh: FoldedSession, adapter: SessionAdapter) -> FoldedSession | None:
    """The folded session that a snapshot holds; None where it is of another form.

    Args:
        snapshot: What a log kept.
        fresh: The session before its first row, whose state says what the kept one is made into.
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
    # Read as JSON, where a list may be a tuple or a set, as its type says.
    return TypeAdapter(type(like)).validate_json(json.dumps(kept))
