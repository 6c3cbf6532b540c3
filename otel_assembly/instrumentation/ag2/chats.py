"""Model calls of AG2's own telemetry: their spans say only after they have started that they are model calls."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from otel_assembly.telemetry.recorder import OpenTelemetryRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.instrumentor import Instrumentation


def on_llm_call(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `TelemetryMiddleware`: by the time it calls on, its span can be told from others, and is stamped."""

    @wraps(original)
    async def traced(self: Any, call_next: Any, events: Any, context: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, call_next, events, context)

        async def stamped(events: Any, context: Any) -> Any:
            with instrumentation.contained():
                recorder = instrumentation.recorder
                processor = recorder.stamping() if isinstance(recorder, OpenTelemetryRecorder) else None
                span = trace.get_current_span()
                if processor is not None and span.is_recording():
                    processor.on_start(span)
            return await call_next(events, context)

        return await original(self, stamped, events, context)

    return traced
