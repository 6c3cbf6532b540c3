"""A conversation whose working memory is written in the background after each turn, and read in the next turn.

A scripted summarizer replaces your model. Several processes can share the store without losing updates.

python examples/working_memory.py
"""

from __future__ import annotations

import asyncio
import sys

from otel_assembly import Assembler, Context, ModelRequest, ModelResponse, WorkingMemoryPolicy, attach
from otel_assembly.events import AggregationCompleted, TurnCompleted
from otel_assembly.knowledge import (
    AggregateTrigger,
    DiskKnowledgeStore,
    KnowledgeStore,
    MemoryKnowledgeStore,
    WorkingMemoryAggregate,
)
from otel_assembly.runtime import AggregateObserver, Stream


async def summarize(prompt: str) -> str:
    notes = {"Ada": "- is called Ada", "trains": "- prefers trains"}
    return "\n".join(note for word, note in notes.items() if word in prompt) or "- nothing yet"


async def conversation(memory: AggregateObserver, store: KnowledgeStore, *questions: str) -> None:
    stream = Stream()
    context = Context(stream=stream, dependencies={KnowledgeStore: store})
    stream.subscribe(AggregationCompleted, lambda event: print("written by", event.aggregate))
    with attach(stream, [memory], context):
        for turn, question in enumerate(questions):
            await stream.send(ModelRequest(content=question))
            assembly = await Assembler([WorkingMemoryPolicy()]).assemble(["Be brief."], stream.history, context)
            print(question, "| the model is told:", assembly.prompts[1:])
            await stream.send(ModelResponse(content="Noted."))
            await stream.send(TurnCompleted(turn=turn))  # does not wait for the summarizer
    await memory.end(stream)


async def main(*folder: str) -> None:
    store = DiskKnowledgeStore(*folder) if folder else MemoryKnowledgeStore()
    aggregate = WorkingMemoryAggregate(summarize)
    async with AggregateObserver(aggregate, AggregateTrigger(every_n_turns=2, on_end=True)) as memory:
        await conversation(memory, store, "I am Ada.", "How are you?", "I like trains.")
        await conversation(memory, store, "How do I get to Brno?")


asyncio.run(main(*sys.argv[1:2]))
