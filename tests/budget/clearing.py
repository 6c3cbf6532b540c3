"""A support desk for tests of the CLEAR pass: sources that say what they were asked, and an assembler around them."""

from __future__ import annotations

from otel_assembly import ContextAssembler
from otel_assembly.context_assembler import Candidate

SYSTEM = "You are the support desk of a shop. Never promise a refund."


class Source:
    """A retriever and a recall that bring what they were made with, and note what they were asked."""

    def __init__(self, name="docs", brings=(), calls=None, wait=None):
        self.name = name
        self.brings = list(brings)
        self.calls = calls if calls is not None else []
        self.wait = wait

    async def search(self, query, *, scopes, k):
        self.calls.append((self.name, query, frozenset(scopes), k))
        if self.wait is not None:
            await self.wait()
        return self.brings

    async def recall(self, query, *, user, scopes, k):
        return await self.search(query, scopes=scopes, k=k)


class Failing(Source):
    def __init__(self, error, **settings):
        super().__init__(**settings)
        self.error = error

    async def search(self, query, *, scopes, k):
        await super().search(query, scopes=scopes, k=k)
        raise self.error


def passage(number, text=None, scope="public", **settings):
    return Candidate(f"doc-{number}", text or f"Passage {number} says what it says.", scope, **settings)


def desk(*retrievers, **settings):
    settings = {
        "system": SYSTEM,
        "window": 4_000,
        "output_reserve": 500,
        "scopes": lambda user, task: {"public"},
        "retrievers": retrievers,
        **settings,
    }
    return ContextAssembler(**settings)


def contents(context):
    return [message["content"] if isinstance(message, dict) else message.content for message in context.messages]


def sent(context):
    """The whole prompt as one text."""
    return "\n".join(contents(context))


def why(context, text):
    """What became of the items in which this text stands."""
    return [
        (decision.outcome.value, decision.reason.value)
        for decision in context.decisions
        if text in getattr(decision.event.facts, "text", "")
    ]
