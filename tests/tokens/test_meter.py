import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_assembly.errors import TokenizerError
from otel_assembly.events import ModelResponse, ObserverAlert, ToolCallEvent
from otel_assembly.facts import EventFacts, EventKind, describe
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


def test_an_event_may_go_unremembered(spy):
    meter = TokenMeter(spy)
    facts = EventFacts(EventKind.REQUEST, "a")
    assert {meter.event(facts, remember=False), meter.event(facts, remember=False), meter.event(facts)} == {5}
    assert meter.event(facts) == 5
    assert spy.asked == ["a", "a", "a"]


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
        lambda: meter.event(EventFacts(EventKind.REQUEST, "secret"), remember=False),
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
