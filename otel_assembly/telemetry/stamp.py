"""The link from a model call's span to the assembly that made its prompt.

The current span is stamped where it is the model call itself (AG2's telemetry opens it before the prompt is assembled);
else the next model call with the same trace and parent is, once. A summariser's call inside an assembly has another
parent, and so is never taken for it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.forks import new_lock
from otel_assembly.telemetry import conventions as names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span, SpanContext

    from otel_assembly.telemetry.failures import Failures

MODEL_CALLS: Final = frozenset({"chat", "generate_content", "text_completion"})
#: Assemblies that wait for their model call; the oldest give up.
_WAITING: Final = 1_024


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a model call is to know of its assembly."""

    assembly_id: str
    span: SpanContext
    reduced: bool

    def put_on(self, span: Span) -> None:
        """Stamp a model call's span."""
        span.set_attribute(names.ID, self.assembly_id)
        if self.reduced:
            span.set_attribute(names.GEN_AI_CONVERSATION_COMPACTED, True)
        if self.span.is_valid and self.span.trace_flags.sampled:
            span.add_link(self.span)


def is_model_call(span: Any) -> bool:
    """Whether a span is one of GenAI's model calls; only an SDK's span tells."""
    attributes: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    return attributes.get(names.GEN_AI_OPERATION_NAME) in MODEL_CALLS


def is_under(span: Any, parent: Span) -> bool:
    """Whether a span is a child of another."""
    of = getattr(span, "parent", None)
    return of is not None and of.span_id == parent.get_span_context().span_id


class StampingProcessor:
    """A span processor of the SDK, by its shape: it only looks at spans as they start."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._lock = new_lock()
        self._waiting: OrderedDict[tuple[int, int], Stamp] = OrderedDict()

    def await_call(self, parent: SpanContext, stamp: Stamp) -> None:
        """Stamp the next model call under this parent."""
        key = parent.trace_id, parent.span_id
        with self._lock:
            earlier = self._waiting.get(key)
            if earlier is not None and earlier.reduced and not stamp.reduced:
                # Several assemblies made one prompt, as where reducers run as separate steps: what one of them
                # reduced stays reduced.
                stamp = replace(stamp, reduced=True)
            self._waiting[key] = stamp
            self._waiting.move_to_end(key)
            if len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Stamp a model call that an assembly waits for."""
        if not self._waiting or span.parent is None:
            return
        with self._failures.contained("stamp"):
            if is_model_call(span):
                with self._lock:
                    stamp = self._waiting.pop((span.parent.trace_id, span.parent.span_id), None)
                if stamp is not None:
                    stamp.put_on(span)

    def _on_ending(self, span: Any) -> None:
        """Nothing is done as a span ends: it takes no attributes any more."""

    def on_end(self, span: Any) -> None:
        """Nothing is done as a span ends."""

    def shutdown(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True
