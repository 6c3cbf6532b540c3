import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_assembly import ConfigurationError, EventFacts
from otel_assembly.messages import EventKind
from otel_assembly.tokens import MessageFraming, TokenMeter, counter_for

FRAMING = MessageFraming()


def words(text):
    return len(text.replace(":", " ").split())


def function(name="look_up", description="Finds it.", **parameters):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function(
    "get_current_weather",
    "Get the current weather in a given location",
    type="object",
    properties={
        "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
        "unit": {
            "type": "string",
            "description": "The unit of temperature to return",
            "enum": ["celsius", "fahrenheit"],
        },
    },
    required=["location"],
)
WEATHER_MESSAGES = (
    "You are a helpful assistant that can answer to questions about the weather.",
    "What's the weather like in San Francisco?",
)


@pytest.mark.parametrize(("model", "billed"), [("gpt-4o", 101), ("gpt-4", 105)])
def test_gives_what_the_cookbook_was_billed_for_its_example(model, billed):
    meter = TokenMeter(counter_for(model))
    total = meter.prompt(WEATHER_MESSAGES[0]) + meter.event(EventFacts(EventKind.REQUEST, WEATHER_MESSAGES[1]))
    assert total + meter.tools([WEATHER]) + meter.priming == billed


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        (EventFacts(EventKind.REQUEST, "hello"), 4),
        (EventFacts(EventKind.REQUEST), 4),
        (EventFacts(EventKind.REQUEST, "hello", name="kim"), 5),
        (EventFacts(EventKind.RESPONSE, opens=("a", "b")), 10),
        (EventFacts(EventKind.TOOL_RESULT, "42", closes=("a",), name="sum"), 5),
        (EventFacts(EventKind.ALERT), 0),
        (EventFacts(EventKind.OTHER), 0),
        (EventFacts("other", "a kind said as a string"), 4),
    ],
)
def test_a_message_costs(facts, tokens):
    assert FRAMING.message(facts) == tokens


def test_every_figure_can_be_chosen():
    framing = MessageFraming(per_message=10, per_role=20, per_name=30, per_tool_call=40, reply_priming=50)
    assert framing.message(EventFacts(EventKind.RESPONSE, name="kim", opens=("a", "b"))) == 10 + 20 + 30 + 80
    assert framing.prompt() == 30


@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
def test_an_impossible_figure_is_refused(value):
    with pytest.raises(ConfigurationError, match="per_name"):
        MessageFraming(per_name=value)


def test_flat_tools_by_hand():
    tool = function(properties={"key": {"type": "string", "description": "Which one."}, "n": {"type": "integer"}})
    # 7 + look_up Finds it + 3 + (3 + key string Which one) + (3 + n integer), and once 12
    assert FRAMING.tool_schemas([tool], words) == 7 + 3 + 3 + (3 + 4) + (3 + 2) + 12
    assert FRAMING.tool_schemas([tool], words, encoding="cl100k_base") == 33 + 7
    assert FRAMING.tool_schemas([tool, tool], words) == 2 * 25 + 12
    assert FRAMING.tool_schemas([function()], words) == 7 + 3 + 12
    assert FRAMING.tool_schemas([], words) == 0


def test_choices_by_hand():
    tool = function(properties={"u": {"type": "string", "enum": ["c", "f"]}})
    assert FRAMING.tool_schemas([tool], words) == 7 + 3 + 3 + (3 + 2) + (-3 + 2 * (3 + 1)) + 12


@pytest.mark.parametrize("form", ["responses", "anthropic"])
def test_other_providers_forms_cost_the_same(form):
    inner = WEATHER["function"]
    flat = {
        "responses": {"type": "function", **inner, "strict": True},
        "anthropic": {"name": inner["name"], "description": inner["description"], "input_schema": inner["parameters"]},
    }[form]
    assert FRAMING.tool_schemas([flat], words) == FRAMING.tool_schemas([WEATHER], words)


NOT_FLAT = {
    "array": {"type": "array", "items": {"type": "string"}},
    "object": {"type": "object", "properties": {"x": {"type": "string"}}},
    "reference": {"$ref": "#/$defs/X"},
    "union": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "types": {"type": ["string", "null"]},
    "default": {"type": "integer", "default": 3},
    "boolean": True,
}


@pytest.mark.parametrize("schema", NOT_FLAT.values(), ids=NOT_FLAT)
def test_what_the_cookbook_does_not_cover_costs_its_json(schema):
    tool = function(properties={"key": schema})
    compact = json.dumps(tool, separators=(",", ":"), sort_keys=True)
    assert FRAMING.tool_schemas([tool], len) == len(compact) + 12


@pytest.mark.parametrize("tool", ["a name", {"function": None}, {"name": 3}, ["a", "b"]])
def test_unknown_forms_cost_their_json(tool):
    compact = json.dumps(tool, separators=(",", ":"), sort_keys=True)
    assert FRAMING.tool_schemas([tool], len) == len(compact) + 12


def test_never_less_than_the_flat_part():
    tool = function(properties={f"p{i}": {"type": "string"} for i in range(9)} | {"x": {"type": "array"}})
    assert FRAMING.tool_schemas([tool], lambda text: 1) == 7 + 1 + 3 + 10 * (3 + 1) + 12


def test_what_is_no_json_is_refused():
    loop = {}
    loop["loop"] = loop
    for tool in ({"name": object()}, loop):
        with pytest.raises(ConfigurationError, match="is not JSON"):
            FRAMING.tool_schemas([tool], words)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "function", "name", "description", "parameters", "properties", "enum", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(_JSON, min_size=1, max_size=3))
def test_no_json_makes_it_fail_or_turn_negative(tools):
    kinds = [tool.get("type") if isinstance(tool, dict) else "" for tool in tools]
    typed = [isinstance(kind, str) and kind not in ("", "function", "custom") for kind in kinds]
    least = 12 + 7 * typed.count(False) if not all(typed) else 0  # one of another type may be the provider's own
    assert FRAMING.tool_schemas(tools, len) >= least
