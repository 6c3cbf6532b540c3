"""``python turn_kills.py sqlite|postgres WHERE RUNS KILLS [SEED]``: two servers of one participant, killed at random.

For each request the agent calls a tool that is not idempotent and one that is. However often servers are killed with
SIGKILL, and started again: a call of the first kind runs at most once, each request is answered once, and a call whose
result was stored never runs again. How far a server has come when it is killed, the seed cannot settle.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from kills import alone
from poster import open_log
from talk import Talk, opened, text
from turn_server import note

from otel_assembly import Agent, AlertPolicy, ConversationPolicy, ModelResponse, Tool
from otel_assembly.events import ModelRequest, ToolCallEvent, ToolErrorEvent, ToolResultEvent
from otel_assembly.sessions import EV_TEXT, Hub, serve

NAME = "s"
#: A short lease, so that a successor need not wait; whether one is over by mistake changes nothing that is looked at.
LEASE_SECONDS = 0.5
#: A run fails that does not come to its end in this time.
SECONDS = 500


class Model:
    """Calls both tools for the newest request, and answers once it has their results."""

    model = "scripted"

    async def __call__(self, prompts, events, *, tools=(), tool_choice=None):
        newest = max(at for at, event in enumerate(events) if isinstance(event, ModelRequest))
        request = events[newest].content
        results = [event for event in list(events)[newest:] if isinstance(event, ToolResultEvent | ToolErrorEvent)]
        if results:
            words = [getattr(result, "content", None) or result.error.partition(":")[0] for result in results]
            return ModelResponse(content=f"{request}: {', '.join(sorted(words))}")
        given = f'{{"request": "{request}"}}'
        calls = [ToolCallEvent(id=f"{name} {request}", name=name, arguments=given) for name in ("pay", "look")]
        return ModelResponse(tool_calls=tuple(calls))


def bob(runs, rng):
    async def pay(request: str) -> str:
        note(runs, f"pay-{request}")
        await asyncio.sleep(rng.random() * 0.05)
        note(runs, f"paid-{request}")
        return "paid"

    async def look(request: str) -> str:
        note(runs, f"look-{request}")
        await asyncio.sleep(rng.random() * 0.05)
        return "seen"

    return Agent("bob", "", Model(), [pay, Tool(look, idempotent=True)], assembly=[AlertPolicy(), ConversationPolicy()])


def server(kind, where, runs, seed):
    """A server in a process that is forked for it."""
    pid = os.fork()
    if pid == 0:
        try:
            hub = Hub(open_log(kind, where), [Talk(in_turns=False)])
            asyncio.run(serve(hub, bob(runs, random.Random(seed)), "bob", session_id=NAME, lease_seconds=LEASE_SECONDS))
        finally:
            os._exit(1)
    return pid


async def open_session(kind, where, requests):
    log = open_log(kind, where)
    hub = Hub(log, [Talk(in_turns=False)])
    if requests is None:
        await opened(hub, "ann", "bob", session_id=NAME)
    for request in requests or ():
        await hub.post(text(NAME, "ann", request))
    envelopes = [envelope for envelope in await hub.envelopes(NAME) if envelope.event_type == EV_TEXT]
    work = len(await log.work(NAME, "bob"))
    await hub.aclose()
    await log.close()
    return envelopes, work


def main(kind, where, runs, kills, seed="0"):
    rng = random.Random(seed)
    asyncio.run(open_session(kind, where, None))
    alone()
    pids = [server(kind, where, runs, f"{seed} {number}") for number in range(2)]
    requests, until = [], time.monotonic() + SECONDS
    try:
        for kill in range(int(kills)):
            requests.append(f"r{kill}")
            asyncio.run(open_session(kind, where, [requests[-1]]))
            before = len(Path(runs).read_text().split()) if Path(runs).exists() else 0
            # Kill while the request is worked on: after one more run of a tool, and up to a tenth of a second.
            while time.monotonic() < until and (
                not Path(runs).exists() or len(Path(runs).read_text().split()) == before
            ):
                time.sleep(0.002)
            time.sleep(rng.random() * 0.1)
            victim = pids.pop(0)  # both in turn: the one that works dies in half of the cases, or idles
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            alone()
            pids.append(server(kind, where, runs, f"{seed} {kill} again"))
        answered = []
        while len(answered) < len(requests) and time.monotonic() < until:
            envelopes, work = asyncio.run(open_session(kind, where, []))
            answered = [envelope for envelope in envelopes if envelope.sender_id == "bob"]
            time.sleep(0.02)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    envelopes, work = asyncio.run(open_session(kind, where, []))
    answered = [envelope for envelope in envelopes if envelope.sender_id == "bob"]
    texts = [envelope.event_data["text"] for envelope in answered]
    ran = Counter(Path(runs).read_text().split())
    causes = Counter(item.causation_id for item in answered)
    print(f"{kind}: {len(requests)} requests, {len(texts)} answers, runs {dict(ran)}; {texts}")
    assert sorted(text.partition(":")[0] for text in texts) == sorted(requests), texts
    assert max(causes.values()) == 1
    assert max(ran[f"pay-{request}"] for request in requests) == 1, ran
    # A payment that was not reported as made was cut off, or its server died before it could store the result.
    assert all(": paid" in text or "outcome unknown" in text for text in texts), texts
    assert work == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
