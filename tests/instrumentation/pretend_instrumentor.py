"""The instrumentor of `pretend_agents`, and what every call of a model has to have."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from recount import prompt_tokens

from otel_assembly.instrumentation import (
    AssemblyInstrumentor,
    ClientRequest,
    Hook,
    InvokingAgent,
    ModelCall,
    Reduction,
    StepReport,
    SubclassHook,
    client,
    current_model_call,
    observe_hook,
    reducer,
    run_hook,
)


def split(messages):
    """The system prompts, and what follows them."""
    start = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    return [message["content"] for message in messages[:start]], messages[start:]


def sent(_, messages):
    prompts, rest = split(messages)
    return ClientRequest(rest, prompts=prompts or None, model="gpt-4o")


def call_of(instrumentation, agent, *_):
    return ModelCall(instrumentation, InvokingAgent(agent, "clerk", "clerk"))


def taken_in(_, messages):
    return messages


def plugged(_, plugin, messages):
    current_model_call().replaced_by_plugin((yield))


def reading(before, after=None, policy="", **details):
    """Observe a reducer, for `reducer`.

    `before` returns the input from the reducer's arguments, and `after` the output from the result and the arguments.
    Without `after`, the reducer changes its input in place. A detail may be a function of the arguments.
    """

    def observe(_, /, *args, **kwargs):
        values = {name: value(*args, **kwargs) if callable(value) else value for name, value in details.items()}
        report = StepReport(policy, before(*args, **kwargs), **values)
        result = yield report
        return replace(report, after=before(*args, **kwargs) if after is None else after(result, *args, **kwargs))

    return observe


_window = {"policy": "window", "config": lambda window, _: {"size": window.size}}


@observe_hook
def limits(instrumentation, _, messages):
    with current_model_call().scoped():
        _, rest = split(messages)
        Reduction(instrumentation, StepReport("limits", rest)).done(rest[-2:], always=True)
        yield


def called(original, _, instrumentation):
    return client(sent, str)(original, instrumentation)


class PretendInstrumentor(AssemblyInstrumentor):
    framework = "pretend"
    requires = ("pydantic >= 2",)
    hooks: ClassVar[tuple[Hook, ...]] = tuple(
        Hook("pretend_agents", target, wrap, "something")
        for target, wrap in (
            ("Client.call", SubclassHook("call", called)),
            ("Client.acall", client(sent, str)),
            ("Client.astream", client(sent)),
            ("Client.entered", client(sent)),
            ("Cache.call", client(sent, str)),
            ("Limits.call", limits),
            ("Window.reduce", reducer(reading(taken_in, lambda result, *_: result, **_window))),
            ("Window.areduce", reducer(reading(taken_in, lambda result, *_: result, **_window))),
            (
                "Window.shrink",
                reducer(reading(taken_in, **_window), invoking_agent=lambda _, history: OWNERS.get(id(history))),
            ),
            ("Around.reduce", reducer(reading(taken_in, lambda result, *_: result, policy="around"))),
            ("Summary.reduce", reducer(reading(taken_in, lambda result, *_: result, policy="summary"))),
            ("Plugin.reduce", observe_hook(plugged)),
            ("Agent.turn", run_hook(call_of)),
            ("Agent.aturn", run_hook(call_of)),
            ("Agent.enter", run_hook(call_of)),
            ("Agent.stream", run_hook(call_of)),
        )
    )


OWNERS = {}


def assemblies(telemetry):
    return telemetry.spans_named("assemble_context")


def every_call(telemetry, client):
    """Each call that the client received has its assembly, which says what was received."""
    told = assemblies(telemetry)
    assert [span.attributes["assembly.events.out"] for span in told] == [
        sum(message["role"] != "system" for message in received) for received in client.received
    ]
    assert [span.attributes["assembly.tokens.out"] for span in told] == [
        prompt_tokens(*split(received)) for received in client.received
    ]
    assert telemetry.violations() == []
    return told


def steps(assembly):
    return [
        child.attributes["assembly.policy.name"]
        for child in assembly.children
        if "assembly.policy.name" in child.attributes
    ]
