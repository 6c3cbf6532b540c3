"""Explain what happened to an item on a turn, and what would have kept it, from exported spans.

::

    ledger = next(iter(read_ledgers(read_spans("spans.jsonl")).values()))
    print(explain(ledger, turn=7, item="3").raises)

The policies of the turn are run again on the recorded numbers of the conversation: kinds, tokens, bytes, tool pairs and
settings. Every limit in an answer is the result of such a run. What the spans do not record is reported as unknown.
"""

from otel_assembly.explain.explaining import Explainer, explain
from otel_assembly.explain.explanation import (
    BlockPlace,
    BlockShare,
    Competitor,
    CoveringSummary,
    DroppedGroup,
    Explanation,
    ItemPosition,
    Limit,
    LimitIncrease,
    Part,
    Unsent,
)
from otel_assembly.explain.wording import RULES, detail_lines, headline, unsent_lines

__all__ = [
    "RULES",
    "BlockPlace",
    "BlockShare",
    "Competitor",
    "CoveringSummary",
    "DroppedGroup",
    "Explainer",
    "Explanation",
    "ItemPosition",
    "Limit",
    "LimitIncrease",
    "Part",
    "Unsent",
    "detail_lines",
    "explain",
    "headline",
    "unsent_lines",
]
