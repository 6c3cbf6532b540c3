"""Aggregates: they turn a conversation into a summary, or into an update of an agent's working memory.

An aggregate sends a prompt to a model, with a function that you give it, and writes the answer to a `KnowledgeStore`.
If the model fails or returns an empty text, the store is unchanged.
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
from otel_assembly.knowledge.file_lock import file_lock
from otel_assembly.knowledge.rendering import render_events
from otel_assembly.knowledge.store import CONVERSATIONS_PREFIX, WORKING_MEMORY_PATH, ComparingKnowledgeStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from otel_assembly.knowledge.store import KnowledgeStore

    #: A function that takes a prompt and returns the model's text. A synchronous function blocks the event loop.
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
#: How often the model is asked again because the memory was changed during the previous call.
_MAX_CONFLICTS = 5

# Numbers the summaries of this process, because two of them can have the same time. The random part of a file's name
# makes it unique across processes.
_summary_numbers = itertools.count(1)


class Aggregate(Protocol):
    """The interface of aggregates, which write knowledge from a conversation to a store."""

    async def aggregate(self, events: Iterable[Any], context: Any, store: KnowledgeStore) -> None:
        """Extract knowledge from events, and write it to a store; if this raises an error, the store must be unchanged.

        Args:
            events: The events of a conversation, of any registered types.
            context: The context of the conversation, such as a `Context`.
            store: The store to write to.
        """
        ...


class ConversationSummaryAggregate:
    """Writes a summary of the conversation to a new file in ``/memory/conversations/``.

    The file is named ``{UTC time}.{microseconds}Z_{conversation}_{count}-{random}.md``, such as
    ``20260314T092653.589793Z_support-17_000001-8f3a0c5d2b7e4416.md``. The names sort by time, and no summary replaces
    another one. (In AG2, the name has only the second and the stream's id, so that the second of two summaries within a
    second replaces the first.) ``{conversation}`` is ``context.conversation_id``, with ``-`` for each character other
    than ASCII letters, digits, ``_`` and ``-``, truncated to 64 characters; without a conversation id, it is random.

    Args:
        summarize: Takes the prompt and returns the model's text; sync or async.
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
        self._prompt = _check_prompt(prompt)
        self._clock = clock

    async def aggregate(self, events: Iterable[Any], context: object, store: KnowledgeStore) -> None:
        """Summarize `events` and write the summary to the store; do nothing if no event has text.

        Raises:
            KnowledgeError: `summarize` returned no text, or `clock` returned a time without a zone; nothing was
                written. An exception of `summarize` is passed on.
        """
        instance("store", store)
        conversation = render_events(events)
        if not conversation:
            return
        summary = await _ask(self._summarize, _fill_prompt(self._prompt, events=conversation), "conversation summary")
        await store.write(self._path(context), summary)

    def _path(self, context: object) -> str:
        now = self._clock() if self._clock else datetime.now(UTC)
        if now.tzinfo is None:
            raise KnowledgeError("the clock of ConversationSummaryAggregate has no time zone; return UTC times")
        stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        count = f"{next(_summary_numbers):06d}-{secrets.token_hex(8)}"
        return f"{CONVERSATIONS_PREFIX}{stamp}_{_conversation_segment(context)}_{count}.md"


class WorkingMemoryAggregate:
    """Updates the working memory, the file ``/memory/working.md``, with a conversation.

    Updates of one store run one after the other, across tasks, threads, processes and machines: each starts from the
    result of the previous one. The running update creates the lock file ``/memory/working.md.lock``. If the memory
    changes during an update (a person edits it, or another update did not wait any longer), the model is called again
    with the changed memory, so that no change is lost. With a store that is not a `ComparingKnowledgeStore`, one of two
    concurrent updates is lost.

    Args:
        summarize: Takes the prompt and returns the model's text; sync or async.
        prompt: The prompt; ``{existing}`` is replaced by the current memory (``(empty)`` if there is none),
            ``{events}`` by the conversation. Other braces have no meaning.
        patience: The seconds after which another update is considered dead and is no longer waited for. Use more than
            the duration of a model call. The wait for all other updates together is limited to ten times `patience`.

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
        self._prompt = _check_prompt(prompt)
        self._patience = patience
        # Updates in one event loop wait for an asyncio lock before they use the lock file. The inner key is the id of
        # the store, because a store may not be hashable. A lock belongs to one event loop, and lives while a task uses
        # it.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[int, asyncio.Lock]]
        self._locks = WeakKeyDictionary()

    async def aggregate(self, events: Iterable[Any], context: object, store: KnowledgeStore) -> None:
        """Update the working memory with `events`; do nothing if no event has text.

        Raises:
            KnowledgeError: `summarize` returned no text; the memory is unchanged. An exception of `summarize` is passed
                on, and the memory is unchanged too.
            KnowledgeConflictError: Other writers changed the memory during each of five model calls, or the wait for
                them took too long; nothing was written.
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
                await store.write(WORKING_MEMORY_PATH, (await self._updated_memory(conversation, store))[1])
                return
            async with file_lock(store, WORKING_MEMORY_PATH, self._patience):
                for _ in range(_MAX_CONFLICTS):
                    before, after = await self._updated_memory(conversation, store)
                    if await store.replace(WORKING_MEMORY_PATH, before, after):
                        return
        raise KnowledgeConflictError(
            f"{WORKING_MEMORY_PATH!r} was changed by others each of the {_MAX_CONFLICTS} times that the model was asked"
            "; nothing was written: give the aggregate more patience, or have others change it less often"
        )

    async def _updated_memory(self, conversation: str, store: KnowledgeStore) -> tuple[str | None, str]:
        """Return the current memory, and the memory that the model writes from it and the conversation."""
        before = await store.read(WORKING_MEMORY_PATH)
        existing = before if before and before.strip() else _NO_MEMORY
        prompt = _fill_prompt(self._prompt, existing=existing, events=conversation)
        return before, await _ask(self._summarize, prompt, "working memory")


@dataclass(frozen=True, slots=True)
class AggregateTrigger:
    """The conditions for running an aggregate, which runs as soon as one of the conditions is true.

    `AggregateObserver` checks the conditions after each turn.

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
        """Return True if the aggregate has to run now.

        Args:
            turns: The number of turns since the last run, or since the beginning.
            events: The number of events that were sent to a model in this time.
            ended: Whether the conversation has ended.
        """
        return 0 < self.every_n_turns <= turns or 0 < self.every_n_events <= events or (self.on_end and ended)


def _check_prompt(prompt: str) -> str:
    if "{events}" not in prompt:
        raise ConfigurationError("the prompt has no {events}, so the model would not see the conversation; add it")
    return prompt


def _fill_prompt(prompt: str, **values: str) -> str:
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
