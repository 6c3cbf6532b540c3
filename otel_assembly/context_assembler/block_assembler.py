"""The assembler inside of a `ContextAssembler`: an ordinary one that remembers longer texts, and summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from otel_assembly._internal.forks import new_lock
from otel_assembly.assembler import Assembler
from otel_assembly.budget.measure import meter_of_blocks
from otel_assembly.context_assembler.compaction_cache import KeptCompactions
from otel_assembly.context_assembler.gather import error_type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context
    from otel_assembly.errors import SourceFailedError
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.tokens import TokenCounter, TokenMeter


class DeskAssembler(Assembler):
    """Assembles blocks that are laid out as events."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._lock = new_lock()
        self._kept: WeakKeyDictionary[Ledger, KeptCompactions] = WeakKeyDictionary()

    def kept(self, context: Context) -> KeptCompactions:
        """What compaction made in a conversation; it goes with the conversation's ledger."""
        ledger = self._ledgers.of((), context)
        with self._lock:
            return self._kept.setdefault(ledger, KeptCompactions())

    def tell_failures(self, failures: Sequence[SourceFailedError]) -> None:
        """Let whoever watches know of the sources that failed."""
        for one in failures:
            self._recorded_by().source_failed(one.role, one.source, error_type_of(one))

    def _new_meter(self, counter: TokenCounter) -> TokenMeter:
        return meter_of_blocks(counter, self.framing)
