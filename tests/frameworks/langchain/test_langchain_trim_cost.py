"""What one `trim_messages` inside an instrumented model call costs: modules that are entered, and calls that are made.

A node of a graph trims the conversation and calls the model with the result. Both calls are measured in the fifth turn,
when the conversation has 21 messages, with an SDK, a span processor and a metric reader in memory. A *module* is a file
of this library whose code runs; a *call* is a Python call of a function, comprehension or generator in such a file.
The graph's own hooks run around the node, and are not measured. A span of the program is current, as in a service,
and the conversation has a thread id.

trim: from the call of `trim_messages` until it returns
recorded: that, and what the recording of the step adds to the model call: the turn minus a turn that does not trim
turn: that, and the whole model call with its recording
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, trim_messages
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_assembly
from otel_assembly.instrumentation import instrument

LIBRARY = str(Path(otel_assembly.__file__).parent)
#: The most modules and the most calls. Lower them when a change makes the numbers fall.
MOST = {"trim": (14, 94), "recorded": (23, 175), "turn": (39, 526)}
TURN = 4


class Measured:
    """The calls of the library's functions in its blocks, by module; the garbage collector does not run in them."""

    def __init__(self):
        self.calls = Counter()

    def __enter__(self):
        self._collects = gc.isenabled()
        gc.disable()
        sys.setprofile(self._seen)

    def __exit__(self, *_):
        sys.setprofile(None)
        if self._collects:
            gc.enable()

    def _seen(self, frame, event, _):
        path = frame.f_code.co_filename  # a hidden wrapper's has a mark behind the path
        if event == "call" and path.startswith(LIBRARY):
            self.calls[path.partition(".py")[0]] += 1


def measured(tracer, thread_id, *, trims):
    """The calls in `trim_messages`, and those in the whole turn."""
    model, turns = FakeListChatModel(responses=["an answer"]), iter(range(TURN + 1))
    trim, turn = Measured(), Measured()

    def node(state):
        is_measured, messages = next(turns) == TURN, state["messages"]
        if trims:
            settings = {"max_tokens": 6, "token_counter": len, "include_system": True, "start_on": "human"}
            if is_measured:
                with trim:
                    messages = trim_messages(messages, **settings)
            else:
                messages = trim_messages(messages, **settings)
            assert len(messages) == 6
        if not is_measured:
            return {"messages": [model.invoke(messages)]}
        with turn:
            return {"messages": [model.invoke(messages)]}

    graph = StateGraph(MessagesState).add_node("agent", node).add_edge(START, "agent").compile()
    messages = [SystemMessage("be kind", id="system")]
    for number in range(6):
        messages += [HumanMessage(f"question {number} " * 8, id=f"q{number}"), AIMessage("an answer", id=f"a{number}")]
    for number in range(TURN + 1):
        messages = [*messages, HumanMessage(f"next {number} " * 8, id=f"n{number}")]
        with tracer.start_as_current_span("request"):
            messages = graph.invoke({"messages": messages}, {"configurable": {"thread_id": thread_id}})["messages"]
    return trim.calls, trim.calls + turn.calls


def costs():
    """The calls by module of each part, in a process in which nothing else has run."""
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([InMemoryMetricReader()])
    tracers.add_span_processor(SimpleSpanProcessor(exporter := InMemorySpanExporter()))
    instrument("langchain", tracer_provider=tracers, meter_provider=meters)
    tracer = tracers.get_tracer("program")
    measured(tracer, "first", trims=True)  # fills the caches of the process
    assert [span.name for span in exporter.get_finished_spans()].count("apply_policy trim_messages") == TURN + 1
    trim, turn = measured(tracer, "second", trims=True)
    assert (trim, turn) == measured(tracer, "third", trims=True)
    return {"trim": trim, "recorded": turn - measured(tracer, "untrimmed", trims=False)[1], "turn": turn}


@pytest.fixture(scope="module")
def printed():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("part", MOST)
def test_a_trim_in_a_model_call_enters_few_modules_with_few_calls(part, printed):
    calls, (most_modules, most_calls) = printed[part], MOST[part]
    assert len(calls) <= most_modules, calls
    assert sum(calls.values()) <= most_calls, calls


if __name__ == "__main__":
    print(json.dumps(costs()))
