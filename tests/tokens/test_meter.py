import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_assembly import (
    Assembler,
    ConfigurationError,
    Context,
    EventFacts,
    History,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    TokenBudgetPolicy,
    ToolCallEvent,
    describe,
)
from otel_assembly.errors import TokenizerError
from otel_assembly.messages import EventKind
from otel_assembly.tokens import MessageFraming, TiktokenCounter, TokenMeter


def test_a_text_is_counted_once(spy):
    meter = TokenMeter(spy)
    assert [meter.text("two words") for _ in range(3)] == [2, 2, 2]
    assert spy.asked == ["two words"]


def test_the_least_recently_used_text_is_forgotten_first(spy):
    meter = TokenMeter(spy, max_entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        meter.text(text)
    assert spy.asked == ["a", "b", "c", "b"]


def test_characters_are_bounded(spy):
    meter = TokenMeter(spy, max_characters=10)
    for text in ("aaaa", "bbbb", "cccc", "bbbb", "aaaa"):
        meter.text(text)
    assert spy.asked == ["aaaa", "bbbb", "cccc", "aaaa"]


def test_a_very_long_text_is_not_kept_and_displaces_nothing(spy):
    meter = TokenMeter(spy, max_text=5)
    for text in ("short", "long long", "long long", "short"):
        meter.text(text)
    assert spy.asked == ["short", "long long", "long long"]


def test_by_default_texts_up_to_256k_characters_are_kept(spy):
    meter = TokenMeter(spy)
    for length in (262_144, 262_144, 262_145, 262_145):
        meter.text("x" * length)
    assert len(spy.asked) == 3


@given(st.lists(st.text(max_size=8), max_size=60), st.integers(0, 20), st.integers(0, 4))
def test_the_memory_never_passes_its_bounds_and_never_lies(texts, max_characters, max_entries):
    class Length:
        name, method, generation = "length", "exact", 0

        def count(self, text):
            return len(text)

    meter = TokenMeter(Length(), max_characters=max_characters, max_entries=max_entries)
    for text in texts:
        assert meter.text(text) == len(text)
        assert sum(map(len, meter._cache)) == meter._characters <= max_characters
        assert len(meter._cache) <= max_entries


def test_a_new_generation_forgets_everything(spy):
    meter = TokenMeter(spy)
    tools = [{"name": "t"}]
    meter.text("a")
    meter.tools(tools)
    spy.generation, spy.asked = 1, []
    meter.text("a")
    meter.tools(tools)
    assert spy.asked == ["a", "t:"]


def test_a_count_that_a_new_generation_overtakes_is_not_kept(spy):
    def count(text):
        spy.asked.append(text)
        spy.generation = 1
        return 1

    spy.count = count
    meter = TokenMeter(spy)
    for _ in range(3):
        meter.text("a")
    assert spy.asked == ["a", "a"]


def test_an_event_is_framing_texts_and_media(spy):
    facts = EventFacts(EventKind.RESPONSE, "three small words", fields=("tool", "{}"), opens=("id",), media_tokens=100)
    assert TokenMeter(spy).event(facts) == (3 + 1 + 3) + (3 + 1 + 1) + 100


def test_an_event_counts_its_texts_alone(spy):
    TokenMeter(spy).event(EventFacts(EventKind.REQUEST, "a", fields=("b", "", "c"), name="kim"))
    assert spy.asked == ["a", "kim", "b", "c"]


def test_ids_of_tool_calls_are_not_counted(spy):
    event = ModelResponse(content="hi", tool_calls=(ToolCallEvent(id="call_1", name="f", arguments="{}"),))
    TokenMeter(spy).event(describe(event))
    assert spy.asked == ["hi", "f", "{}"]


def test_what_the_model_does_not_see_costs_nothing(spy):
    meter = TokenMeter(spy)
    assert meter.event(describe(ObserverAlert(source="x", severity="info", message="m"))) == 0
    assert meter.event(EventFacts(EventKind.OTHER, name="bystander")) == 0


def test_prompt_and_priming(spy):
    meter = TokenMeter(spy, MessageFraming(per_message=5, per_role=2, reply_priming=9))
    assert (meter.prompt("one two"), meter.priming) == (9, 9)
    assert (meter.encoding, meter.method) == ("words", "exact")


def test_equal_tools_are_counted_once_and_changed_ones_anew(spy):
    meter = TokenMeter(spy)
    tools = [{"name": "t", "description": "does it"}]
    first = meter.tools(tools)
    assert meter.tools(tools) == meter.tools([{"description": "does it", "name": "t"}]) == first
    assert len(spy.asked) == 1
    tools[0]["description"] = "does it so much better"
    assert meter.tools(tools) == first + 3
    assert meter.tools([{"description": "does it", "name": "t"}]) == first
    assert len(spy.asked) == 2
    assert meter.tools([]) == 0


def test_remembered_tools_are_bounded(spy):
    meter = TokenMeter(spy)
    for number in range(100):
        meter.tools([{"name": f"t{number}"}])
    assert len(meter._tools) == 16


@pytest.mark.parametrize("answer", [-1, 1.0, True, None, "3", [1, 2]])
def test_a_counter_that_does_not_count_is_named(spy, answer):
    spy.count = lambda text: answer
    meter = TokenMeter(spy)
    for ask in (
        lambda: meter.text("secret"),
        lambda: meter.event(EventFacts(EventKind.REQUEST, "secret")),
        lambda: meter.tools([{"name": "t"}]),
    ):
        with pytest.raises(TokenizerError, match=r"'words' \(SpyCounter\)") as caught:
            ask()
        assert "secret" not in str(caught.value)


def test_a_key_is_equal_while_counts_are(spy):
    class Unhashable(TiktokenCounter):
        __hash__ = None

        def __eq__(self, other):
            return True

    meter = TokenMeter(spy)
    key = meter.key
    assert key == TokenMeter(spy).key
    assert hash(key) == hash(TokenMeter(spy).key)
    assert key != TokenMeter(spy, MessageFraming(per_message=4)).key
    assert TokenMeter(Unhashable("o200k_base")).key != TokenMeter(Unhashable("o200k_base")).key
    spy.generation = 1
    assert key != meter.key


def test_threads_share_a_meter(spy):
    meter = TokenMeter(spy, max_entries=3)
    wrong = []

    def work():
        for number in range(2000):
            text = " ".join("x" * (number % 7))
            if meter.text(text) != number % 7:
                wrong.append(text)
            if number % 100 == 0:
                spy.generation += 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(map(len, meter._cache)) == meter._characters


@pytest.fixture
def written(monkeypatch):
    """How often anything was written as JSON."""
    calls = []
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda *args, **settings: calls.append(1) or dumps(*args, **settings))
    return calls


