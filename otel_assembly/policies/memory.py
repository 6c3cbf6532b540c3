"""Policies that add memories to the prompts: working memory and past conversations."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import Outcome
from otel_assembly.knowledge import CONVERSATIONS_PREFIX, WORKING_MEMORY_PATH, KnowledgeStore
from otel_assembly.policies.base import INJECTION, DecidingPolicy, at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.context import Context


logger: Final = logging.getLogger("otel_assembly")


class _MemoryPolicy(DecidingPolicy):
    """The base class of policies that inject texts of the store in ``context.dependencies[KnowledgeStore]``."""

    kind: str = INJECTION
    _warned = False

    def _store(self, context: Context) -> KnowledgeStore | None:
        """Return the context's `KnowledgeStore`; None, with one logged warning per policy object, if it has none."""
        store: KnowledgeStore | None = context.dependencies.get(KnowledgeStore)
        if store is None and not self._warned:
            self._warned = True
            logger.warning(
                "policy %r has no KnowledgeStore to read, and adds nothing to the prompt; give it one: "
                "dependencies={KnowledgeStore: store}, of the Context or of the plug-in that runs it",
                self.name,
            )
        return store


class WorkingMemoryPolicy(_MemoryPolicy):
    """Append the working memory to the prompts (as in AG2).

    The text is ``/memory/working.md`` in ``context.dependencies[KnowledgeStore]``. If the file is empty, the policy
    adds nothing. If there is no store, the policy adds nothing and logs one warning.
    """

    name: str = "working_memory"

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the prompts with the working memory.

        Raises:
            KnowledgeError: The store could not be read.
        """
        store = self._store(context)
        content = await store.read(WORKING_MEMORY_PATH) if store is not None else None
        if not content or not content.strip():
            return Outcome(prompts, events)
        return Outcome([*prompts, f"## Working Memory\n\n{content}"], events)


class EpisodicMemoryPolicy(_MemoryPolicy):
    """Append the newest conversation summaries to the prompts (as in AG2).

    The summaries are under ``/memory/conversations/`` in ``context.dependencies[KnowledgeStore]``. If there is no
    store, the policy adds nothing and logs one warning.

    Args:
        max_episodes: The most summaries to inject: the last by name, which are the newest, because names begin with a
            time.
        transparent: Append a note with the number of injected summaries.

    Raises:
        ConfigurationError: `max_episodes` is below 1.
    """

    name: str = "episodic_memory"

    def __init__(self, max_episodes: int = 5, transparent: bool = True) -> None:
        self.max_episodes = at_least(self.name, "max_episodes", max_episodes)
        self.transparent = bool(transparent)

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the prompts with the summaries of past conversations.

        Raises:
            KnowledgeError: The store could not be read.
        """
        store = self._store(context)
        if store is None:
            return Outcome(prompts, events)
        names = [name for name in await store.list(CONVERSATIONS_PREFIX) if not name.endswith("/")]
        contents = [await store.read(CONVERSATIONS_PREFIX + name) for name in names[-self.max_episodes :]]
        episodes = [content for content in contents if content and content.strip()]
        if not episodes:
            return Outcome(prompts, events)
        injected = [*prompts, "## Past Conversations\n\n" + "\n\n---\n\n".join(episodes)]
        if self.transparent:
            injected.append(f"[{self.name}] Injected {len(episodes)} past conversation summaries.")
        return Outcome(injected, events)
