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
