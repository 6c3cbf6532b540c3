"""Aggregates: a summary of a conversation, and an updated working memory.

An aggregate calls a model through a function of the caller and writes the answer to a `KnowledgeStore`. If the model
fails or returns an empty text, the store is unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from otel_assembly._internal.arguments import called, instance, whole_number
from otel_assembly.errors import ConfigurationError, KnowledgeConflictError, KnowledgeError
from otel_assembly.knowledge.rendering import render_events
from otel_assembly.knowledge.store import CONVERSATIONS_PREFIX, WORKING_MEMORY_PATH, ComparingKnowledgeStore
from otel_assembly.knowledge.turns import turn_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from otel_assembly.knowledge.store import KnowledgeStore

    #: A model client: takes a prompt, returns the model's text. A synchronous one blocks the event loop.
    Summarizer: TypeAlias = Callable[[str], str | Awaitable[str]]

DEFAULT_CONVERSATION_SUMMARY_PROMPT = """\
Summarise the conversation below for the assistant that took part in it, who will read the summary before a later \
conversation. Keep what was decided, what was found out, how it ended, and what is still open. Leave out small talk.

## Conversation

{events}"""

DEFAULT_WORKING_MEMORY_PROMPT = """\
You keep the working memory of an assistant: the notes it reads before every answer. Bring the notes below up to \
date with the conversation that follows them. Keep what still holds, correct what has changed, remove what is over. \
Be short and concrete. Answer with the new notes only; they replace the old ones.

## Current working memory

{existing}

## New conversation

