"""What is read from a Jaeger is what is read from a file, and what goes wrong there is said in a sentence."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest
import talk
from explained import play
from recorded_jaeger import BEGUN, ENDED, TRACES, serving

from otel_assembly import AssemblyError, ConfigurationError
from otel_assembly.errors import UnknownNameError
from otel_assembly.explain import explain
from otel_assembly.telemetry import read_jaeger, read_ledgers, violations


@pytest.fixture
def lookback():
    """Far enough back for a recording, whenever the test runs."""
    return f"{int((time.time_ns() - BEGUN) / 1e9 / 86_400) + 1}d"


@pytest.fixture
def jaeger():
    with serving() as server:
        yield server


def named(spans):
    return {ledger.turns[0].attributes["gen_ai.conversation.id"]: ledger for ledger in read_ledgers(spans).values()}


def test_explanations_from_a_jaeger_are_those_of_the_run_itself(jaeger, lookback):
    ledgers = named(read_jaeger(jaeger.url, lookback=lookback))
    assert set(ledgers) == {"talk-1", "talk-2"}
    said = talk.messages()
    played = play(talk.CHAIN, said, talk.cuts(said), prompts=[talk.SYSTEM])
    for turn in range(len(played.cuts)):
        for item in played.ledger.items:
            here, there = explain(played.ledger, turn, item), explain(ledgers["talk-1"], turn, item)
            assert replace(there, ledger=here.ledger, conversation=None) == here
    assert any(explain(ledgers["talk-1"], 7, str(item)).raises for item in range(15))


def test_numbers_are_numbers_and_every_span_is_within_the_contract(jaeger, lookback):
    spans = read_jaeger(jaeger.url, lookback=lookback)
    assert {span.scope for span in spans} == {"otel_assembly"}
    assert [violation for s in spans for violation in violations(s.name, s.attributes, [])] == []
    assert [span.start_ns for span in spans] == sorted(span.start_ns for span in spans)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_what_is_over_the_limit_comes_in_several_answers(jaeger, lookback, limit):
    problems = []
    whole = read_jaeger(jaeger.url, lookback=lookback)
    assert len({span.trace_id for span in whole}) == len(TRACES) > 3
    paged = read_jaeger(jaeger.url, lookback=lookback, limit=limit + 1, on_problem=problems.append)
    assert paged == whole
    assert problems == []


def test_traces_that_began_at_once_and_are_over_the_limit_are_told_of(jaeger, lookback):
    problems = []
    spans = read_jaeger(jaeger.url, lookback=lookback, limit=1, on_problem=problems.append)
    assert {span.trace_id for span in spans} == set(TRACES)
    assert all("some may be missing" in problem for problem in problems)
    assert len(problems) == len(TRACES)


@pytest.mark.parametrize("limit", [2, 1500])
def test_only_the_traces_of_a_conversation_are_read(jaeger, lookback, limit):
    spans = read_jaeger(jaeger.url, lookback=lookback, conversation="talk-1", limit=limit)
    assert set(named(spans)) == {"talk-1"}
    assert len(named(spans)["talk-1"].turns) == 8
    assert read_jaeger(jaeger.url, lookback=lookback, conversation="talk-9") == []


def test_a_jaeger_without_the_older_api_gives_the_same_conversation(jaeger, lookback):
    with serving(without="/api/traces") as newer:
        spans = read_jaeger(newer.url, lookback=lookback, conversation="talk-1")
        assert spans == read_jaeger(jaeger.url, lookback=lookback, conversation="talk-1")
        assert len(spans) > 8
        assert read_jaeger(newer.url, lookback=lookback, conversation="talk-9") == []


def test_a_window_of_time_without_traces_is_empty(jaeger):
    assert time.time_ns() - ENDED > 1_000_000_000
    assert read_jaeger(jaeger.url, lookback="1s") == []


def test_a_service_that_jaeger_does_not_know_is_named_with_the_nearest(jaeger):
    with pytest.raises(UnknownNameError, match="did you mean 'otel-assembly-replay'"):
        read_jaeger(jaeger.url, service="otel-assembly-relay")


def test_the_base_path_of_a_url_is_kept(jaeger):
    with pytest.raises(AssemblyError):
        read_jaeger(f"{jaeger.url}/tracing/", service="nobody")
    assert jaeger.asked[0][0] == "/tracing/api/v3/services"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:16686", "is not a URL of Jaeger"),
        ("file:///etc/passwd", "is not a URL of Jaeger"),
        ("http://localhost:notaport", "is not a URL of Jaeger"),
        ("http://me:secret@localhost:1", "contains credentials"),
    ],
)
def test_what_is_no_url_is_refused(url, said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_jaeger(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("lookback", ["", "0h", "2 days", "-1h", "1w"])
def test_what_is_no_lookback_is_refused(jaeger, lookback):
    with pytest.raises(ConfigurationError, match="lookback"):
        read_jaeger(jaeger.url, lookback=lookback or "h")
    assert jaeger.asked == []


def test_where_nobody_listens_that_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        port = taken.getsockname()[1]
        with pytest.raises(AssemblyError, match=f"cannot connect to http://127.0.0.1:{port}: connection refused"):
            read_jaeger(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    "instead",
    [
        (200, "<html>a page</html>"),
        (200, "[]"),
        (200, '{"services": 7}'),
        (302, ""),
        (404, "404 page not found"),
        (502, "Bad Gateway"),
    ],
)
def test_what_is_no_jaeger_is_said_to_be_none(instead):
    with serving(instead) as server, pytest.raises(AssemblyError, match="is not Jaeger"):
        read_jaeger(server.url)


def test_a_jaeger_that_fails_is_quoted():
    from recorded_jaeger import RECORDED

    with serving(tuple(RECORDED["failed"])) as server, pytest.raises(AssemblyError, match="search depth must be"):
        read_jaeger(server.url)
