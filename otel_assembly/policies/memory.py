"""Policies that inject what is remembered: working memory and past conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.decision import Outcome
from otel_assembly.knowledge import CONVERSATIONS_PREFIX, WORKING_MEMORY_PATH, KnowledgeStore
from otel_assembly.policies.base import INJECTION, DecidingPolicy, at_least

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.context import Context


class WorkingMemoryPolicy(DecidingPolicy):
    """Appends ``/memory/working.md`` of the context's `KnowledgeStore` to the prompts (seed 000).

    The store is ``context.dependencies[KnowledgeStore]``; with no store, or nothing in it, the policy does nothing.
    """

    name: str = "working_memory"
    kind: str = INJECTION

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the prompts with the working memory.

        Raises:
            KnowledgeError: The store could not be read.
        """
        store: KnowledgeStore | None = context.dependencies.get(KnowledgeStore)
        content = await store.read(WORKING_MEMORY_PATH) if store is not None else None
        if not content or not content.strip():
            return Outcome(prompts, events)
        return Outcome([*prompts, f"## Working Memory\n\n{content}"], events)


class EpisodicMemoryPolicy(DecidingPolicy):
    """Appends the newest summaries under ``/memory/conversations/`` to the prompts (seed 000).

    Args:
        max_episodes: The most summaries to inject; the newest by name, for their names begin with a time.
        transparent: Append a note that says how many there are.

    Raises:
        ConfigurationError: `max_episodes` is below 1.
    """

    name: str = "episodic_memory"
    kind: str = INJECTION

    def __init__(self, max_episodes: int = 5, transparent: bool = True) -> None:
        self.max_episodes = at_least(self.name, "max_episodes", max_episodes)
        self.transparent = bool(transparent)

    @property
    def config(self) -> Mapping[str, int | float | bool | str | None]:
        """The settings as given."""
        return {"max_episodes": self.max_episodes, "transparent": self.transparent}

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the prompts with past conversations.

        Raises:
            KnowledgeError: The store could not be read.
        """
        store: KnowledgeStore | None = context.dependencies.get(KnowledgeStore)
        if store is None:
            return Outcome(prompts, events)
        names = [name for name in await store.list(CONVERSATIONS_PREFIX) if not name.endswith("/")]
        read = [await store.read(CONVERSATIONS_PREFIX + name) for name in names[-self.max_episodes :]]
        episodes = [content for content in read if content and content.strip()]
        if not episodes:
            return Outcome(prompts, events)
        injected = [*prompts, "## Past Conversations\n\n" + "\n\n---\n\n".join(episodes)]
        if self.transparent:
            injected.append(f"[{self.name}] Injected {len(episodes)} past conversation summaries.")
        return Outcome(injected, events)
