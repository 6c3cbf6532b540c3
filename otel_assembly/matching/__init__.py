"""Which events that came out are those that went in: pure comparison of sequences."""

from otel_assembly.matching.event_index import EventMatcher, moved
from otel_assembly.matching.sequence_diff import diff_sequences

__all__ = [
    "EventMatcher",
    "diff_sequences",
    "moved",
]
