"""``python turn_server.py sqlite|postgres WHERE RUNS POINT``: serve bob until one request is answered.

A tool that is not idempotent (``pay``) and one that is (``look``) note each run in the file RUNS. At POINT the process
prints it and waits to be killed. Without a POINT it is a successor: it lets the lease of the dead server be over,
serves bob until the request is answered, and prints what was said, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress

from poster import open_log
from talk import Talk, opened, said, text

from otel_assembly import Agent, AlertPolicy, ConversationPolicy, ModelResponse, Tool
from otel_assembly.events import ToolCallEvent, ToolErrorEvent, ToolResultEvent
from otel_assembly.sessions import Hub, serve

NAME = "s"


def note(path, line):
    """Write a line that outlives the process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, f"{line}\n".encode())
    os.fsync(file)
    os.close(file)


async def stop_here(point):
    print(point, flush=True)
    await asyncio.Event().wait()


class Model:
    model = "scripted"

    def __init__(self, point):
        self.point = point

    async def __call__(self, prompts, events, *, tools=(), tool_choice=None):
        results = [event for event in events if isinstance(event, ToolResultEvent | ToolErrorEvent)]
        if not results:
            return ModelResponse(tool_calls=(ToolCallEvent(id="1", name="pay"), ToolCallEvent(id="2", name="look")))
        if self.point == "after its result":
            await stop_here(self.point)
        results.sort(key=lambda value: value.parent_id)
        words = [getattr(result, "content", None) or result.error.partition(":")[0] for result in results]
        return ModelResponse(content=", ".join(words))


async def main(kind, where, runs, point):
    started = asyncio.Barrier(2)

    async def run(name, returns):
        note(runs, name)
        if point == "in the tool":
            await started.wait()
            await stop_here(point) if name == "pay" else await asyncio.Event().wait()
        return returns

    async def pay() -> str:
        return await run("pay", "paid")

    async def look() -> str:
        return await run("look", "seen")

    log = open_log(kind, where)
    hub = Hub(log, [Talk()])
    if point:
        await opened(hub, "ann", "bob", session_id=NAME)
        await hub.post(text(NAME, "ann", "pay and look"))
    else:
        turn = await log.turn(NAME, "bob", 0.0)
        assert turn.claim.token
        assert await log.renew_turn(turn.claim, 0.0, -1.0)
    if point == "before the answer is posted":

        async def post(*given, **more):
            await stop_here(point)

        hub.post = post
    tools = [pay, Tool(look, idempotent=True)]
    bob = Agent("bob", "You are bob.", Model(point), tools, assembly=[AlertPolicy(), ConversationPolicy()])
    serving = asyncio.create_task(serve(hub, bob, "bob", session_id=NAME, lease_seconds=1_000))
    while len(await said(hub, NAME)) < 2 and not serving.done():
        await asyncio.sleep(0.01)
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    print(json.dumps(await said(hub, NAME)))
    await hub.aclose()
    await log.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