{events}"""

_PLACEHOLDERS = re.compile(r"\{existing\}|\{events\}")
_NO_MEMORY = "(empty)"
_MAX_ID_CHARACTERS = 64
#: How often an update is repeated because the memory has changed meanwhile.
_MAX_CONFLICTS = 5

# Orders summaries of the same microsecond in one process; in several processes a random part makes names unique.
_summaries = itertools.count(1)


class Aggregate(Protocol):
    """Extracts knowledge from a conversation."""

    async def aggregate(self, events: Iterable[Any], context: Any, store: KnowledgeStore) -> None:
        """Write knowledge from these events to the store; an exception is a failure, and leaves the store unchanged."""
        ...


class ConversationSummaryAggregate:
    """Writes a summary of the conversation to a new file in ``/memory/conversations/``.

    The file is named ``{UTC time}.{microseconds}Z_{conversation}_{count}-{random}.md``, such as
    ``20260314T092653.589793Z_support-17_000001-8f3a0c5d2b7e4416.md``: names sort by time, and no summary ever replaces
    another, however close together two are written. AG2 names the file by the second and the stream's id alone, so that
    two summaries of one conversation within a second leave one file. ``{conversation}`` is ``context.conversation_id``
    with ``-`` for each character that is not an ASCII letter, a digit, ``_`` or ``-``, cut at 64 characters; random if
    there is none.

    Args:
        summarize: Takes the prompt, returns the model's text; async or not.
        prompt: The prompt; ``{events}`` is replaced by the conversation.
        clock: Returns the time of the summary, with a time zone; by default the system's clock.

    Raises:
        ConfigurationError: The prompt has no ``{events}``.
    """

    __slots__ = ("_clock", "_prompt", "_summarize")

    def __init__(
        self,
        summarize: Summarizer,
        *,
        prompt: str = DEFAULT_CONVERSATION_SUMMARY_PROMPT,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        called("summarize", summarize)
        self._summarize = summarize
        self._prompt = _checked(prompt)
        self._clock = clock

    async def aggregate(self, events: Iterable[Any], context: object, store: KnowledgeStore) -> None:
        """Summarize `events` and write the summary; does nothing if no event has text.

        Raises:
            KnowledgeError: The summarizer returned no text, or the clock a time without a zone; nothing was written. An
                exception of the summarizer is not caught.
        """
        instance("store", store)
        conversation = render_events(events)
        if not conversation:
            return
        summary = await _ask(self._summarize, _filled(self._prompt, events=conversation), "conversation summary")
        await store.write(self._path(context), summary)

    def _path(self, context: object) -> str:
        now = self._clock() if self._clock else datetime.now(UTC)
        if now.tzinfo is None:
            raise KnowledgeError("the clock of ConversationSummaryAggregate gave a time without a zone; give it UTC")
        stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        count = f"{next(_summaries):06d}-{secrets.token_hex(8)}"
        return f"{CONVERSATIONS_PREFIX}{stamp}_{_conversation_segment(context)}_{count}.md"


class WorkingMemoryAggregate:
    """Updates ``/memory/working.md`` with a conversation.

    Updates of one store run one after the other, in all tasks, threads, processes and machines, so that each starts
    from the result of the last one. The file ``/memory/working.md.lock`` names the current one. If the memory is
    changed meanwhile (by a person, or by an update that exceeded its time), the model is called again, so that nothing
    is lost. With a store that is not a `ComparingKnowledgeStore`, one of two concurrent updates is lost.

    Args:
        summarize: Takes the prompt, returns the model's text; async or not.
        prompt: The prompt; ``{existing}`` is replaced by the current memory (``(empty)`` if there is none),
            ``{events}`` by the conversation. Other braces have no meaning.
        patience: The seconds to wait for one other update, which is then considered dead. Use more than the duration of
            a model call. The wait for all other updates together is limited to ten times as long.

    Raises:
        ConfigurationError: The prompt has no ``{events}``, or `patience` is not positive.
    """

    __slots__ = ("_locks", "_patience", "_prompt", "_summarize")

    def __init__(
        self, summarize: Summarizer, *, prompt: str = DEFAULT_WORKING_MEMORY_PROMPT, patience: float = 60.0
    ) -> None:
        called("summarize", summarize)
        if not patience > 0:
            raise ConfigurationError(f"patience must be above 0 s, not {patience}")
        self._summarize = summarize
        self._prompt = _checked(prompt)
        self._patience = patience
        # In one event loop a lock is enough. The key is the store's id, because a store may not be hashable; a lock
        # lives as long as a task uses it. A lock belongs to one event loop, which an aggregate may outlive.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[int, asyncio.Lock]]
        self._locks = WeakKeyDictionary()

    async def aggregate(self, events: Iterable[Any], context: object, store: KnowledgeStore) -> None:
        """Merge `events` into the working memory; does nothing if no event has text.

        Raises:
            KnowledgeError: The summarizer returned no text; the memory is unchanged. An exception of the summarizer is
                not caught, and leaves the memory unchanged too.
            KnowledgeConflictError: Other writers kept changing the memory; nothing was written.
        """
        instance("store", store)
        conversation = render_events(events)
        if not conversation:
            return
        lock = self._locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary()).setdefault(
            id(store), asyncio.Lock()
        )
        async with lock:
            if not isinstance(store, ComparingKnowledgeStore):
                await store.write(WORKING_MEMORY_PATH, (await self._updated(conversation, store))[1])
                return
            async with turn_at(store, WORKING_MEMORY_PATH, self._patience):
                for _ in range(_MAX_CONFLICTS):
                    before, after = await self._updated(conversation, store)
                    if await store.replace(WORKING_MEMORY_PATH, before, after):
                        return
        raise KnowledgeConflictError(
            f"{WORKING_MEMORY_PATH!r} was changed by others each of the {_MAX_CONFLICTS} times that the model was asked"
            "; nothing was written: give the aggregate more patience, or have others change it less often"
        )

    async def _updated(self, conversation: str, store: KnowledgeStore) -> tuple[str | None, str]:
        """Return the current memory, and the updated one."""
        before = await store.read(WORKING_MEMORY_PATH)
        existing = before if before and before.strip() else _NO_MEMORY
        prompt = _filled(self._prompt, existing=existing, events=conversation)
        return before, await _ask(self._summarize, prompt, "working memory")


@dataclass(frozen=True, slots=True)
class AggregateTrigger:
    """When an aggregate runs: as soon as one condition is true. `AggregateObserver` checks it after each turn.

    Attributes:
        every_n_turns: Run after this number of turns; 0 means never.
        every_n_events: Run after this number of events that are sent to a model; 0 means never.
        on_end: Whether to run when the conversation ends.

    Raises:
        ConfigurationError: A number is negative, or there is no condition.
    """

    every_n_turns: int = 0
    every_n_events: int = 0
    on_end: bool = False

    def __post_init__(self) -> None:
        for name in ("every_n_turns", "every_n_events"):
            whole_number(f"AggregateTrigger: {name} (0: never)", getattr(self, name), least=0)
        if not (self.every_n_turns or self.every_n_events or self.on_end):
            raise ConfigurationError(
                "AggregateTrigger has no condition, so it would never run; set every_n_turns, every_n_events or on_end"
            )

    def due(self, turns: int, events: int, ended: bool) -> bool:
        """Return whether to run now.

        Args:
            turns: The number of turns since the last run, or since the beginning.
            events: The number of events since then.
            ended: Whether the conversation has ended.
        """
        return 0 < self.every_n_turns <= turns or 0 < self.every_n_events <= events or (self.on_end and ended)


def _checked(prompt: str) -> str:
    if "{events}" not in prompt:
        raise ConfigurationError("the prompt has no {events}, so the model would not see the conversation; add it")
    return prompt


def _filled(prompt: str, **values: str) -> str:
    # In one pass, so that a placeholder within the conversation is not replaced.
    return _PLACEHOLDERS.sub(lambda match: values.get(match[0][1:-1], match[0]), prompt)


async def _ask(summarize: Summarizer, prompt: str, what: str) -> str:
    answer: Any = summarize(prompt)
    if inspect.isawaitable(answer):
        answer = await answer
    if not isinstance(answer, str):
        raise KnowledgeError(
            f"the summarizer returned a {type(answer).__name__} for the {what}, not a text; nothing was written"
        )
    if not answer.strip():
        raise KnowledgeError(f"the summarizer returned an empty text for the {what}; nothing was written")
    return answer


def _conversation_segment(context: object) -> str:
    conversation = getattr(context, "conversation_id", None)
    segment = "" if conversation is None else re.sub(r"[^A-Za-z0-9_-]", "-", str(conversation))[:_MAX_ID_CHARACTERS]
    return segment if segment.strip("-_") else secrets.token_hex(4)
