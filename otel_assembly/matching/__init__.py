"""Find the input events of a step among its output events, by comparing sequences."""

from otel_assembly.matching.event_index import EventMatcher, moved
from otel_assembly.matching.sequence_diff import diff_sequences

__all__ = [
    "EventMatcher",
    "diff_sequences",
    "moved",
]
