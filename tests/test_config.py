"""Chains written down: what is read, what is written, and how a mistake is named."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ConversationPolicy,
    EpisodicMemoryPolicy,
    HeadAndTailPolicy,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    WorkingMemoryPolicy,
)
from otel_assembly.chain import chain_from_config, chain_from_spec

FORM = {
    "name": "support",
    "model": "gpt-4o",
    "on_policy_error": "skip",
    "policies": [
        "alert",
        {"working_memory": None},
        {"episodic_memory": {"max_episodes": 2}},
        {"conversation": {}},
        {"sliding_window": {"max_events": 50, "stride": 10}},
        {"head_and_tail": {"head": 4, "tail": 40}},
        {"budget": {"window": 8000, "output_reserve": 500}},
        {"token_budget": {"max_tokens": 8000, "on_overflow": "drop", "chars_per_token": 4}},
    ],
}
TYPES = [
    AlertPolicy,
    WorkingMemoryPolicy,
    EpisodicMemoryPolicy,
    ConversationPolicy,
    SlidingWindowPolicy,
    HeadAndTailPolicy,
    BudgetPolicy,
    TokenBudgetPolicy,
]


def shape(assembler):
    policies = [(type(policy), dict(policy.config)) for policy in assembler.policies]
    return assembler.name, assembler.model, assembler.on_policy_error, policies


def fails(config):
    with pytest.raises(ConfigurationError) as raised:
        Assembler.from_config(config)
    return str(raised.value)


# --- Reading and writing ----------------------------------------------------------------------------------------------


def test_a_mapping_names_policies_and_their_parameters():
    assembler = Assembler.from_config(FORM)
    assert [type(policy) for policy in assembler.policies] == TYPES
    assert (assembler.name, assembler.model, assembler.on_policy_error) == ("support", "gpt-4o", "skip")
    window, ends, _, budget = assembler.policies[-4:]
    assert (ends.head, ends.tail) == (4, 40)
    assert (window.max_events, window.stride, window.transparent) == (50, 10, False)
    assert (budget.max_tokens, budget.on_overflow, budget.chars_per_token) == (8000, "drop", 4)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("chain.yaml", yaml.safe_dump),
        ("chain.yml", yaml.safe_dump),
        ("chain", yaml.safe_dump),
        ("chain.json", json.dumps),
        ("chain.JSON", json.dumps),
        ("bom.json", lambda form: "\ufeff" + json.dumps(form)),
        ("bom.yaml", lambda form: "\ufeff" + yaml.safe_dump(form)),
    ],
)
def test_a_file_reads_as_its_mapping(tmp_path, name, write):
    path = tmp_path / name
    path.write_text(write(FORM), encoding="utf-8")
    expected = shape(Assembler.from_config(FORM))
    assert shape(Assembler.from_config(path)) == shape(Assembler.from_config(str(path))) == expected


def test_the_mapping_is_not_changed_and_may_be_read_again():
    before = json.dumps(FORM)
    Assembler.from_config(FORM)
    Assembler.from_config(FORM)
    assert json.dumps(FORM) == before


def test_settings_of_the_caller_go_before_those_of_the_file():
    assert Assembler.from_config(FORM, model="gpt-3.5-turbo").model == "gpt-3.5-turbo"


def test_the_models_window_is_a_setting():
    assembler = Assembler.from_config({"model_window": 8_192, "policies": []})
    assert assembler.model_window == 8_192
    assert assembler.to_config()["model_window"] == 8_192
    assert "model_window" not in Assembler([]).to_config()


@pytest.mark.parametrize("window", [0, -1, "8192", 8.5, True])
def test_what_can_be_no_window_is_refused_in_a_file(window):
    with pytest.raises(ConfigurationError, match="config: model_window: "):
        Assembler.from_config({"model_window": window, "policies": []})


def test_what_is_written_makes_an_equal_assembler():
    assembler = Assembler.from_config(FORM)
    written = assembler.to_config()
    assert shape(Assembler.from_config(written)) == shape(assembler)
    assert shape(Assembler.from_config(json.loads(json.dumps(written)))) == shape(assembler)
    assert Assembler.from_config(written).to_config() == written


windows = st.tuples(st.integers(1, 9), st.integers(0, 9), st.booleans()).map(
    lambda t: SlidingWindowPolicy(t[0] + t[1], t[2], stride=t[0])
)
budgets = st.builds(
    TokenBudgetPolicy,
    st.integers(1, 10**9),
    st.none() | st.floats(0.1, 100, allow_nan=False) | st.integers(1, 9),
    st.booleans(),
    st.integers(0, 10**6),
    st.sampled_from(["raise", "drop"]),
)
memories = st.builds(EpisodicMemoryPolicy, st.integers(1, 99), st.booleans())
plain = st.sampled_from([AlertPolicy, ConversationPolicy, WorkingMemoryPolicy]).map(lambda policy: policy())


@settings(deadline=None, max_examples=100, derandomize=True, database=None)
@given(
    st.lists(st.one_of(windows, budgets, memories, plain), max_size=5),
    st.none() | st.text(max_size=5),
    st.sampled_from(["raise", "skip"]),
)
def test_any_chain_of_ours_survives_being_written_and_read(policies, name, on_policy_error):
    assembler = Assembler(policies, name=name, on_policy_error=on_policy_error)
    written = yaml.safe_load(yaml.safe_dump(assembler.to_config()))
    assert shape(Assembler.from_config(written)) == shape(assembler)


async def test_an_assembler_from_a_file_assembles(tmp_path):
    path = tmp_path / "chain.yaml"
    path.write_text("policies:\n  - sliding_window: {max_events: 1}\n")
    assembly = await Assembler.from_config(path).assemble([], [ModelRequest(content="a"), ModelRequest(content="b")])
    assert [event.content for event in assembly.events] == ["b"]


def test_a_policy_that_is_not_ours_cannot_be_written():
    class Mine(SlidingWindowPolicy):
        pass

    class Other:
        name = "sliding_window"

        async def apply(self, prompts, events, context):
            return prompts, events

    for policy in (Mine(3), Other()):
        with pytest.raises(ConfigurationError, match=r"'sliding_window' \(index 1\) is not a built-in policy"):
            Assembler([AlertPolicy(), policy]).to_config()


# --- Mistakes ---------------------------------------------------------------------------------------------------------


INTEGER = ".max_events: Input should be a valid integer"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("slidng_window", ": unknown policy 'slidng_window'; did you mean 'sliding_window'?"),
        ({"budget_of_tokens": {}}, ": unknown policy 'budget_of_tokens'; "),
        ({"sliding_window": {"max_event": 5}}, ": unknown parameter 'max_event'; did you mean 'max_events'?"),
        ({"alert": {"loud": True}}, ": takes no parameters, found 'loud'"),
        ("sliding_window", ".max_events: Field required"),
        ({"token_budget": None}, ".max_tokens: Field required"),
        ({"sliding_window": {"max_events": "5"}}, INTEGER),
        ({"sliding_window": {"max_events": 5.0}}, INTEGER),
        ({"sliding_window": {"max_events": True}}, INTEGER),
        ({"sliding_window": {"max_events": None}}, INTEGER),
        ({"sliding_window": {"max_events": 5, "transparent": 1}}, ".transparent: Input should be a valid boolean"),
        ({"sliding_window": {"max_events": 0}}, ": sliding_window: max_events must be at least 1, got 0"),
        ({"sliding_window": 5}, ": expected a mapping of parameters, found 5"),
        ({"sliding_window": {}, "alert": {}}, ": expected one policy name with its parameters, found 2 keys"),
        ({}, ": expected one policy name with its parameters, found 0 keys"),
    ],
)
def test_a_mistake_in_a_policy_is_named_with_its_place_and_the_mend(entry, message):
    found = fails({"policies": ["conversation", entry]})
    assert re.match(r"config: policies\[1\](\.\w+)?[.:]", found)
    assert message in found


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"policy": []}, "config: unknown setting 'policy'; did you mean 'policies'?"),
        ({1: 2}, "config: unknown setting '1'; known: "),
        ({"policies": "alert"}, "config: policies: Input should be a valid list"),
        ({"policies": [5]}, "config: policies[0]: expected a policy's name, or one with its parameters, found 5"),
        ({"policies": ["alert", None]}, "config: policies[1]: expected a policy's name"),
        ({"name": 5}, "config: name: Input should be a valid string"),
        ({"on_policy_error": "ignore"}, "config: on_policy_error: Input should be 'raise' or 'skip'"),
    ],
)
def test_a_mistake_in_a_setting_is_named_with_its_place_and_the_mend(form, message):
    assert fails(form).startswith(message)


def test_something_unknown_far_from_any_name_lists_what_is_known():
    found = fails({"policies": ["zzz"]})
    assert found.endswith(f"unknown policy 'zzz'; known: {', '.join(sorted(policy.name for policy in TYPES))}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bad.yaml", "policies:\n  - alert\n  - [\n", r"bad\.yaml:\d+: not YAML: "),
        ("tab.yaml", "policies:\n\t- alert\n", r"tab\.yaml:2: not YAML: "),
        ("tag.yaml", "policies: !!python/object/apply:os.system ['true']\n", r"tag\.yaml:1: not YAML: "),
        ("date.yaml", "name: 2024-13-45\n", r"date\.yaml: cannot be read: "),
        ("bad.json", '{"policies": [\n  "alert",\n  }\n', r"bad\.json:3: not JSON: "),
        ("deep.json", "[" * 100_000, r"deep\.json: cannot be read: "),
        ("twice.yaml", "policies: []\nname: a\npolicies: [alert]\n", r"twice\.yaml:3: the key 'policies' occurs twice"),
        (
            "flow.yaml",
            "policies:\n  - budget: {window: 9,\n     window: 8}\n",
            r"flow\.yaml:3: the key 'window' occurs",
        ),
        (
            "a.json",
            '{"policies": [{"budget":\n{"window": 9,\n"window": 8}}]}',
            r"a\.json:3: the key 'window' occurs twice",
        ),
        ("b.json", '{"name": "{",\n"n\\u0061me": "b"}', r"b\.json:2: the key 'name' occurs twice"),
        ("huge.json", '{"policies": ' + "1" * 5_000 + "}", r"huge\.json: cannot be read: "),
        ("list.yaml", "- alert\n", r"list\.yaml: expected a mapping with 'policies', found list"),
        ("empty.yaml", "", r"empty\.yaml: expected a mapping with 'policies', found NoneType"),
        (
            "name.yaml",
            "policies: [alrt]\n",
            r"name\.yaml: policies\[0\]: unknown policy 'alrt'; did you mean 'alert'\?",
        ),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_line_where_there_is_one(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    found = fails(path)
    assert found.startswith(str(tmp_path))
    assert re.search(message, found)


def test_a_key_may_stand_again_in_another_mapping_and_in_place_of_a_merged_one(tmp_path):
    path = tmp_path / "merged.yaml"
    path.write_text(
        "policies:\n- budget: &a {window: 9, output_reserve: 1}\n- budget: &b {<<: *a, window: 8}\n"
        "- budget: {<<: [*a, *b], window: 7}\n"
    )
    assert [policy.window for policy in chain_from_config(path).policies] == [9, 8, 7]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert fails(tmp_path / "missing.yaml") == f"{tmp_path / 'missing.yaml'}: cannot be read: No such file or directory"
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"name: \xe9\n")
    assert fails(latin) == f"{latin}: cannot be read: it is not UTF-8 text"
    assert "cannot be read" in fails(tmp_path)


# --- On one line ------------------------------------------------------------------------------------------------------


def test_a_chain_on_one_line():
    line = "alert, conversation,sliding_window:max_events=50:stride=10,token_budget: max_tokens=8000:transparent=true"
    written = Assembler(chain_from_spec(line)).to_config()["policies"]
    assert written[:2] == ["alert", "conversation"]
    assert written[2] == {"sliding_window": {"max_events": 50, "transparent": False, "stride": 10}}
    assert (written[3]["token_budget"]["max_tokens"], written[3]["token_budget"]["transparent"]) == (8000, True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "policies[0]: empty"),
        ("alert,,conversation", "policies[1]: empty"),
        (
            "alert,slidingwindow:max_events=5",
            "policies[1]: unknown policy 'slidingwindow'; did you mean 'sliding_window'?",
        ),
        ("sliding_window:5", "policies[0].sliding_window: expected parameter=value, found '5'"),
        ("sliding_window:=5", "policies[0].sliding_window: expected parameter=value, found '=5'"),
        ("sliding_window:max_events=", "policies[0].sliding_window.max_events: Input should be a valid integer"),
        ("sliding_window:max_events=many", "policies[0].sliding_window.max_events: Input should be a valid integer"),
        ("sliding_window:max_events=[", "policies[0].sliding_window.max_events: cannot be read: '['"),
        ("sliding_window:max_events=2024-13-45", "policies[0].sliding_window.max_events: cannot be read: '2024-13-45'"),
        (
            "budget:window=9:output_reserve=0: window =8",
            "policies[0].budget: the parameter 'window' occurs twice, expected once",
        ),
        ("sliding_window:most=5", "policies[0].sliding_window: unknown parameter 'most'; "),
    ],
)
def test_a_mistake_on_one_line_is_named_with_its_place(spec, message):
    with pytest.raises(ConfigurationError) as raised:
        chain_from_spec(spec)
    assert str(raised.value).startswith(message)


def test_defaults_fill_in_what_an_entry_leaves_out():
    defaults = {SlidingWindowPolicy: {"max_events": 7, "stride": 2}}.get
    [window] = chain_from_spec("sliding_window:stride=3", defaults)
    assert (window.max_events, window.stride) == (7, 3)
    [window] = chain_from_config({"policies": ["sliding_window"]}, defaults).policies
    assert (window.max_events, window.stride) == (7, 2)


def test_a_compactor_made_in_code_has_no_configuration_and_the_one_without_a_model_has():
    plain = Assembler([BudgetPolicy(8_000, 500, compact="extractive", summary_tokens=200)])
    form = plain.to_config()
    assert form["policies"][0]["budget"]["compact"] == "extractive"
    assert shape(Assembler.from_config(form)) == shape(plain)
    with pytest.raises(ConfigurationError, match=r"'budget' \(index 0\): its 'compact' is an object of the program"):
        Assembler([BudgetPolicy(8_000, 500, compact=lambda text, target: text[:target])]).to_config()
    with pytest.raises(ConfigurationError, match="compact must be 'extractive' or a function, got 'model'"):
        chain_from_spec("budget:window=8000:output_reserve=0:compact=model")


class Limited(ConversationPolicy):
    name = "limited"

    def __init__(self, limit: int | None = 5) -> None:
        self.limit = limit


@pytest.mark.parametrize("limit", [None, 5, 7])
def test_a_setting_without_a_value_is_written_if_it_has_one_by_default(limit):
    written = Assembler([Limited(limit)]).to_config()
    assert Assembler.from_config(written).policies[0].limit == limit
