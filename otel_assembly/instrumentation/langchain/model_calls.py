"""The model calls that reducers prepare in a graph: each is one assembly, which ends as its model is called.

LangGraph runs its nodes in contexts of their own, so that what one of them prepares for the next is kept by the run of
the graph. Which call it is, is known by the messages: a reducer goes on with what the one before it let out, and the
prepared call is made when a model is sent what the last of them let out. Nodes that run at once never share one.
"""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.langchain.conversation import (
    CONVERSATIONS_WITHOUT_THREAD,
    alike,
    holds,
    in_the_run,
    part_of,
    same,
    spliced,
)
from otel_assembly.instrumentation.reducers import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.langchain.conversation import Place
    from otel_assembly.observe.assembler import ObservedAssembly, ObservedStep

#: Model calls that wait in one run, at most; beyond it the oldest are ended.
_WAITING: Final = 64

#: The execution of a node, or of another function of a graph, that runs here.
TASK: Final[ContextVar[object | None]] = ContextVar("otel_assembly_langchain_task", default=None)


class ModelCall:
    """The assembly of one model call, from the first reducer that works for it to the call.

    Attributes:
        place: Where it is being prepared, or where that was handed on from.
        task: The execution of a node that it ends with, unless that hands it on.
        messages: What the first reducer took in.
        whole: Of what those messages were a part, where they were.
        out: What the last reducer let out.
        prompts: The system-level texts in front of it, once they are known.
        tools: The schemas of the tools, once they are known.
        asker: The node that asks, as long as no model is called.
        ended: Whether it was reported.
        problem: What a reducer raised last, for whose caller it need not have been the end.
    """

    def __init__(
        self, prepared: ObservedAssembly, place: Place, messages: Sequence[Any], whole: Sequence[Any] | None
    ) -> None:
        self._prepared = prepared
        self.place = place
        self.task = TASK.get()
        self.messages = list(messages)
        self.whole = whole
        self.out = self.messages
        self.prompts: tuple[str, ...] | None = None
        self.tools: Sequence[Mapping[str, Any]] = ()
        self.model: str | None = None
        self.asker = place.node
        self.handed_on = False
        self.ended = False
        self.problem: BaseException | None = None
        self._lock: AbstractContextManager[Any] = place.run.lock if place.run is not None else nullcontext()
        with self._lock:
            self._enter()

    def step(self, policy: str, started_ns: int, **known: Any) -> ObservedStep:
        """A reducer begins, or began; steps follow one another."""
        return self._prepared.step(policy, started_ns=max(started_ns, self._prepared.done_ns), **known)

    def count(self, text: str) -> int:
        """Tokens of a text, while a step goes on."""
        return self._prepared.count(text)

    def knows(self, prompts: tuple[str, ...], tools: Sequence[Mapping[str, Any]], model: str | None) -> None:
        """What the model is called with beside messages, as it was before any step changed it."""
        if self.prompts is None:
            self.prompts, self.tools, self.model = prompts, tools, model or self.model

    def supposes(self, model: str | None) -> None:
        """A reducer works as for this model; which one is called is yet to be seen."""
        self.model = self.model or model

    def widen(self) -> None:
        """Take the whole for what is sent, of which only a part was reduced."""
        whole, part = self.whole, self.messages
        if whole is None:
            return
        self.whole, self.messages, self.out = None, list(whole), spliced(whole, part, self.out)
        for step in self._prepared.steps:
            if step.events is not None:
                step.events = spliced(whole, part, step.events)

    def hand_on(self) -> None:
        """Note that the node has returned the last output: a later node calls the model."""
        self.handed_on, self.task = True, None

    def taken_up(self, place: Place) -> None:
        """A later node goes on with it, and no other one; the run's lock is held."""
        if self.handed_on:
            self._leave()
            self.place, self.task, self.handed_on = place, TASK.get(), False
            self._enter()
            self.asker = place.node

    def arrives(self, messages: Sequence[Any]) -> None:
        """Report what changed between the last output and these messages, which are sent or reduced next."""
        if self.whole is not None and not same(self.out, messages):
            objects = set(map(id, self.out))
            if part_of([one for one in messages if id(one) not in objects], self.whole):
                self.widen()
        if not same(self.out, messages):
            with self.step(FRAMEWORK, self._prepared.done_ns) as step:
                step.out(messages)
            self.out = list(messages)

    def fail(self, problem: Exception) -> None:
        """Report nothing of it: what is known of it is broken."""
        self._prepared.fail(problem)

    def end(self, error: BaseException | None = None, *, at: Place | None = None) -> None:
        """It came to its end.

        Args:
            error: What went wrong in a reducer.
            at: Where the model is called; None where none is.
        """
        with self._lock:
            if self.ended:
                return
            self.ended = True
            self._leave()
        place = at if at is not None and at.run is not None else self.place
        asker = place.asker(self.asker if at is None else place.node)
        self._prepared.open(
            CONVERSATIONS_WITHOUT_THREAD.ledger(self.messages, place.thread, asker, place.run),
            self.messages,
            prompts=self.prompts or (),
            tools=self.tools,
            model=self.model,
        )
        called = at is not None
        self._prepared.end(error, called=called, over_ns=None if called else self._prepared.done_ns)
        for step in self._prepared.steps:  # any of them may have changed what the next turn begins with
            if step.events is not None:
                CONVERSATIONS_WITHOUT_THREAD.goes_on(self.messages, step.events)

    def _enter(self) -> None:
        if self.place.run is not None:
            self.place.run.model_calls.append(self)

    def _leave(self) -> None:
        run = self.place.run
        if run is not None and self in run.model_calls:
            run.model_calls.remove(self)


