"""Whose ledger an assembly is in: a ledger is one conversation as one asker, such as an agent or a node, has it."""

from __future__ import annotations

from typing import Final

from otel_assembly._internal.forks import new_lock
from otel_assembly.instrumentation.hooks import ByIdentity


class Asked:
    """Stands for one conversation as one asker has it."""

    __slots__ = ("__weakref__",)


class Askers:
    """What stands for each asker of a conversation; it lives as long as the object that is the conversation."""

    __slots__ = ("_lock", "_of")

    def __init__(self) -> None:
        self._lock = new_lock()
        self._of: ByIdentity[dict[str, Asked]] = ByIdentity()

    def of(self, conversation: object, asker: str) -> Asked | None:
        """The same object for the same asker; None where nobody can tell when the conversation is gone."""
        with self._lock:
            known = self._of.get(conversation)
            if known is None:
                known = self._of.put(conversation, {})
                if self._of.get(conversation) is None:  # an object with slots may not be weakly held
                    return None
            return known.setdefault(asker, Asked())


ASKERS: Final = Askers()