@pytest.mark.parametrize("sequence", [list, tuple])
def test_tools_that_are_known_are_neither_counted_nor_written_again(spy, written, sequence):
    meter = TokenMeter(spy)
    nested = {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": ("x", "y")}}}}
    tools = sequence([{"name": "t", "description": "does it"}, {"name": "u", "parameters": nested}])
    first = meter.tools(tools)
    spy.asked.clear()
    written.clear()
    assert [meter.tools(tools) for _ in range(3)] == [first] * 3
    assert meter.tools(sequence(map(dict, tools))) == first
    assert (spy.asked, written) == ([], [])


async def test_tools_of_a_conversation_are_written_once(spy, written):
    tools = [{"name": "t", "description": "does it"}, {"name": "u"}]
    assembler, history = Assembler([TokenBudgetPolicy(1_000)], counter=spy), History()
    context = Context(tools=tools)
    for turn in range(5):
        history.append(ModelRequest(content=f"turn {turn}"))
        assert (await assembler.assemble([], history, context)).totals.tokens_out < 1_000
        if not turn:
            written.clear()
    assert written == []
    assert spy.asked.count("t:does it") == 1


def test_two_agents_that_take_turns_do_not_displace_each_others_tools(spy, written):
    meter = TokenMeter(spy)
    mine, yours = ({"name": "t"},), ({"name": "u"},)
    meter.tools(mine), meter.tools(yours)
    written.clear()
    assert meter.tools(mine) == meter.tools(yours) == meter.tools(mine)
    assert written == []


@pytest.mark.parametrize(
    ("before", "after"),
    [("short", "very much longer"), (1, 1.0), (1, True), (["a"], ["a", "b"]), ({}, {"x": {"y": 1}})],
)
def test_a_definition_that_was_changed_in_place_is_seen(spy, before, after):
    meter = TokenMeter(spy)
    tool = {"name": "t", "parameters": {"properties": {"p": {"type": "array", "default": before}}}}
    meter.tools((tool,))
    tool["parameters"]["properties"]["p"]["default"] = after
    spy.asked.clear()
    assert meter.tools((tool,)) == TokenMeter(spy).tools((json.loads(json.dumps(tool)),))
    assert any(json.dumps(after, separators=(",", ":")) in text for text in spy.asked)


def test_definitions_that_hold_what_only_json_can_write_are_counted(spy):
    class Kind(str):
        pass

    meter = TokenMeter(spy)
    tools = ({"name": "t", "description": Kind("does it")},)
    assert meter.tools(tools) == meter.tools(tools) == meter.tools(({"name": "t", "description": "does it"},))
    assert spy.asked == ["t:does it"]


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, 1j, object()])
def test_a_definition_that_is_not_json_is_refused_each_time(spy, value):
    meter = TokenMeter(spy)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not JSON"):
            meter.tools(({"name": "t", "default": value},))
