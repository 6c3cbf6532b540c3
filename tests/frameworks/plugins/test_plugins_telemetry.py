"""A plug-in in an instrumented program: each model call has one assembly, which describes what the model received."""

from __future__ import annotations

import asyncio

import pytest
from plugin_talks import each_framework, each_shared, each_way_of_calls, fatal

from otel_assembly import AlertPolicy, HaltedError, SlidingWindowPolicy

LOOKS = [*(["call:look", "call:look"] for _ in range(6)), "Done."]


@each_way_of_calls
async def test_each_model_call_has_one_assembly_within_its_run(adapter, instrumented):
    talk = adapter.talk(adapter.plugin([SlidingWindowPolicy(3)], name="window"), *LOOKS)
    assert await talk.ask("Find all") == "Done."
    spans = instrumented.spans_named("assemble_context")
    assert [span.attributes["assembly.turn"] for span in spans] == [*range(7)]
    assert {span.attributes["assembly.name"] for span in spans} == {"window"}
    assert {span.attributes["gen_ai.agent.name"] for span in spans} == {talk.agent_name}
    assert {span.attributes.get("gen_ai.conversation.id") for span in spans} == {talk.conversation_id}
    steps = {f"apply_policy {name}" for name in ("sliding_window", *talk.own_steps)}
    assert all({step.name for step in span.children} == steps for span in spans)
    assert {span.parent.name for span in spans} == {talk.run_span}
    assert [span.attributes["assembly.tokens.out"] for span in spans] == [call.tokens for call in talk.calls]
    assert [span.attributes["assembly.events.out"] for span in spans] == [len(call.events) for call in talk.calls]


@each_framework
async def test_a_run_that_is_halted_has_the_halt_as_its_error(adapter, instrumented):
    async def stop() -> str:
        """Stop."""
        await talk.context.send(fatal())
        return "stopped"

    talk = adapter.talk(adapter.plugin([AlertPolicy()]), "call:stop", tools=(stop,))
    for _ in range(2):
        with pytest.raises(HaltedError, match="stolen"):
            await talk.ask("Go")
    first, later = instrumented.spans_named(talk.run_span)
    assert (first.status, first.attributes["error.type"]) == ("ERROR", "assembly_halt")
    assert later.status == ("UNSET" if talk.answers_when_halted else "ERROR")
    assert instrumented.metric("assembly.halts") == 1


@each_shared
async def test_conversations_that_run_concurrently_do_not_mix(adapter, assembly_telemetry):
    plugin = adapter.plugin([SlidingWindowPolicy(3)])
    talks = [adapter.talk(plugin, "call:look", "Done.", conversation=str(number)) for number in range(5)]
    assert await asyncio.gather(*(talk.ask(f"Go {number}") for number, talk in enumerate(talks))) == ["Done."] * 5
    turns: dict[str, list[int]] = {}
    for span in assembly_telemetry.spans_named("assemble_context"):
        turns.setdefault(span.attributes["assembly.ledger.id"], []).append(span.attributes["assembly.turn"])
    assert list(turns.values()) == [[0, 1]] * 5
    for number, talk in enumerate(talks):
        assert all(call.texts[0] == f"Go {number}" for call in talk.calls)
