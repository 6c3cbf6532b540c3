"""Runs of nodes in contexts of their own: where one runs, and what is sent there."""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from functools import partial
from operator import itemgetter

import pytest

from otel_assembly.instrumentation import (
    ClientRequest,
    GraphContext,
    Instrumentation,
    MiddlewareReduction,
    PreparedRun,
    StepReport,
    Where,
    context_value,
    run_hook,
)

ASSEMBLY = "assemble_context"


class Message(dict):
    """One that can be remembered for as long as it lives."""


HISTORY = [Message(role="user", content=str(number)) for number in range(5)]
SYSTEM = Message(role="system", content="Help.")

NOWHERE = Where("", ("",), 0, None)
HERE: ContextVar[Where] = ContextVar("here", default=NOWHERE)
GRAPH_CONTEXT = GraphContext("pretend", itemgetter("role"), itemgetter("content"), HERE.get)


@pytest.fixture
def instrumentation(assembly_telemetry):
    with assembly_telemetry.as_default():
        yield Instrumentation("pretend")


class Graph:
    """A framework of nodes, each of which runs in a context of its own and returns the messages that it hands on."""

    def __init__(self, instrumentation, *nodes, thread="thread", **settings):
        self._instrumentation = instrumentation
        self._nodes = nodes
        self._thread = thread
        self._settings = settings
        self.run = run_hook(lambda told, *_: self._begun(told))(self._run, instrumentation)

    def _begun(self, instrumentation):
        step = HERE.get().step
        return PreparedRun(GRAPH_CONTEXT, instrumentation, "clerk", self._thread, step=step, **self._settings)

    def _run(self, messages):
        around = HERE.get().nodes if HERE.get().key else []
        for step, node in enumerate(self._nodes, 1):
            messages = copy_context().run(self._execute, node, [*around, node.__name__], step, messages)
        return messages

    def _execute(self, node, names, step, messages):
        with context_value(HERE, Where(f"{'/'.join(names)}:{step}", names, step, self._thread)):
            position = GRAPH_CONTEXT.position()
            reduction = MiddlewareReduction(
                self._instrumentation,
                StepReport(node.__name__, messages, kind=None),
                find_call=partial(GRAPH_CONTEXT.call_for_reducer, self._instrumentation, node="model"),
            )
            with GRAPH_CONTEXT.node(position, reduction):
                result = node(messages)
            reduction.done(result)
            position.finish([result])
            return result


def asks(instrumentation, messages, *prompts):
    GRAPH_CONTEXT.client_called(instrumentation, ClientRequest([*prompts, *messages], model="gpt-4o"))


def newest(messages):
    return messages[-2:]


def steps(telemetry):
    return [
        [step.name.removeprefix("apply_policy ") for step in span.children] for span in telemetry.spans_named(ASSEMBLY)
    ]


def test_what_a_node_hands_on_is_a_step_of_the_call_that_a_later_one_makes(instrumentation, assembly_telemetry):
    def model(messages):
        asks(instrumentation, messages, SYSTEM)
        return messages

    Graph(instrumentation, newest, model).run(HISTORY)
    assert steps(assembly_telemetry) == [["newest"]]
    told = assembly_telemetry.span(ASSEMBLY).attributes
    assert (told["assembly.events.in"], told["assembly.events.out"], told["assembly.prompts.out"]) == (5, 2, 1)
    assert (told["gen_ai.agent.name"], told["gen_ai.conversation.id"]) == ("clerk", "thread")


def test_nodes_at_one_place_go_on_in_one_ledger_and_others_and_other_scopes_have_their_own(
    instrumentation, assembly_telemetry
):
    def model(messages):
        asks(instrumentation, messages)
        return messages

    def other(messages):
        return model(messages)

    for scope in (None, None, "another"):
        Graph(instrumentation, model, other, scope=scope).run(HISTORY)
    ledgers = [span.attributes["assembly.ledger.id"] for span in assembly_telemetry.spans_named(ASSEMBLY)]
    assert ledgers[:2] == ledgers[2:4]
    assert len(set(ledgers)) == 4


def test_a_run_inside_of_another_one_goes_on_with_what_that_has_handed_on(instrumentation, assembly_telemetry):
    def model(messages):
        asks(instrumentation, messages)
        return messages

    def inner(messages):
        return Graph(instrumentation, model).run(messages)

    Graph(instrumentation, newest, inner).run(HISTORY)
    assert steps(assembly_telemetry) == [["newest"]]


def test_a_node_that_raises_is_told_and_raises(instrumentation, assembly_telemetry):
    def fails(messages):
        raise ConnectionError("no")

    with pytest.raises(ConnectionError):
        Graph(instrumentation, newest, fails, model_node="model").run(HISTORY)
    assert steps(assembly_telemetry) == [["newest"]]
    assert assembly_telemetry.span("invoke_agent clerk").attributes["error.type"] == "ConnectionError"


def test_behind_a_plugin_what_came_out_is_sent(instrumentation, assembly_telemetry):
    def model(messages):
        with GRAPH_CONTEXT.model_call_after_plugin(messages, messages[-1:]):
            asks(instrumentation, messages[-1:])  # told by the plug-in that made it
        asks(instrumentation, messages)
        return messages

    Graph(instrumentation, model).run(HISTORY)
    assert [span.attributes["assembly.events.out"] for span in assembly_telemetry.spans_named(ASSEMBLY)] == [5]


def test_outside_of_any_run_the_messages_say_whose_conversation_it_is(instrumentation, assembly_telemetry):
    for _ in range(2):
        asks(instrumentation, HISTORY)
    told = [span.attributes for span in assembly_telemetry.spans_named(ASSEMBLY)]
    assert len({item["assembly.ledger.id"] for item in told}) == 1
    assert not [item for item in told if "gen_ai.agent.name" in item]
