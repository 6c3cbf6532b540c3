"""What a conversation leaves behind: a summary of it, and a working memory that it brought up to date.

An aggregate asks a model, through a callable of the caller's, and writes the answer to a `KnowledgeStore`. A model that
fails, or has nothing to say, never costs what the store held.
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

    #: Any model client: takes a prompt, gives the model's text. One that is not async blocks the loop while it runs.
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
#: How often the model is asked for an update of a memory that is another one by then.
_MAX_CONFLICTS = 5

# Orders the summaries of one microsecond within a process; between processes their random part keeps them apart.
_summaries = itertools.count(1)


class Aggregate(Protocol):
    """Something that makes of a conversation what is worth keeping."""

    async def aggregate(self, events: Iterable[Any], context: Any, store: KnowledgeStore) -> None:
        """Write to the store what is to be kept of these events; what it raises is a failure, and `store` as it was."""
        ...


class ConversationSummaryAggregate:
    """Writes a summary of the conversation to a new file beneath ``/memory/conversations/``.

    The file is named ``{UTC time}.{microseconds}Z_{conversation}_{count}-{random}.md``, such as
    ``20260314T092653.589793Z_support-17_000001-8f3a0c5d2b7e4416.md``: names sort by time, and no summary ever replaces
    another, however close together two are written. AG2 names the file by the second and the stream's id alone, so that
    two summaries of one conversation within a second leave one file. ``{conversation}`` is ``context.conversation_id``
    with ``-`` for whatever is not an ASCII letter, a digit, ``_`` or ``-``, cut at 64 characters; random where there is
    none.

    Args:
        summarize: Takes the prompt, gives the model's text; async or not.
        prompt: The prompt; ``{events}`` stands for the conversation.
        clock: Gives the time of the summary, with a time zone; the system's clock if it is not given.

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
        """Summarise `events` and write the summary; nothing is asked or written where no event has something to read.

        Raises:
            KnowledgeError: The summariser returned no text, or the clock a time without a zone; nothing was written.
                What the summariser raises comes through.
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
    """Brings ``/memory/working.md`` up to date with a conversation.

    Updates of one store wait for each other, so that each starts from what the last one wrote, whichever task, thread,
    process or machine it is in. Whose turn it is stands in ``/memory/working.md.lock`` meanwhile. Where the memory was
    changed even so while the model was asked (by a person, or by one whose turn was over), it is asked again, so that
    nothing is lost. Only in a store that is no `ComparingKnowledgeStore`, of two processes that update it at once the
    later one's memory remains.

    Args:
        summarize: Takes the prompt, gives the model's text; async or not.
        prompt: The prompt; ``{existing}`` stands for the memory so far (``(empty)`` where there is none), ``{events}``
            for the conversation. Braces elsewhere, and in what is filled in, mean nothing.
        patience: Seconds that another one's update is waited for. One that takes longer is taken to have died, and the
            next goes on; give more than the model takes, or it is asked in vain. For all others together ten times as
            long is waited.

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
        # Within a loop nobody has to ask the store whose turn it is. By the store's id, for it may not be hashable; it
        # lives as long as whoever waits at its lock. A lock belongs to its loop, which an aggregate may outlive.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[int, asyncio.Lock]]
        self._locks = WeakKeyDictionary()

    async def aggregate(self, events: Iterable[Any], context: object, store: KnowledgeStore) -> None:
        """Merge `events` into the working memory; nothing is asked or written where no event has something to read.

        Raises:
            KnowledgeError: The summariser returned no text; the memory is what it was. So it is where the summariser
                raises; that error comes through.
            KnowledgeConflictError: Others kept changing the memory; nothing of these events was written.
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
        """The memory that there is, and what the model makes of it."""
        before = await store.read(WORKING_MEMORY_PATH)
        existing = before if before and before.strip() else _NO_MEMORY
        prompt = _filled(self._prompt, existing=existing, events=conversation)
        return before, await _ask(self._summarize, prompt, "working memory")


@dataclass(frozen=True, slots=True)
class AggregateTrigger:
    """When an aggregate runs: as soon as one of its conditions holds. `AggregateObserver` asks it after each turn.

    Attributes:
        every_n_turns: Turns after which it runs again; 0 for never.
        every_n_events: Events, of those that a model is sent, after which it runs again; 0 for never.
        on_end: Whether it runs when the conversation ends.

    Raises:
        ConfigurationError: A number is negative, or there is no condition at all.
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
        """Whether to run now.

        Args:
            turns: Turns since the aggregate last ran, or since the beginning.
            events: Events since then.
            ended: Whether the conversation is at its end.
        """
        return 0 < self.every_n_turns <= turns or 0 < self.every_n_events <= events or (self.on_end and ended)


def _checked(prompt: str) -> str:
    if "{events}" not in prompt:
        raise ConfigurationError("the prompt has no {events}, so the model would not see the conversation; add it")
    return prompt


def _filled(prompt: str, **values: str) -> str:
    # In one pass: a placeholder's name within a conversation stays what it is.
    return _PLACEHOLDERS.sub(lambda match: values.get(match[0][1:-1], match[0]), prompt)


async def _ask(summarize: Summarizer, prompt: str, what: str) -> str:
    answer: Any = summarize(prompt)
    if inspect.isawaitable(answer):
        answer = await answer
    if not isinstance(answer, str):
        raise KnowledgeError(
            f"the summariser gave a {type(answer).__name__} for the {what}, not a text; nothing was written"
        )
    if not answer.strip():
        raise KnowledgeError(f"the summariser gave an empty text for the {what}; nothing was written")
    return answer


def _conversation_segment(context: object) -> str:
    conversation = getattr(context, "conversation_id", None)
    segment = "" if conversation is None else re.sub(r"[^A-Za-z0-9_-]", "-", str(conversation))[:_MAX_ID_CHARACTERS]
    return segment if segment.strip("-_") else secrets.token_hex(4)
