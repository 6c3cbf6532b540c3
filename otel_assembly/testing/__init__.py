"""Helpers for tests: telemetry recorded in memory, conversations made from words, and a model with scripted answers.

Only `RecordedTelemetry` needs the OpenTelemetry SDK, when it is created. With
``pytest_plugins = ["otel_assembly.testing.plugin"]`` in the root ``conftest.py``, tests have a fixture::

    async def test_the_window_drops_the_oldest_events(assembly_telemetry):
        await Assembler([SlidingWindowPolicy(1)]).assemble([], conversation("ask", "answer", "ask"), Context())
        span = assembly_telemetry.span("apply_policy sliding_window")
        assert span.dropped_reasons == {"0": "outside_window", "1": "outside_window"}
"""

from otel_assembly.testing.conversations import assert_paired, conversation, said
from otel_assembly.testing.recorded import Distribution, Point, RecordedLog, RecordedTelemetry
from otel_assembly.testing.recorded_span import Arrived, RecordedSpan
from otel_assembly.testing.scripted_model import ReceivedCall, ScriptedModel

__all__ = [
    "Arrived",
    "Distribution",
    "Point",
    "ReceivedCall",
    "RecordedLog",
    "RecordedSpan",
    "RecordedTelemetry",
    "ScriptedModel",
    "assert_paired",
    "conversation",
    "said",
]
