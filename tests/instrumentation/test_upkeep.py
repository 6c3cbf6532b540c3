"""The care of a history, between the calls of a model: an assembly of its own, known by its name."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from pretend_instrumentor import reading

from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    InvokingAgent,
    ModelCall,
    client,
    maintenance_hook,
    reducer,
)

HISTORY = [{"role": "user", "content": str(number)} for number in range(4)]


@contextmanager
def compaction(instrumentation, history):
    yield ModelCall(instrumentation, InvokingAgent("talk", "clerk", "clerk"), messages=history, name="compaction")


READS = reading(lambda history: history, lambda result, _: result, "compaction")


def wrapped(original, reads=READS, **settings):
    return maintenance_hook(reads, compaction, **settings)(original, Instrumentation("pretend"))


def of(telemetry):
    (told,) = telemetry.spans_named("assemble_context")
    assert told.attributes["assembly.name"] == "compaction"
    assert telemetry.violations() == []
    return told.attributes


def test_what_it_took_out_is_told_as_an_assembly_with_a_name(assembly_telemetry):
    assert wrapped(lambda history: history[-2:])(HISTORY) == HISTORY[-2:]
    told = of(assembly_telemetry)
    assert (told["assembly.events.in"], told["assembly.events.out"]) == (4, 2)
    assert assembly_telemetry.span("apply_policy compaction").dropped_reasons == {"0": "policy", "1": "policy"}


def test_where_there_was_nothing_to_do_it_is_a_count(assembly_telemetry):
    wrapped(lambda history: history)(HISTORY)
    assert assembly_telemetry.spans == []
    assert assembly_telemetry.metric("assembly.policy.declined", policy_name="compaction") == 1


async def test_what_fails_leaves_the_history_as_it_was(assembly_telemetry):
    async def fails(history):
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await wrapped(fails)(HISTORY)
    told = of(assembly_telemetry)
    assert told["assembly.events.out"] == 4
    assert told["error.type"] == "ConnectionError"


def test_whatever_it_calls_is_a_part_of_it(assembly_telemetry):
    instrumentation = Instrumentation("pretend")
    model = client(lambda messages: ClientRequest(messages, model="gpt-4o"), str)(
        lambda messages: "They talked.", instrumentation
    )

    def summarises(history):
        return [{"role": "user", "content": model(history[:2])}, *history[2:]]

    reduces = reducer(reading(lambda history: history, lambda result, _: result, "window"))
    window = reduces(lambda history: history[:3], instrumentation)
    wrapped(lambda history: window(wrapped(summarises)(history)))(HISTORY)
    assert of(assembly_telemetry)["assembly.events.out"] == 3
    assert assembly_telemetry.span("compact_block summary").attributes["assembly.compaction.compactor"] == "gpt-4o"


def test_one_that_takes_nothing_out_is_told_where_it_always_is(assembly_telemetry):
    wrapped(lambda history: "noted", reading(lambda history: history, policy="compaction"), always=True)(HISTORY)
    assert of(assembly_telemetry)["assembly.events.out"] == 4
