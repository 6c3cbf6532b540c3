"""Whose ledger an assembly is in: a ledger is one conversation as one asker, such as an agent or a node, has it."""

from __future__ import annotations

from typing import Final

from otel_assembly._internal.forks import new_lock
from otel_assembly.instrumentation.hooks import ByIdentity


class LedgerKey:
    """Stands for the ledger of one conversation as one asker has it; the ledger goes when this goes."""

    __slots__ = ("__weakref__",)


class LedgerKeys:
    """The keys of each conversation that is an object, by who asks; they live as long as that object."""

    __slots__ = ("_lock", "_of")

    def __init__(self) -> None:
        self._lock = new_lock()
        self._of: ByIdentity[dict[str, LedgerKey]] = ByIdentity()

    def of(self, conversation: object, asker: str) -> LedgerKey | None:
        """The same key for the same asker; None where nobody can tell when the conversation is gone."""
        with self._lock:
            keys = self._of.get(conversation)
            if keys is None:
                keys = self._of.put(conversation, {})
                if self._of.get(conversation) is None:  # an object with slots may not be weakly held
                    return None
            return keys.setdefault(asker, LedgerKey())


LEDGER_KEYS: Final = LedgerKeys()
