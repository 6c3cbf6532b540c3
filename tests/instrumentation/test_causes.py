"""A run that a message has caused stands in the trace in which that was sent, or is linked to what it came after."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from opentelemetry import trace

from otel_assembly.instrumentation import (
    CausedRun,
    Causes,
    Instrumentation,
    InvokingAgent,
    reported_in_run,
)


class Post:
    """Hands messages to agents, each in a task of its own that knows nothing of who has sent it."""

    def __init__(self, instrumentation):
        causes = Causes(lambda message: message)
        self.instrumentation = instrumentation
        self.send = causes.sends(self._send, instrumentation)
        self.handle = causes.handles(self._handle, instrumentation)
        self.waiting = []
        #: What is sent by whom: as it runs, and after that.
        self.sent_in, self.sent_after = {}, {}
        self.reports = []

    async def _send(self, message):
        self.waiting.append(message)

    async def _handle(self, message):
        reported_in_run(lambda: self.reports.append(trace.get_current_span().get_span_context().is_valid))
        assert self.reports == []
        asked = InvokingAgent(message, message, message, f"the talk of {message}")
        run = CausedRun(self.instrumentation, lambda: asked)
        with run.current():
            assert self.reports == [True]
            for item in self.sent_in.pop(message, ()):
                await self.send(item)
        run.end()
        self.reports.clear()
        for item in self.sent_after.pop(message, ()):
            await self.send(item)

    async def deliver(self):
        while self.waiting:
            handled = self.handle(self.waiting.pop(0))
            await asyncio.get_running_loop().create_task(handled, context=contextvars.Context())


@pytest.fixture
def post(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Post(Instrumentation("pretend"))


async def test_a_run_stands_in_the_trace_in_which_it_was_asked_for(post, assembly_telemetry):
    with assembly_telemetry.tracer().start_as_current_span("meeting"):
        await post.send("first")
    await post.deliver()
    run = assembly_telemetry.span("invoke_agent first")
    assert run.parent.name == "meeting"
    assert run.attributes["gen_ai.conversation.id"] == "the talk of first"


async def test_what_a_run_sends_causes_runs_in_its_trace(post, assembly_telemetry):
    post.sent_in["first"] = ["second", "third"]
    await post.send("first")
    await post.deliver()
    first = assembly_telemetry.span("invoke_agent first")
    assert first.parent is None
    assert [assembly_telemetry.span(f"invoke_agent {name}").parent for name in ("second", "third")] == [first, first]


async def test_what_was_sent_after_a_run_in_no_span_is_linked_to_that_run(post, assembly_telemetry):
    post.sent_after["first"] = ["second"]
    await post.send("first")
    await post.deliver()
    first, second = (assembly_telemetry.span(f"invoke_agent {name}") for name in ("first", "second"))
    assert first.trace_id != second.trace_id
    assert [link.span_id for link in second.links] == [first.span_id]


def test_what_is_worked_out_for_no_message_is_reported_at_once():
    reports = []
    reported_in_run(lambda: reports.append("told"))
    assert reports == ["told"]


async def test_a_run_that_was_put_back_has_no_span(post, assembly_telemetry):
    run = CausedRun(post.instrumentation, lambda: InvokingAgent(agent_name="clerk"))
    post.instrumentation.open = False
    with run.current():
        pass
    run.end()
    assert assembly_telemetry.spans == []
