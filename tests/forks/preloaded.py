"""An application whose master assembles in threads of its own while it forks its workers."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import threading
import time

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    ModelRequest,
    ModelResponse,
    WorkingMemoryPolicy,
)
from otel_assembly.testing import RecordedTelemetry

TALK = [event(content=f"Turn {at}.") for at in range(30) for event in (ModelRequest, ModelResponse)]

assembler = Assembler([WorkingMemoryPolicy(), ConversationPolicy(), BudgetPolicy(300, 50)], model="gpt-4o")


def answer(_=None):
    """What one request of one conversation is told."""
    with RecordedTelemetry().as_default() as recorder:
        events = [*TALK, ModelRequest(content="And now?")]
        asyncio.run(assembler.assemble(["be brief"], events, Context(conversation_id="c")))
    span = recorder.span("assemble_context")
    told = {name: span.attributes[f"assembly.{name}"] for name in ("id", "ledger.id", "turn", "tokens.out")}
    return told | {"process": os.getpid()}


def _go_on():
    while True:
        asyncio.run(assembler.assemble(["be brief"], list(TALK), Context(conversation_id="c")))
        time.sleep(0.001)


def busy():
    for _ in range(2):
        threading.Thread(target=_go_on, daemon=True).start()


def app(environ, start_response):
    body = json.dumps(answer()).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


if __name__ == "__main__":
    busy()
    with multiprocessing.get_context("fork").Pool(3, maxtasksperchild=2) as pool:
        print(json.dumps(pool.map_async(answer, range(8), chunksize=1).get()))
else:
    busy()
