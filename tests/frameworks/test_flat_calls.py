"""An instrumented model call costs the same at any length of a conversation, as long as its messages stay unchanged."""

from __future__ import annotations

import warnings

import pytest
from counting import Calls
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from programs import HERE

from benchmarks.framework_agents import AGENTS, Role
from otel_assembly.instrumentation import instrument, uninstrument

#: The most calls of the library's functions per model call.
MOST = 2_000


@pytest.fixture
def instrumented(request):
    """The framework of a test's parameter, instrumented with an SDK that records and exports nothing."""
    tracers = TracerProvider(shutdown_on_exit=False)
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    instrument(request.param, tracer_provider=tracers, meter_provider=meters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a framework's warnings are for its users
        yield request.param
    uninstrument(request.param)


async def calls_per_model_call(agent, messages):
    """Return the calls of the library's functions per model call, after a conversation of `messages` messages."""
    ask = agent(Role(turns=messages // 2))
    for number in range(3):  # the first call reads the whole conversation
        await ask(f"Next {number}.")
    with Calls() as calls:
        for number in range(4):
            await ask(f"Then {number}.")
    return calls.made // 4


@pytest.mark.parametrize("instrumented", HERE, indirect=True)
async def test_a_model_call_takes_as_many_calls_in_a_long_conversation_as_in_a_short_one(instrumented):
    made = [await calls_per_model_call(AGENTS[instrumented], messages) for messages in (50, 500, 5_000)]
    assert 100 < max(made) <= min(made) * 1.1, made
    assert max(made) <= MOST
