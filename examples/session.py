"""Three agents in a discussion, with a durable SQLite log and one view per agent. It needs no network.

python examples/session.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from otel_assembly import Agent, AlertPolicy, ConversationPolicy
from otel_assembly.sessions import (
    EV_TEXT,
    DiscussionAdapter,
    Envelope,
    Hub,
    NamedWindowedSummary,
    SessionState,
    SqliteSessionLog,
    serve,
)
from otel_assembly.testing import ScriptedModel

#: Responses of the scripted models. An empty response posts nothing, so the discussion pauses.
SCRIPTS = {
    "planner": ("Then leave at nine, and have lunch at the harbour.", ""),
    "treasurer": ("The boat is 40 each. Can we afford it?", "Fine: the boat it is."),
    "guide": ("The museum is free on Sundays.", "I shall book four seats."),
}


def agent(name: str, model: ScriptedModel) -> Agent:
    return Agent(name, f"You are the {name} of a trip.", model, assembly=[AlertPolicy(), ConversationPolicy()])


async def main(folder: Path) -> None:
    log = SqliteSessionLog(folder / "trips.db")
    async with Hub(log, [DiscussionAdapter()]) as hub:
        trip = (await hub.create("discussion", "planner", ["planner", "treasurer", "guide"])).session_id
        models = {name: ScriptedModel(*responses) for name, responses in SCRIPTS.items()}
        window = NamedWindowedSummary(3)
        servers = [
            asyncio.create_task(serve(hub, agent(name, model), name, session_id=trip, view=window))
            for name, model in models.items()
        ]
        async for _ in hub.changes():
            if (await hub.folded(trip)).state is SessionState.ACTIVE:
                break
        await hub.post(Envelope(trip, "planner", EV_TEXT, {"text": "Where do we go on Sunday?"}))

        async for _ in hub.changes():
            texts = [entry for entry in await hub.envelopes(trip) if entry.event_type == EV_TEXT]
            if len(texts) == 6:
                break
        await hub.close(trip, "planner", "decided")
        await asyncio.gather(*servers)

    # A second hub, here or in another process, reads the same state from the log.
    async with Hub(log, [DiscussionAdapter()]) as second_hub:
        for envelope in await second_hub.envelopes(trip):
            if envelope.event_type == EV_TEXT:
                print(f"{envelope.seq}. {envelope.sender_id}: {envelope.event_data['text']}")
        print("the session is", (await second_hub.folded(trip)).state.value)
    await log.close()

    print("\nWhat the guide's model was sent for its second turn:")
    for event in models["guide"].received[-1].events:
        print(f"  {type(event).__name__}: {getattr(event, 'content', None) or getattr(event, 'summary', '')}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
