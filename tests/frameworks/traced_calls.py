"""Model calls with spans, as an instrumentation of the model's client makes them."""

from __future__ import annotations

import inspect

CALL = "chat model"


def span_of_call(telemetry):
    """The span of a model call, as a context manager around the call."""
    return telemetry.tracer().start_as_current_span(CALL, attributes={"gen_ai.operation.name": "chat"})


class TracedCalls(list):
    """The calls that a program's models receive; each has a span."""

    def __init__(self, telemetry):
        super().__init__()
        self._telemetry = telemetry

    def append(self, received):
        with span_of_call(self._telemetry):
            super().append(received)


async def check_summarizers_calls(telemetry, program, stage):
    """Run a program whose summarizers' calls are each within a ``compact_block``."""
    stage.summaries = TracedCalls(telemetry)
    ended = program(stage)
    if inspect.isawaitable(ended):
        await ended
    check_compact_blocks(telemetry)


def check_compact_blocks(telemetry):
    """Each call is within a ``compact_block``, which is its parent, or links to it if it is recorded later."""
    blocks = [span for span in telemetry.spans if span.name.startswith("compact_block")]
    calls = telemetry.spans_named(CALL)
    assert len(calls) == len(blocks) > 0
    for call in calls:
        around = [call.parent] if call.parent in blocks else []
        around += [block for block in blocks if call.span_id in {link.span_id for link in block.links}]
        (block,) = around
        assert block.start_ns <= call.start_ns <= call.end_ns <= block.end_ns
        assert "assembly.id" not in call.attributes


def check_linked(telemetry):
    """Each model call has no parent, and links to the assembly that was made for it."""
    calls, assemblies = telemetry.spans_named(CALL), telemetry.spans_named("assemble_context")
    assert {call.parent for call in calls} == {None}
    ids = [assembly.attributes["assembly.id"] for assembly in assemblies]
    assert [call.attributes.get("assembly.id") for call in calls] == ids
    assert [link.span_id for call in calls for link in call.links] == [assembly.span_id for assembly in assemblies]
