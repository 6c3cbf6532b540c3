"""What a reducer of LangChain works for: a model call, somewhere in a run of a graph, in one conversation.

The model call is one assembly, from the first reducer that works for it until it is made. LangGraph runs its nodes in
contexts of their own, so that what one of them prepares for the next is kept by the run of the graph. Which call it is,
is known by the messages: a reducer goes on with what the one before it let out, and the prepared call is made when a
model is sent what the last of them let out. Nodes that run at once never share one. A conversation is the thread of a
graph, else it is known by the message that it opens with.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly._internal.forks import new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.conversation import LedgerKey
from otel_assembly.instrumentation.hooks import instead
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.langchain.runs import GRAPH_RUN, GraphRun
from otel_assembly.instrumentation.reducers import FRAMEWORK, same_objects
from otel_assembly.instrumentation.runs import followed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep
    from otel_assembly.observe.conversations import ObservedAssembler


def current_config() -> Any:
    """The configuration of the runnable that is running here."""
    module: Any = sys.modules.get("langchain_core.runnables.config")
    return module.var_child_runnable_config.get() if module is not None else None


def thread_of(config: Any) -> str | None:
    """The thread that a configuration names."""
    settings: Mapping[str, Any] = (config or {}).get("configurable") or {}
    thread = settings.get("thread_id")
    return None if thread is None else str(thread)


def superstep_of(config: Any) -> int:
    """The number of the step of its graph that a configuration was made for; 0 outside of any."""
    return int(((config or {}).get("metadata") or {}).get("langgraph_step") or 0)


def _namespace(config: Any) -> str:
    settings: Mapping[str, Any] = (config or {}).get("configurable") or {}
    return str(settings.get("checkpoint_ns") or "")


#: The execution of a node, or of another function of a graph, that runs here.
TASK: Final[ContextVar[object | None]] = ContextVar("otel_assembly_langchain_task", default=None)


class Place(NamedTuple):
    """Where in a graph something runs.

    Attributes:
        run: The run; None outside of any.
        thread: The thread.
        path: The names of the nodes around its graph.
        node: The node.
        task: What tells this execution of the node from any other.
        superstep: The number of the graph's step.
    """

    run: GraphRun | None
    thread: str | None
    path: str
    node: str
    task: str
    superstep: int

    @classmethod
    def here(cls, config: Any = None) -> Place:
        """Where a configuration says that something runs; by default the one that is in force here."""
        config = config if _namespace(config) else current_config()
        run, task = GRAPH_RUN.get(), _namespace(config)
        if run is not None and run.ended:
            run = None
        *around, node = [part.split(":", 1)[0] for part in task.split("|")]
        return cls(run, thread_of(config), "/".join(around), node, task, superstep_of(config))

    def asker(self, node: str) -> str:
        """What tells a node of this graph, as one who asks a model, from any other asker of the conversation."""
        return "\0".join((self.run.scope, self.path, node)) if self.run is not None else ""


@instead
def stream(instrumentation: Instrumentation, original: Any, graph: Any, /, *args: Any, **kwargs: Any) -> Any:
    """In the place of ``Pregel.stream`` and ``astream``, which ``invoke`` and ``ainvoke`` read too."""
    items, run = original(graph, *args, **kwargs), None
    with instrumentation.contained():
        config, around = argument(args, kwargs, 1, "config"), current_config()
        thread = thread_of(config) or thread_of(graph.config) or thread_of(around)
        run = GraphRun(instrumentation, graph, thread, superstep_of(config) or superstep_of(around))
    return items if run is None else followed(run, items)


def alike(one: Any, other: Any) -> bool:
    """Whether two messages are the same one, or a copy of it that reads as it does."""
    return one is other or (
        type(one) is type(other)
        and one.content == other.content
        and getattr(one, "tool_calls", None) == getattr(other, "tool_calls", None)
        and one.id == other.id
    )


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists hold the same messages."""
    return same_objects(one, other) or (len(one) == len(other) and all(map(alike, one, other)))


