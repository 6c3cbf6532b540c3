"""Three agents in a workflow, one process each, which share only a log in PostgreSQL or in a file.

python examples/session_processes.py [postgresql://…]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from otel_assembly import Agent, AlertPolicy, ConversationPolicy, ModelResponse, ToolCallEvent
from otel_assembly.sessions import (
    EV_TEXT,
    AgentTarget,
    Envelope,
    Finish,
    FromSpeaker,
    Handoff,
    Hub,
    PostgresSessionLog,
    SessionLog,
    SessionState,
    SqliteSessionLog,
    Transition,
    TransitionGraph,
    WorkflowAdapter,
    serve,
)
from otel_assembly.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def hand_over(to: str, reason: str) -> Handoff:
    """Hand the customer over to a colleague."""
    return Handoff(to, reason)


def charges(order: str) -> list[str]:
    """What was charged for an order."""
    return [f"order {order}, Monday: 25.00", f"order {order}, Monday: 25.00"]


def settle(summary: str) -> Finish:
    """End the case."""
    return Finish(summary, "settled")


#: For each agent: the tool that it calls, the arguments, and its answer.
AGENTS: dict[str, tuple[Callable[..., Any], dict[str, str], str]] = {
    "triage": (hand_over, {"to": "billing", "reason": "charged twice"}, "Billing will look at it."),
    "billing": (charges, {"order": "4711"}, "There are two charges; one is to go back."),
    "clerk": (settle, {"summary": "25.00 back"}, "We are sorry: 25.00 are on their way to you."),
}
#: Who posts next: triage after the customer, and the clerk after billing. The tool of triage hands over to billing.
GRAPH = TransitionGraph(
    "customer",
    [
        Transition(FromSpeaker("customer"), AgentTarget("triage")),
        Transition(FromSpeaker("billing"), AgentTarget("clerk")),
    ],
)


def agent(name: str) -> Agent:
    tool, arguments, answer = AGENTS[name]
    call = ToolCallEvent(name=tool.__name__, arguments=json.dumps(arguments))
    # For a real model, use OpenAIModel("gpt-4o").
    model = ScriptedModel(ModelResponse(tool_calls=(call,)), f"{answer} (process {os.getpid()})")
    return Agent(name, f"You are the {name} of a shop.", model, [tool], assembly=[AlertPolicy(), ConversationPolicy()])


@asynccontextmanager
async def hub_on(where: str) -> AsyncIterator[Hub]:
    log: SessionLog = PostgresSessionLog(where) if where.startswith("postgresql://") else SqliteSessionLog(where)
    try:
        async with Hub(log, [WorkflowAdapter()]) as hub:
            yield hub
    finally:
        await log.close()


async def answer(where: str, case: str, name: str) -> None:
    """Serve one agent until the session ends. Each agent has its own process, which can be on any machine."""
    async with hub_on(where) as hub:
        await serve(hub, agent(name), name, session_id=case)


async def process(where: str, case: str, name: str) -> None:
    """Start an agent's process and wait for its end."""
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, where, case, name)
    try:
        if await child.wait() != 0:
            raise RuntimeError(f"the process of {name} ended with {child.returncode}")
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def ask(where: str) -> None:
    """Create the session, start the agents, ask as the customer, and print all messages."""
    async with hub_on(where) as hub:
        knobs = {"graph": GRAPH.to_dict()}
        case = (await hub.create("workflow", "customer", ["customer", *AGENTS], knobs=knobs)).session_id
        # If one process fails, the task group stops the others.
        async with asyncio.TaskGroup() as processes:
            for name in AGENTS:
                processes.create_task(process(where, case, name))
            async for _ in hub.changes():
                if (await hub.folded(case)).state is SessionState.ACTIVE:
                    break
            question = f"I was charged twice for order 4711. (process {os.getpid()})"
            await hub.post(Envelope(case, "customer", EV_TEXT, {"text": question}))

        adapter = await hub.adapter(case)
        for envelope in await hub.envelopes(case):
            if text := adapter.render_envelope(envelope):
                print(f"{envelope.seq}. {envelope.sender_id}: {' '.join(text.splitlines())}")
        print("the session is", (await hub.folded(case)).state.value)


def export_as(service: str) -> None:
    """Export this process's telemetry under a service name, if an endpoint is configured."""
    if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
        from opentelemetry.instrumentation.auto_instrumentation import initialize

        os.environ["OTEL_SERVICE_NAME"] = service
        initialize()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        export_as(sys.argv[3])
        asyncio.run(answer(*sys.argv[1:]))
    else:
        export_as("customer")
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(ask(sys.argv[1] if len(sys.argv) == 2 else f"{folder}/sessions.db"))
