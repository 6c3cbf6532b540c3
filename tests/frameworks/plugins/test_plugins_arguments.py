"""The arguments of the plug-ins: objects and values for policies, and errors for wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest
from plugin_talks import each_framework

from otel_assembly import Assembler, ConfigurationError, SlidingWindowPolicy
from otel_assembly.knowledge import KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.runtime import TokenMonitor


class Order:
    number = 4711


class Notes:
    """A policy that notes what its context contains."""

    name = "notes"

    def __init__(self, read: Any) -> None:
        self.read, self.seen = read, []

    async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
        self.seen.append(self.read(context))
        return prompts, events


def as_mapping(mapping: Any, turns: list[Any]) -> Any:
    turns += [None, None]
    return mapping


def as_function(mapping: Any, turns: list[Any]) -> Any:
    def given(turn: Any) -> Any:
        turns.append(turn)
        return mapping

    return given


def as_async_function(mapping: Any, turns: list[Any]) -> Any:
    async def given(turn: Any) -> Any:
        turns.append(turn)
        return mapping

    return given


@each_framework
@pytest.mark.parametrize("given", [as_mapping, as_function, as_async_function])
async def test_policies_get_the_given_objects_and_values_in_each_assembly(adapter, given):
    notes = Notes(lambda context: (context.dependencies[Order].number, context.variables["city"]))
    turns: list[Any] = []
    plugin = adapter.plugin(
        [notes], dependencies=given({Order: Order()}, turns), variables=given({"city": "Bonn"}, turns)
    )
    talk = adapter.talk(plugin, "call:look", "Done.")
    assert await talk.ask("Go") == "Done."
    assert notes.seen == [(4711, "Bonn")] * 2
    assert len(turns) == 4
    types = {base.__name__ for turn in turns for base in type(turn).__mro__}
    assert given is as_mapping or talk.turn_type in types


@each_framework
async def test_policies_get_what_is_known_of_the_model_call(adapter, instrumented):
    notes = Notes(lambda context: (context.agent_name, context.model, len(context.tools), context.conversation_id))
    talk = adapter.talk(adapter.plugin([notes]), "call:look", "Done.")
    assert await talk.ask("Go") == "Done."
    agent_name = talk.agent_name if talk.policies_get_agent_name else None
    # AG2's streams in memory have an id only in telemetry.
    conversation_id = None if adapter.framework == "ag2" else talk.conversation_id
    assert notes.seen == [(agent_name, talk.model, 1, conversation_id)] * 2


@each_framework
@pytest.mark.parametrize("setting", ["dependencies", "variables"])
async def test_a_function_that_returns_no_mapping_is_an_error(adapter, setting):
    talk = adapter.talk(adapter.plugin([], **{setting: lambda turn: "Bonn"}))
    with pytest.raises(ConfigurationError, match=f"the function for {setting} must return a mapping, not str"):
        await talk.ask("Go")
    assert talk.calls == []


@each_framework
@pytest.mark.parametrize("setting", [{"name": "other"}, {"model": "gpt-4o"}])
def test_a_name_or_a_model_is_refused_if_an_assembler_is_given(adapter, setting):
    with pytest.raises(ConfigurationError, match="takes its name and model from the Assembler"):
        adapter.plugin(Assembler([], name="mine", model="gpt-4o"), **setting)


@each_framework
@pytest.mark.parametrize(
    ("policies", "settings", "message"),
    [
        ([SlidingWindowPolicy], {}, "policy at index 0 is the class SlidingWindowPolicy"),
        (SlidingWindowPolicy(5), {}, "policies is one SlidingWindowPolicy; put it into a list"),
        (Assembler, {}, r"policies is the class Assembler; .*: Assembler\(…\)"),
        ([], {"observers": [TokenMonitor]}, "observer at index 0 is the class TokenMonitor"),
        (
            [],
            {"dependencies": {KnowledgeStore: MemoryKnowledgeStore}},
            "dependency KnowledgeStore is the class MemoryKnowledgeStore",
        ),
        ([], {"dependencies": "a store"}, "dependencies must be a mapping of objects by their type"),
        ([], {"variables": ["city"]}, "variables must be a mapping of values by their name"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused(adapter, policies, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        adapter.plugin(policies, **settings)
