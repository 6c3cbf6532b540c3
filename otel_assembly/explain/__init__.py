"""What happened to an item at a turn, and what would have kept it: from exported spans alone.

::

    ledger = next(iter(read_ledgers(read_spans("spans.jsonl")).values()))
    print(explain(ledger, turn=7, item="3").raises)

The chain of the turn is run again, by our own policies, on what the ledger states of the conversation: kinds, tokens,
bytes, pairs, settings. Nothing is answered that such a run has not shown; what the traces do not tell is said to be
not known.
"""

from otel_assembly.explain.explaining import Explainer, explain
from otel_assembly.explain.explanation import (
    Absence,
    BlockPlace,
    BlockShare,
    Competitor,
    Explanation,
    Holder,
    Limit,
    Part,
    Raise,
    Standing,
    Unsent,
)
from otel_assembly.explain.wording import RULES, headline, said, said_of_unsent

__all__ = [
    "RULES",
    "Absence",
    "BlockPlace",
    "BlockShare",
    "Competitor",
    "Explainer",
    "Explanation",
    "Holder",
    "Limit",
    "Part",
    "Raise",
    "Standing",
    "Unsent",
    "explain",
    "headline",
    "said",
    "said_of_unsent",
]
