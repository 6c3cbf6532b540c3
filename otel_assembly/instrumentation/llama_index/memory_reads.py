"""Connects reads of a message store, such as a memory, with the model call that later receives the messages.

A store may drop messages when it is read. That becomes a step of the model call that receives the read messages. The
call's read is found by the messages; if the framework sends new messages instead, it is the last read of the run. A
read that no model call follows is not recorded. A change of the stored messages themselves is a step of the next call.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.message_alignment import identity_keys, same, same_content
from otel_assembly.instrumentation.model_call import ModelCall
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.instrumentation.run_types import LazyRun
from otel_assembly.messages.content_snapshot import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ClientRequest
    from otel_assembly.observe.step_report import StepReport

#: Maximum number of conversations whose last read outside any run is kept; the least recently used is dropped first.
_MAX_CONVERSATIONS: Final = 100


@dataclass(frozen=True, eq=False)
class Read:
    """One read of a store.

    Attributes:
        invoking_agent: The conversation of the store, as an invoking agent without a name.
        out: The messages that the store returned.
        steps: The reductions between the stored messages and the returned ones.
        replaced_by_plugin: Whether the store is the plug-in, which records its own assembly.
    """

    invoking_agent: InvokingAgent
    out: Sequence[Any]
    steps: Sequence[StepReport] = ()
    replaced_by_plugin: bool = False

    def is_source_of(self, messages: Sequence[Any]) -> bool:
        """Return whether the messages of a model call come from this read.

        They must contain no message that the read dropped. Unless the read was empty, they must also contain one of
        its messages, or a copy of its last one.
        """
        dropped = {id(message) for step in self.steps for message in step.before} - set(map(id, self.out))
        return dropped.isdisjoint(map(id, messages)) and (
            not self.out
            or bool(identity_keys(self.out) & identity_keys(messages))
            or any(same_content(self.out[-1], message) for message in messages)
        )


class ReadingRun(LazyRun):
    """One run of an agent or engine, in which stores may be read; for `run_hook`.

    Attributes:
        read: The last read of a store in this run.
    """

    read: Read | None = None

    def __init__(
        self,
        readings: Readings,
        instrumentation: Instrumentation,
        name: str,
        conversation_id: str | None = None,
        *,
        at_once: bool = True,
    ) -> None:
        super().__init__(instrumentation, name, conversation_id, parent=readings.current_run.get(), at_once=at_once)
        self._readings = readings

    @contextmanager
    def current(self) -> Iterator[None]:
        readings = self._readings
        with context_value(readings.current_run, self), context_value(readings.agent_name, None), super().current():
            yield

    def end(self, error: BaseException | None = None) -> None:
        if not self.ended:  # several hooks may see the end
            super().end(error)


class Reading:
    """A read of a store while it runs, or a maintenance of the store's messages.

    Args:
        snapshot: Copies a message, because the store may change the original.

    Attributes:
        inner: Reads of other stores that this store has read from.
    """

    def __init__(self, reduction: Reduction, snapshot: Callable[[Any], Any]) -> None:
        self.reduction = reduction
        self.inner: list[Read] = []
        self._snapshot = snapshot
        #: The stored messages with their copies.
        self._stored: list[tuple[Any, Any]] | None = None

    def set_stored(self, messages: Sequence[Any]) -> None:
        """Set the stored messages; only the first call has an effect, because later the store may have changed them."""
        if self._stored is None:
            self._stored = [(message, self._snapshot(message)) for message in messages]

    @property
    def stored(self) -> list[Any] | None:
        """The stored messages, or the copy of each that was changed since; None if they are unknown."""
        stored = self._stored
        return stored and [message if _is_unchanged(message, copied) else copied for message, copied in stored]

    def input_of(self, after: Sequence[Any]) -> Sequence[Any] | None:
        """Return the messages that the store derived its output (`after`) from: an inner read, or the stored messages.

        Other inner reads are discarded.
        """
        keys = identity_keys(after)  # the source has most messages of the output, and is the shortest such read
        source = max(self.inner, key=lambda read: (len(identity_keys(read.out) & keys), -len(read.out)), default=None)
        self.inner = [source] if source is not None and identity_keys(source.out) & keys else []
        return self.inner[0].out if self.inner else self.stored


def _is_unchanged(message: Any, copied: Any) -> bool:
    attributes = getattr(message, "__dict__", None)  # compared first, because that is fast
    has_same_attributes = attributes is not None and equal(attributes, getattr(copied, "__dict__", None))
    return has_same_attributes or same_content(message, copied)


def _forget_read(read_by_message: dict[int, Any], ids: Sequence[int], dead: weakref.ref[Read]) -> None:
    """Remove a collected read from `Readings._read_by_message`: its messages' ids may now be those of other objects."""
    for message_id in ids:
        if read_by_message.get(message_id) is dead:
            del read_by_message[message_id]


