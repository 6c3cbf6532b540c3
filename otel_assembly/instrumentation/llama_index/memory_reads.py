"""Stores of messages that are read in one place, and a model that is called in another with what they gave.

What a store does as it is read, such as to leave out the oldest, is told with the call that is made with what it gave:
that is known by the messages, or, where a framework makes others of them, as what was read last in the run. What is
read for no call is not told; what a store does to what it keeps waits for its next one.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.conversation import IdentityWeakMap, InvokingAgent
from otel_assembly.instrumentation.hooks import observe_any_hook
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.lazy_runs import LazyRun
from otel_assembly.instrumentation.message_alignment import identity_keys, same, same_content
from otel_assembly.instrumentation.model_call import ModelCall
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.messages.content_snapshot import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.instrumentation.deferred import DeferredReduction
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ClientRequest
    from otel_assembly.instrumentation.reductions import Reducer

#: Conversations whose last reading is remembered outside of any run; beyond it the least recently used ones' are not.
_REMEMBERED: Final = 100


@dataclass(frozen=True, eq=False)
class Read:
    """What a store has given.

    Attributes:
        invoking_agent: Whose store it is.
        out: The messages.
        steps: What was done to those that it holds.
        replaced_by_plugin: Whether it is a plug-in of ours, which has told that itself.
    """

    invoking_agent: InvokingAgent
    out: Sequence[Any]
    steps: Sequence[DeferredReduction] = ()
    replaced_by_plugin: bool = False

    def went_into(self, messages: Sequence[Any]) -> bool:
        """Whether these are made of what was given, and of nothing that was left out for it."""
        left = {id(one) for step in self.steps for one in step.before} - set(map(id, self.out))
        return left.isdisjoint(map(id, messages)) and (
            not self.out
            or bool(identity_keys(self.out) & identity_keys(messages))
            or any(same_content(self.out[-1], one) for one in messages)
        )


class ReadingRun(LazyRun):
    """One run, a `Run` as `within` takes it, in whose name a model is called; `Readings.run` makes it.

    Attributes:
        read: What was read in it last.
    """

    read: Read | None = None

    def __init__(
        self,
        readings: Readings,
        instrumentation: Instrumentation,
        name: str,
        conversation_id: str | None,
        at_once: bool,
    ) -> None:
        super().__init__(instrumentation, name, conversation_id, parent=readings.in_run.get(), at_once=at_once)
        self._readings = readings

    @contextmanager
    def current(self) -> Iterator[None]:
        """One step of it."""
        with context_value(self._readings.in_run, self), context_value(self._readings.agent, None), super().current():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """The run came to its end, which more than one of its parts may say."""
        if not self.ended:
            super().end(error)


class Reading:
    """One store while it is read, or cares for what it keeps.

    Args:
        reduction: What it does.
        snapshot: Copies a message, whose original may be written into.

    Attributes:
        reduction: What it does.
        inner: What stores inside of it have given.
    """

    def __init__(self, reduction: Reduction, snapshot: Callable[[Any], Any]) -> None:
        self.reduction = reduction
        self.inner: list[Read] = []
        self._snapshot = snapshot
        self._held: list[tuple[Any, Any]] | None = None

    def sees(self, messages: Sequence[Any]) -> None:
        """These are held: the first that are seen are all, before anything is done to them."""
        if self._held is None:
            self._held = [(message, self._snapshot(message)) for message in messages]

    @property
    def held(self) -> list[Any] | None:
        """What was held, in the very objects as far as they say the same still; None where that was not seen."""
        held = self._held
        return held and [message if _untouched(message, was) else was for message, was in held]

    def before(self, after: Sequence[Any]) -> Sequence[Any] | None:
        """What it has made these of: of what a store inside has given, or of what it holds itself.

        Of several that have given the same messages it is one that has given the fewest beside them.
        """
        known = identity_keys(after)
        read = max(self.inner, key=lambda one: (len(identity_keys(one.out) & known), -len(one.out)), default=None)
        self.inner = [read] if read is not None and identity_keys(read.out) & known else []
        return self.inner[0].out if self.inner else self.held


def _untouched(message: Any, was: Any) -> bool:
    """Whether a message says what its copy says; what it holds is compared first, which is done in C."""
    held = getattr(message, "__dict__", None)
    return (held is not None and equal(held, getattr(was, "__dict__", None))) or same_content(message, was)


class Readings:
    """The stores of one framework.

    Args:
        framework: The framework's name.
        prompt_of: What a message says that is a system prompt; None of any other. One that a store gives is an item.
        snapshot: Copies a message.

    Attributes:
        reading: The store that is read here.
        in_run: The run that goes on here.
        agent: The name of the agent in it that asks, where that is another one's than the run's.
    """

    def __init__(
        self, framework: str, prompt_of: Callable[[Any], str | None], snapshot: Callable[[Any], Any] = copy
    ) -> None:
        self.reading: ContextVar[Reading | None] = ContextVar(f"otel_assembly_{framework}_reading", default=None)
        self.in_run: ContextVar[ReadingRun | None] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self.agent: ContextVar[str | None] = ContextVar(f"otel_assembly_{framework}_agent", default=None)
        self._prompt_of = prompt_of
        self._snapshot = snapshot
        #: By the messages, which it must not keep alive.
        self._reads: IdentityWeakMap[weakref.ref[Read]] = IdentityWeakMap()
        self._last: Registry[Any, list[Read]] = Registry(_REMEMBERED, clear_after_fork=True)
        #: The hook of what gives all that is held, to a store that is read.
        self.kept: Wrap = observe_any_hook(self._kept)

    def run(
        self, instrumentation: Instrumentation, name: str, conversation_id: str | None = None, *, at_once: bool = True
    ) -> ReadingRun:
        """One run, in which stores may be read; its span begins at once, or with the first call of a model."""
        return ReadingRun(self, instrumentation, name, conversation_id, at_once)

    def given(self, read: Read) -> None:
        """A store has given this, to whoever calls a model next with it."""
        for message in read.out:
            self._reads.put(message, weakref.ref(read))
        run, key = self.in_run.get(), read.invoking_agent.ledger()
        if run is not None:
            run.read = read
        elif key is not None:
            self._last.of(key, list)[:] = [read]

    def named(self, invoking_agent: InvokingAgent) -> InvokingAgent:
        """Who asks, by the name of the agent, or else of the run."""
        run = self.in_run.get()
        return invoking_agent._replace(agent_name=self.agent.get() or (run.name if run is not None else None))

    @contextmanager
    def reads(self, reduction: Reduction) -> Iterator[Reading]:
        """A store is read in this block, or cares for what it keeps."""
        reading = Reading(reduction, self._snapshot)
        with context_value(self.reading, reading), reduction.running():
            yield reading

    def store(self, reads: Reducer, keeps: Callable[[Any], Any] = lambda _: False) -> Wrap:
        """The hook of what gives a store's messages, awaited or not.

        Args:
            reads: How it is read, from the store: `by` may leave it out, and `before` is what it holds where nobody
                has seen that; None where that is not known.
            keeps: Whether it keeps what it lets out in the place of what it held.
        """

        def remap_verdicts(setting: Any, store: Any) -> Any:
            return setting(store) if callable(setting) else setting

        def observe(instrumentation: Instrumentation, store: Any, /, *_: Any, **__: Any) -> Observation:
            if reads.by is not None and reads.by(store) is None:
                return
            policy, kind, config, invoking_agent = (
                remap_verdicts(setting, store)
                for setting in (reads.policy, reads.kind, reads.config, reads.invoking_agent)
            )
            outer, reduction = self.reading.get(), Reduction(instrumentation, policy, (), kind=kind, config=config)
            try:
                with self.reads(reduction) as reading:
                    result = yield
            except BaseException as error:
                reduction.before = list(reading.held or [one for read in reading.inner for one in read.out])
                if outer is None:
                    reduction.ended(error, self.named(invoking_agent))
                else:
                    outer.inner.append(Read(invoking_agent, reduction.before))
                    outer.reduction.takes_over(reduction)
                raise
            after = list(result)
            before = reading.before(after)
            before = reads.before(store) if before is None else before
            reduction.before = list(after if before is None else before)
            said = dict(reads.said(reduction.before, after, store)) if reads.said is not None else {}
            steps = [step for read in reading.inner for step in read.steps]
            if same(reduction.before, after) or keeps(store):
                reduction.done(
                    after, **({} if same(reduction.before, after) else {"invoking_agent": invoking_agent, **said})
                )
            else:
                steps.append(reduction.waiting(after, said))
            read = Read(invoking_agent, after, steps)
            if outer is not None:
                outer.inner.append(read)
            elif reducing() is None:
                self.given(read)

        return observe_any_hook(observe)

    def told(self, instrumentation: Instrumentation, sent: ClientRequest) -> ModelCall:
        """A model is called with these, some of which a store may have given: as `client` takes it."""
        run, read = self.in_run.get(), self._read_of(sent.messages)
        invoking_agent = (
            InvokingAgent(conversation_id=run.conversation_id if run is not None else None)
            if read is None
            else read.invoking_agent
        )
        held = () if read is None else read.out
        items = [one for one in held if self._prompt_of(one) is not None]
        prompts, messages = in_front(
            sent.messages,
            lambda one: self._prompt_of(one) is not None and not any(same_content(one, other) for other in items),
        )
        said = [str(self._prompt_of(one)) for one in prompts]
        call = ModelCall(instrumentation, self.named(invoking_agent), prompts=said, model=sent.model)
        call.run = run if run is not None and not run.ended else None
        if read is not None and read.replaced_by_plugin:
            call.replaced_by_plugin(held, prompts=said)
        for step in read.steps if read is not None else ():
            call.replay_deferred(step)
        if held:
            call.observe_messages(held)
        call.client_called(sent._replace(messages=messages, prompts=said))
        return call

    def _read_of(self, messages: Sequence[Any]) -> Read | None:
        run = self.in_run.get()
        reads = (read() for one in reversed(messages) if (read := self._reads.get(one)) is not None)
        found = next(filter(None, reads), None), run.read if run is not None else None
        return next((one for one in found if one is not None and one.went_into(messages)), None)

    def _kept(self, _: Instrumentation, /, *__: Any, **___: Any) -> Observation:
        messages, reading = (yield), self.reading.get()
        if reading is not None:
            reading.sees(messages)
