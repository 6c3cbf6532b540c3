"""Functions that make a summary inside of a reducer, and those that give what the summariser is to read."""

from __future__ import annotations

import pytest
from pretend_instrumentor import reading

from otel_assembly.instrumentation import (
    Instrumentation,
    ModelCall,
    reducer,
    summarizer_input_hook,
    summary_hook,
)

HISTORY = [{"role": "user", "content": f"message {number}"} for number in range(6)]


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


class Compactor:
    """A framework's reducer, which shows its summariser the last of what is to be summarised."""

    def __init__(self, instrumentation, says="They said so."):
        self._says = says
        self._read = summarizer_input_hook(lambda *_: "Summariser")(self._read, instrumentation)
        self._summary = summary_hook(lambda messages: messages)(self._summary, instrumentation)
        self.reduce = reducer(reading(lambda messages: messages, lambda result, _: result, "compactor"))(
            self._reduce, instrumentation
        )

    def _read(self, messages):
        return messages[-2:]

    def _summary(self, messages):
        self._read(messages)
        return self._says

    def _reduce(self, messages):
        return [{"role": "user", "content": self._summary(messages[:-1])}, messages[-1]]


def reduced(instrumentation, **settings):
    call = ModelCall(instrumentation, messages=HISTORY)
    with call.current():
        Compactor(instrumentation, **settings).reduce(HISTORY)
    call.end()


def test_what_the_summariser_read_is_compacted_and_what_it_never_saw_is_dropped(instrumentation, assembly_telemetry):
    reduced(instrumentation)
    step = assembly_telemetry.span("apply_policy compactor").attributes
    assert (step["assembly.dropped.count"], step["assembly.compacted.count"]) == (3, 2)
    assert [
        compaction.attributes["assembly.compaction.outcome"] for compaction in _compactions(assembly_telemetry)
    ] == ["compacted"]


def test_a_summary_that_is_none_has_lost_what_it_stands_for(instrumentation, assembly_telemetry):
    reduced(instrumentation, says="")
    step = assembly_telemetry.span("apply_policy compactor").attributes
    assert (step["assembly.dropped.count"], step["assembly.compacted.count"]) == (5, 0)
    assert [
        compaction.attributes["assembly.compaction.outcome"] for compaction in _compactions(assembly_telemetry)
    ] == ["empty"]


def test_outside_of_any_reducer_nothing_is_told(instrumentation, assembly_telemetry):
    assert Compactor(instrumentation)._summary(HISTORY) == "They said so."
    assert assembly_telemetry.spans == []


def _compactions(telemetry):
    return [span for span in telemetry.spans if span.name.startswith("compact_block")]