def part_of(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether these very messages, and there are any, all stand in a list."""
    return bool(part) and set(map(id, part)) <= set(map(id, whole))


def spliced(whole: Sequence[Any], part: Sequence[Any], instead: Sequence[Any]) -> list[Any]:
    """A list with others in the place of a part of it."""
    objects = set(map(id, part))
    at = next((place for place, one in enumerate(whole) if id(one) in objects), len(whole))
    return [*whole[:at], *instead, *(one for one in whole[at:] if id(one) not in objects)]


#: Conversations without a thread that are remembered; beyond it the oldest are forgotten. A ledger holds the messages
#: of its last assembly, so that who opened a conversation lives as long as it is remembered.
CONVERSATIONS: Final = 100


class Conversations:
    """Conversations, by their thread, or else by the message object that stands first in them."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._of: Registry[Any, dict[str, LedgerKey]] = Registry(CONVERSATIONS)

    def ledger(self, messages: Sequence[Any], thread: str | None, asker: str, run: GraphRun | None) -> Any:
        """The key of the ledger of one asker in the conversation that these messages are."""
        if thread is not None:
            return f"{thread}\0{asker}"
        with self._lock:
            ledgers = self._ledgers(_opening(messages), run)
            return None if ledgers is None else ledgers.setdefault(asker, LedgerKey())

    def meet(self, messages: Sequence[Any], run: GraphRun) -> None:
        """Note the messages of a run's state: a middleware may show only copies of them to the reducers behind it."""
        if run.thread_id is None and run.opening is None:
            run.opening = _opening(messages)
            if run.opening is not None:
                with self._lock:
                    run.ledgers = run.ledgers or self._of.get(run.opening)

    def goes_on(self, messages: Sequence[Any], becomes: Sequence[Any]) -> None:
        """Remember that a conversation goes on with other messages, by which it is known from now on."""
        first, new = _opening(messages), _opening(becomes)
        if first is None or new is None or new is first:
            return
        with self._lock:
            known = self._of.get(first)
            if known is not None:
                self._of.put(new, known)

    def _ledgers(self, first: Any, run: GraphRun | None) -> dict[str, LedgerKey] | None:
        ledgers = self._of.get(first) if first is not None else None
        if ledgers is None:
            ledgers = run.ledgers if run is not None else None
            if first is not None:
                ledgers = {} if ledgers is None else ledgers
                self._of.put(first, ledgers)
        if run is not None and run.ledgers is None:
            run.ledgers = ledgers
            if run.opening is not None and ledgers is not None:
                self._of.put(run.opening, ledgers)
        return ledgers


def _opening(messages: Sequence[Any]) -> Any:
    return next((message for message in messages if getattr(message, "type", "system") != "system"), None)


CONVERSATIONS_WITHOUT_THREAD: Final = Conversations()


#: Model calls that wait in one run, at most; beyond it the oldest are ended.
_WAITING: Final = 64


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
        model: The one that is called, or that a reducer works as for, until that is seen.
        asker: The node that asks, as long as no model is called.
        ended: Whether it was reported.
        problem: What a reducer raised last, for whose caller it need not have been the end.
    """

    def __init__(
        self,
        observed: ObservedAssembler,
        prepared: ObservedAssembly,
        place: Place,
        messages: Sequence[Any],
        whole: Sequence[Any] | None,
    ) -> None:
        self._observed = observed
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
        self._observed.open(
            self._prepared,
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
    observed: ObservedAssembler,
    messages: Sequence[Any],
    place: Place,
    started_ns: int,
    whole: Sequence[Any] | None = None,
) -> ModelCall | None:
    """A reducer is the first to work for a model call; None where no provider is configured."""
    run = GRAPH_RUN.get()
    with run.reported() if run is not None else nullcontext():
        prepared = observed.prepare(
            agent_name=run.name if run is not None else None, conversation_id=place.thread, started_ns=started_ns
        )
    if prepared is None:
        return None
    if place.run is not None:
        for one in [one for one in place.run.model_calls if one.handed_on][:-_WAITING]:
            one.end()
    return ModelCall(observed, prepared, place, messages, whole)


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
    if not out or len(messages) - len(others) != len(out):
        return False
    return set(map(id, others)).isdisjoint(map(id, model_call.messages))


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
