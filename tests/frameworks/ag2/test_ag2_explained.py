"""What the command line makes of the traces of an AG2 agent that lost its first request."""

from __future__ import annotations

from ag2_package import MemoryStream, Model, ag2, policies
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_assembly.cli import file_exporter, main
from otel_assembly.instrumentation import instrument, uninstrument
from otel_assembly.recorder import using_recorder
from otel_assembly.telemetry import OpenTelemetryRecorder


async def test_explain_names_the_lost_request_and_the_policy(tmp_path, capsys):
    path = str(tmp_path / "spans.jsonl")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(file_exporter(path)))
    agent = ag2.Agent(
        "support",
        config=Model("one", "two", "three"),
        assembly=[policies.ConversationPolicy(), policies.SlidingWindowPolicy(3)],
    )
    stream = MemoryStream()
    with using_recorder(OpenTelemetryRecorder(tracer_provider=provider)):
        instrument("ag2")
        try:
            for text in ("My order 7 never came.", "Hello?", "Anybody?"):
                await agent.ask(text, stream=stream)
        finally:
            uninstrument("ag2")
    provider.shutdown()
    assert main(["explain", "--traces", path, "--turn", "2", "--item", "0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Item 0 (request, 11 tokens) is not in the prompt of turn 2.")
    assert "sliding_window (policy 1), outside_window" in said
