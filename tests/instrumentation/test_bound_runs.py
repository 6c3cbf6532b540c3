"""A run of an agent is known by context variables, and has a span where it would have none."""

from __future__ import annotations

from contextvars import ContextVar

import pytest

from otel_assembly.instrumentation import ContextBoundRun, Instrumentation, run_hook

AGENT: ContextVar[str | None] = ContextVar("agent", default=None)


def asked(said, ends=None):
    """An agent's function that answers in words, as an instrumentor hooks it."""

    def ask(name):
        for word in said:
            if isinstance(word, Exception):
                raise word
            yield f"{AGENT.get()}: {word}"

    run_of = run_hook(lambda told, name: ContextBoundRun(told, name, {AGENT: name}, conversation_id="c1", on_end=ends))
    return run_of(ask, Instrumentation("pretend"))


def test_what_runs_in_it_knows_whose_it_is_and_who_reads_it_does_not(assembly_telemetry):
    words = []
    for word in asked(["one", "two"])("clerk"):
        words.append(word)
        assert AGENT.get() is None
    assert words == ["clerk: one", "clerk: two"]
    span = assembly_telemetry.span("invoke_agent clerk")
    assert span.attributes["gen_ai.conversation.id"] == "c1"


def test_a_span_that_is_current_is_enough(assembly_telemetry):
    with assembly_telemetry.tracer().start_as_current_span("caller"):
        assert list(asked(["one"])("clerk")) == ["clerk: one"]
    assert [span.name for span in assembly_telemetry.spans] == ["caller"]


@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
def test_what_it_leaves_behind_ends_before_its_span(fails, assembly_telemetry):
    open_then = []

    def ends():
        open_then.append(assembly_telemetry.spans_named("invoke_agent clerk"))
        if fails:
            raise ZeroDivisionError

    with pytest.raises(LookupError):
        list(asked([LookupError()], ends)("clerk"))
    assert open_then == [[]]
    assert assembly_telemetry.span("invoke_agent clerk").attributes["error.type"] == "LookupError"


def test_a_part_of_a_run_has_no_span(assembly_telemetry):
    def ask(name):
        yield AGENT.get()

    part = run_hook(lambda told, name: ContextBoundRun(told, None, {AGENT: name}))(ask, Instrumentation("pretend"))
    assert list(part("clerk")) == ["clerk"]
    assert assembly_telemetry.spans == []
