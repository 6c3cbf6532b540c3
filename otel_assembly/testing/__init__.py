"""For your own tests: telemetry recorded in memory, conversations written in words, a model that answers by script.

Importing this needs no OpenTelemetry SDK; `RecordedTelemetry` does when it is made. With pytest, the fixture
``assembly_telemetry`` is there as soon as this package is installed::

    async def test_the_window_says_what_it_took(assembly_telemetry):
        await Assembler([SlidingWindowPolicy(1)]).assemble([], conversation("ask", "answer", "ask"), Context())
        span = assembly_telemetry.span("apply_policy sliding_window")
        assert span.dropped_reasons == {0: "outside_window", 1: "outside_window"}
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
