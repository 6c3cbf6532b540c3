"""The schemas of tools: each is made once, and one that cannot be made costs nothing."""

from __future__ import annotations

from otel_assembly.instrumentation import ToolSchemas


class Tool:
    """One of a framework's."""


SCHEMA = {"type": "function", "function": {"name": "look_up"}}


def test_a_schema_is_made_once_and_what_is_one_already_is_taken_as_it_is():
    made = []

    def schema(tool):
        made.append(tool)
        return SCHEMA

    schemas, tool = ToolSchemas(schema), Tool()
    assert schemas.of([tool, {"name": "given"}]) == (SCHEMA, {"name": "given"})
    assert schemas.of([tool]) == (SCHEMA,)
    assert made == [tool]


def test_a_tool_that_cannot_be_described_has_none():
    def schema(tool):
        raise TypeError("no")

    assert ToolSchemas(schema).of([Tool(), {}]) == ()


def test_a_tool_that_is_no_json_has_none_and_tools_that_can_be_read_once_are_left_to_the_client():
    schemas = ToolSchemas(lambda tool: {**SCHEMA, "default": object()})
    assert schemas.of([Tool()]) == ()
    tools = iter([{"name": "given"}])
    assert schemas.of(tools) == schemas.of(None) == ()
    assert list(tools) == [{"name": "given"}]
