"""Assemble the prompts of a support desk, without a model or network.

Run it with ``python examples/context_assembler.py``. It asks two questions in one conversation, and prints the kept and
dropped items with the reasons. After the first answer it stores a fact, which the second question recalls.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from otel_assembly import Context, ContextAssembler, ModelRequest, ModelResponse, Task
from otel_assembly.context_assembler import AssembledContext, Candidate, KnowledgeRecall, KnowledgeWriteGate, Proposal
from otel_assembly.knowledge import MemoryKnowledgeStore

if TYPE_CHECKING:
    from collections.abc import Collection

HANDBOOK = [
    Candidate("fees-2025", "The monthly fee of the Pro plan is 9 EUR.", "public", version=2025),
    Candidate("fees-2025", "The monthly fee of the Pro plan is 11 EUR.", "public", version=2026),
    Candidate("double", "Two charges on one day are a reservation and a booking; the first one expires.", "public"),
    Candidate("refunds", "A charge that was made twice is refunded within five working days.", "public"),
    Candidate("history", "This shop began in a garage, long ago. " * 10, "public"),
    Candidate("fraud", "Accounts flagged F-7 are under investigation; never tell the customer.", "staff"),
]
CUSTOMERS: dict[str, dict[str, object]] = {"ada": {"plan": "pro", "open_cases": ["C-17"]}}


class Handbook:
    """A retriever that ranks pages by the number of words shared with the question."""

    name = "handbook"

    async def search(self, query: str, *, scopes: Collection[str], k: int) -> list[Candidate]:
        words = set(query.lower().strip("?").split())
        visible = [page for page in HANDBOOK if page.scope in scopes]
        return sorted(visible, key=lambda page: -len(words & set(page.content.lower().split())))[:k]


def permitted_scopes(user: str, task: Task) -> set[str]:
    """Return the scopes whose content a customer may see: the public handbook and the customer's own memories."""
    return {"public", f"customer:{user}"}


def load_state(task: Task, scopes: Collection[str]) -> dict[str, object]:
    """Return the application's state, which is never cut."""
    return CUSTOMERS.get(task.entity or "", {})


def worth_remembering(proposal: Proposal) -> bool:
    """Return True if a proposed memory names its source."""
    return proposal.candidate.source is not None


async def main() -> None:
    memory = MemoryKnowledgeStore()
    assembler = ContextAssembler(
        system="You are the support desk of a shop. Be kind. Never promise a refund.",
        window=300,
        output_reserve=80,
        scopes=permitted_scopes,
        retrievers=[Handbook()],
        recall=KnowledgeRecall(memory),
        state=load_state,
        gate=KnowledgeWriteGate(memory, accept=worth_remembering),
        floors={"evidence": 40},
        name="support",
        model="gpt-4o",
    )
    conversation = Context(agent_name="support")

    task = Task(
        "Why was I charged twice on one day?",
        output_schema={"type": "object", "required": ["answer", "sources"]},
        key_instruction="Answer with the JSON object and nothing else.",
        entity="ada",
        recent=[ModelRequest(content="Hello!"), ModelResponse(content="Hello Ada, how can I help?")],
    )
    context = await assembler.assemble(task, user="ada", context=conversation)
    show(context)

    # Send context.messages to your model. After the answer, propose memories to the write gate.
    retained = await context.retain(
        "The first charge is a reservation, it expires.",
        candidates=[
            Candidate("charged-twice", "Ada was charged twice in March.", "customer:ada", source="C-17"),
            Candidate("mood", "Ada sounded annoyed.", "customer:ada"),
        ],
    )
    print("\nRemembered:", ", ".join(f"{result.proposal.candidate.id} {result.outcome}" for result in retained))

    task = Task("Will I get back what I was charged twice?", entity="ada", output_schema=task.output_schema)
    show(await assembler.assemble(task, user="ada", context=conversation))


def show(context: AssembledContext) -> None:
    allocation = context.allocation
    print(f"\n{allocation.used} of {allocation.budget} tokens, in this order:")
    for block, zone in zip(context.prompt, context.prompt.zones, strict=True):
        item_ids = ", ".join(item.id for item in block.items if item.id)
        print(f"  {zone.name.lower():8} {block.name:9} {item_ids}".rstrip())
    print("Left out:")
    for item in allocation.dropped:
        print(f"  {item.block} {item.item.id or item.index}: {item.reason}, {item.tokens} tokens")
    prefix = context.assembly.prefix
    print(f"As on the last turn: {prefix.tokens} tokens; the cacheable prefix is {context.prompt.prefix_hash}")


if __name__ == "__main__":
    asyncio.run(main())
