"""Explains from exported spans why a message was kept or dropped on a turn, and which limit would have kept it.

::

    ledger = next(iter(read_ledgers(read_spans("spans.jsonl")).values()))
    print(explain(ledger, turn=7, item="3").raises)

The turn's policies are run again on the numbers that the spans record: kinds, tokens, bytes and tool pairs of the
messages, and the policies' settings. Each limit in an explanation is the result of such a rerun. Facts that the spans
do not record are listed as unknown.
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
