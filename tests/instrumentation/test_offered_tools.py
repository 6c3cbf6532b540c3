"""The tools that a model is offered are read as a provider is sent them, and once for the same list."""

from __future__ import annotations

from otel_assembly.instrumentation import (
    Offered,
    offered,
)


def schema_of(name):
    return None if name == "hosted" else {"name": name, "default": object() if name == "odd" else (1, 2)}


def test_what_is_no_json_or_the_providers_own_is_left_out():
    assert offered(["plain", "odd", "hosted"], schema_of) == ({"name": "plain", "default": [1, 2]},)


def test_what_can_be_read_once_is_left_to_the_client():
    tools = iter(["plain"])
    assert offered(tools, schema_of) == offered(None, schema_of) == ()
    assert list(tools) == ["plain"]


def test_the_same_list_is_read_once_and_another_one_anew():
    read = []
    known = Offered(lambda name: read.append(name) or schema_of(name))
    assert known.schemas is None
    tools = ["plain"]
    assert known.read(tools) is known.read(tools) is known.schemas
    assert read == ["plain"]
    assert known.read([]) == ()