class Readings:
    """Hooks for the stores and model clients of one framework, which connect reads with model calls.

    Args:
        prompt_of: Returns the text of a system prompt; None for any other message. System prompts at the start of a
            request are prompts, unless a store returned them; then they are items.
        system_messages: Returns those of a list of messages that can be system prompts. It runs over all messages of
            each model call, so it should call no Python function per message.

    Attributes:
        current_reading: The read that is running in this context.
        current_run: The run in this context.
        agent_name: The name of the invoking agent, if it is not the run's agent.
    """

    def __init__(
        self,
        framework: str,
        prompt_of: Callable[[Any], str | None],
        snapshot: Callable[[Any], Any] = copy,
        system_messages: Callable[[Sequence[Any]], Sequence[Any]] = list,
    ) -> None:
        self.current_reading: ContextVar[Reading | None] = ContextVar(
            f"otel_assembly_{framework}_reading", default=None
        )
        self.current_run: ContextVar[ReadingRun | None] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self.agent_name: ContextVar[str | None] = ContextVar(f"otel_assembly_{framework}_agent", default=None)
        self._prompt_of = prompt_of
        self._snapshot = snapshot
        self._system_messages = system_messages
        #: The latest read that returned a message, by the message's `id`. Not one entry per message object, because
        #: each read returns all messages; the read keeps them alive, so no other object has these ids.
        self._read_by_message: dict[int, weakref.ref[Read]] = {}
        #: Keeps the last read of each conversation alive.
        self._last_reads: Registry[Any, list[Read]] = Registry(_MAX_CONVERSATIONS, clear_after_fork=True)
        #: The hook of a function that returns all stored messages of the store that is being read.
        self.contents_hook: Wrap = observe_hook(self._observe_contents)

    def record_read(self, read: Read) -> None:
        """Remember a read until `record_call` records the model call that receives its messages."""
        ids = list(map(id, read.out))
        reference = weakref.ref(read, partial(_forget_read, self._read_by_message, ids))
        self._read_by_message.update(zip(ids, repeat(reference)))
        run, key = self.current_run.get(), read.invoking_agent.ledger()
        if run is not None:
            run.read = read
        elif key is not None:
            self._last_reads.of(key, list)[:] = [read]

    def with_agent_name(self, invoking_agent: InvokingAgent) -> InvokingAgent:
        """Return an invoking agent with the name of the agent in this context, or else of the run."""
        run = self.current_run.get()
        return invoking_agent._replace(agent_name=self.agent_name.get() or (run.name if run is not None else None))

    @contextmanager
    def reading_scope(self, reduction: Reduction) -> Iterator[Reading]:
        """Make a new `Reading` the current one in the block, in which a store is read or maintains its messages."""
        reading = Reading(reduction, self._snapshot)
        with context_value(self.current_reading, reading), reduction.running():
            yield reading

    def store_hook(
        self,
        report_of: Callable[[Any], StepReport | None],
        invoking_agent_of: Callable[[Any], InvokingAgent],
        *,
        stored: Callable[[Any], Sequence[Any] | None] = lambda _: None,
        replaces_stored: Callable[[Any], Any] = lambda _: False,
    ) -> Wrap:
        """Return the hook of a function that returns a store's messages, sync or async.

        Args:
            report_of: Returns the report of a store's reduction without its messages; None if the store is not
                observed.
            invoking_agent_of: Returns the invoking agent for a store's conversation.
            stored: Returns the stored messages if `contents_hook` has not observed them; None if they are unknown.
            replaces_stored: Returns whether the store replaces its stored messages with those that it returns. Then the
                change affects all later reads, not only this one.
        """

        def observe(instrumentation: Instrumentation, store: Any, /, *_: Any, **__: Any) -> Observation:
            report = report_of(store)
            if report is None:
                return
            invoking_agent, outer = invoking_agent_of(store), self.current_reading.get()
            reduction = Reduction(instrumentation, report)
            try:
                with self.reading_scope(reduction) as reading:
                    result = yield
            except BaseException as error:
                reduction.before = reading.stored or [message for read in reading.inner for message in read.out]
                if outer is None:  # no model is called
                    reduction.prevented_call(error, self.with_agent_name(invoking_agent))
                else:  # the store that reads from this one may handle the error
                    outer.inner.append(Read(invoking_agent, reduction.before))
                    outer.reduction.adopt_attempts(reduction)
                raise
            after = list(result)
            before = reading.input_of(after)
            if before is None:
                before = stored(store)
            reduction.before = after if before is None else before  # unknown messages count as unchanged
            steps = [step for read in reading.inner for step in read.steps]
            if same(reduction.before, after):  # counted as a reduction that changed nothing
                reduction.done(after)
            elif replaces_stored(store):  # a step of the next call, even if this read is never sent to a model
                reduction.done(after, invoking_agent=invoking_agent)
            else:
                steps.append(reduction.to_deferred(after))
            read = Read(invoking_agent, after, steps)
            if outer is not None:
                outer.inner.append(read)
            elif reducing() is None:  # otherwise a reducer reads the store for itself, not for a model call
                self.record_read(read)

        return observe_hook(observe)

    def record_call(self, instrumentation: Instrumentation, request: ClientRequest) -> ModelCall:
        """Record a model call: the steps of its read, then what the store returned, then the request.

        Each difference between these is a step. Pass this method to `client` as its argument ``record``.
        """
        run, read = self.current_run.get(), self._source_of(request.messages)
        if read is None:  # no store was read for this call, which belongs to the run's conversation
            read = Read(InvokingAgent(conversation_id=run.conversation_id if run is not None else None), ())
        prompts, messages = self._split_prompts(request.messages, read)
        agent = self.with_agent_name(read.invoking_agent)
        call = ModelCall(instrumentation, agent, prompts=prompts, model=request.model)
        call.run = run if run is not None and not run.ended else None
        # The first messages that the call receives below are its input.
        if read.replaced_by_plugin:
            call.replaced_by_plugin(read.out, prompts=prompts)
        for step in read.steps:
            call.replay_deferred(step)
        if read.out:  # otherwise the input is the request's messages, unless a step has set it
            call.observe_messages(read.out)
        call.client_called(request._replace(messages=messages, prompts=prompts))
        return call

    def _split_prompts(self, messages: Sequence[Any], read: Read) -> tuple[list[str], Sequence[Any]]:
        """Return the system prompts in front of a request's messages, and the other messages.

        A system message that the store returned is an item of the conversation, not a prompt.
        """
        items = [message for message in self._system_messages(read.out) if self._prompt_of(message) is not None]
        leading, others = in_front(
            messages,
            lambda message: (
                self._prompt_of(message) is not None and not any(same_content(message, item) for item in items)
            ),
        )
        return list(map(str, map(self._prompt_of, leading))), others

    def _source_of(self, messages: Sequence[Any]) -> Read | None:
        """Return the read that messages come from: the read of the newest known message, or the run's last read."""
        run = self.current_run.get()
        references = filter(None, map(self._read_by_message.get, map(id, reversed(messages))))
        reads = (reference() for reference in references)
        candidates = next(filter(None, reads), None), run.read if run is not None else None
        return next((read for read in candidates if read is not None and read.is_source_of(messages)), None)

    def _observe_contents(self, _: Instrumentation, /, *__: Any, **___: Any) -> Observation:
        messages, reading = (yield), self.current_reading.get()
        if reading is not None:
            reading.set_stored(messages)