def begin(
    instrumentation: Instrumentation,
    messages: Sequence[Any],
    place: Place,
    started_ns: int,
    whole: Sequence[Any] | None = None,
) -> ModelCall | None:
    """A reducer is the first to work for a model call; None where no provider is configured."""
    with in_the_run() as run:
        prepared = instrumentation.observed.prepare(
            agent_name=run.name if run is not None else None, conversation_id=place.thread, started_ns=started_ns
        )
    if prepared is None:
        return None
    handed_on = [one for one in place.run.model_calls if one.handed_on] if place.run is not None else []
    for one in handed_on[:-_WAITING]:
        one.end()
    return ModelCall(prepared, place, messages, whole)


def continued(place: Place, messages: Sequence[Any]) -> ModelCall | None:
    """The prepared call that a reducer of these messages works for; None if it is the first one to."""
    return _found(place, messages, _continued)


def awaiting(place: Place, messages: Sequence[Any]) -> ModelCall | None:
    """The prepared call that is made when a model is sent these messages; None where there is none."""
    return _found(place, messages, _awaiting)


def _found(
    place: Place,
    messages: Sequence[Any],
    look: Callable[[Place, Sequence[Any], list[ModelCall]], ModelCall | None],
) -> ModelCall | None:
    if place.run is None:
        return None
    #: Prepared calls of which it shows now that no model was called with them.
    over: list[ModelCall] = []
    with place.run.lock:
        found = look(place, messages, over)
        if found is not None:
            found.taken_up(place)
    for model_call in over:
        model_call.end()
    return found


def _continued(place: Place, messages: Sequence[Any], over: list[ModelCall]) -> ModelCall | None:
    for model_call in _open_to(place):
        if same(model_call.out, messages):
            return model_call
        if _adds(model_call, messages):
            if _is_next(place, model_call):
                model_call.arrives(messages)
                return model_call
            over.append(model_call)
        elif not model_call.handed_on and part_of(messages, model_call.out):
            return model_call
    return None


def _awaiting(place: Place, messages: Sequence[Any], over: list[ModelCall]) -> ModelCall | None:
    found = None
    for model_call in _open_to(place):
        out = model_call.out
        front = messages[: max(0, len(messages) - len(out))]
        ends_with_it = same(messages[len(front) :], out)
        if ends_with_it and all(message.type == "system" for message in front):
            return model_call
        if not _is_next(place, model_call):
            if _adds(model_call, messages):
                over.append(model_call)
        elif ends_with_it:
            return model_call
        elif found is None and any(alike(one, out[-1]) for one in reversed(messages)):
            found = model_call
    return found


def _is_next(place: Place, model_call: ModelCall) -> bool:
    """Whether nothing can have come between: it belongs to this task, or to the step before this one."""
    at = model_call.place
    return not model_call.handed_on or (at.run is place.run and at.superstep + 1 == place.superstep)


def _adds(model_call: ModelCall, messages: Sequence[Any]) -> bool:
    """Whether messages are its last output and others, none of which it has dropped."""
    out = set(map(id, model_call.out))
    others = [one for one in messages if id(one) not in out]
    return bool(out) and len(messages) - len(others) == len(out) and not holds(model_call.messages, others)


def _open_to(place: Place) -> Iterator[ModelCall]:
    """Prepared calls of the same task, and those that an earlier step of this graph, or one around it, handed on."""
    run, superstep = place.run, place.superstep
    while run is not None:
        for model_call in reversed([*run.model_calls]):
            at = model_call.place
            if at.superstep < superstep if model_call.handed_on else at.task == place.task and run is place.run:
                yield model_call
        superstep = run.superstep
        run = run.parent
