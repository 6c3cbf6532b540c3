"""Runs of graphs, and which of the model calls that are prepared in one a reducer works for, or is made.

A run of an agent that was made by LangChain's factories has its span from the start. Any other graph gets one when
something in it reduces a context, and none otherwise; where a span is current already, none is added.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly._internal.forks import new_lock
from otel_assembly.instrumentation.hooks import instead
from otel_assembly.instrumentation.instrumented import argument, bound
from otel_assembly.instrumentation.langchain.conversation import (
    GRAPH_RUN,
    alike,
    current_config,
    part_of,
    same,
    superstep_of,
    thread_of,
)
from otel_assembly.instrumentation.runs import followed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.conversation import LedgerKey
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.langchain.conversation import GraphRun, ModelCall, Place
    from otel_assembly.telemetry.run import OpenRun

_UNNAMED: Final = "LangGraph"
#: The functions that call the model in the graphs of LangChain's factories.
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_react_agent.<locals>.call_model"})
#: Checkpointers whose threads are theirs alone: the same id in another one is another conversation.
_IN_MEMORY: Final = frozenset({"InMemorySaver", "MemorySaver"})


class FollowedRun:
    """One run of a graph, from its first step to its last, and the model calls that are prepared in it.

    LangGraph runs its nodes in contexts of their own, so that what one of them prepares for the next is kept here.
    Which call it is, is known by the messages: a reducer goes on with what the one before it let out, and the prepared
    call is made when a model is sent what the last of them let out. Nodes that run at once never share one.
    """

    def __init__(self, instrumentation: Instrumentation, graph: Any, config: Any) -> None:
        self.instrumentation = instrumentation
        self.name: str = graph.name or _UNNAMED
        self.thread_id = thread_of(config) or thread_of(graph.config) or thread_of(current_config())
        saver = getattr(graph, "checkpointer", None)
        #: Tells apart threads that have the same id.
        self.scope = f"{self.name}/{id(saver):x}" if type(saver).__name__ in _IN_MEMORY else self.name
        #: The message that its state opens with, where it has no thread.
        self.opening: Any = None
        #: The ledgers of the conversation that this run is a part of, by who asks, where it has no thread.
        self.ledgers: dict[str, LedgerKey] | None = None
        #: The model calls that reducers prepare here, and whether the run is over.
        self.model_calls: list[ModelCall] = []
        self.lock = new_lock()
        self.ended = False
        #: The step of the graph around this one in which it runs.
        self.superstep = superstep_of(config) or superstep_of(current_config())
        #: The run of the graph around this one.
        self.parent: GraphRun | None = None
        #: The node that calls the model, in an agent of LangChain's factories.
        self.model_node = _model_node(graph)
        self._started = False
        self._opened: OpenRun | None = None

    def _start(self) -> None:
        """The first step is taken: an agent's run has its span from here, and others if one is current anyhow."""
        self._started = True
        with self.instrumentation.contained():
            self.parent = GRAPH_RUN.get()
            if self.parent is not None:
                self.lock = self.parent.lock
            if self.model_node is not None or _in_a_span():
                self.open()

    def prepares_model_call(self) -> bool:
        """Whether a model call is being prepared, here or in a run around this one."""
        return bool(self.model_calls) or (self.parent is not None and self.parent.prepares_model_call())

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Something in it is reported: what opens in this block stands under its span."""
        self.open()
        with self.joined():
            yield

    def open(self) -> None:
        """Open the run, and its span where none is current."""
        if self._opened is None:
            with self._around():
                self._opened = self.instrumentation.begin_run(self.name, conversation_id=self.thread_id)

    def _around(self) -> AbstractContextManager[None]:
        return self.parent.reported() if self.parent is not None else nullcontext()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """What runs in this block belongs to the run, unless a span is current that a node opened in it."""
        if self._opened is None or _in_a_span():
            yield
        else:
            with self._around(), self._opened.current():
                yield

    @contextmanager
    def current(self) -> Iterator[None]:
        """One step of the graph."""
        if not self._started:
            self._start()
        with bound(GRAPH_RUN, self):
            if self._opened is None:
                yield
            else:
                with self._around(), self._opened.current():
                    yield

    def end(self, error: BaseException | None = None) -> None:
        """The run came to its end, and so does what waited in it for a model call that never came."""
        self.ended = True
        for model_call in [*self.model_calls]:
            with self.instrumentation.contained():
                model_call.end()
        if self._opened is not None:
            self._opened.end(error)

    def continued(self, place: Place, messages: Sequence[Any]) -> ModelCall | None:
        """The prepared call that a reducer of these messages works for; None if it is the first one to."""
        return self._found(_continued, place, messages)

    def awaiting(self, place: Place, messages: Sequence[Any]) -> ModelCall | None:
        """The prepared call that is made when a model is sent these messages; None where there is none."""
        return self._found(_awaiting, place, messages)

    def _found(
        self,
        look: Callable[[Place, Sequence[Any], list[ModelCall]], ModelCall | None],
        place: Place,
        messages: Sequence[Any],
    ) -> ModelCall | None:
        #: Prepared calls of which it shows now that no model was called with them.
        over: list[ModelCall] = []
        with self.lock:
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


def _in_a_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid


def _model_node(graph: Any) -> str | None:
    return next(
        (
            name
            for name in ("model", "agent", "model_request")
            if (node := graph.nodes.get(name)) is not None
            and getattr(getattr(getattr(node, "bound", None), "func", None), "__qualname__", "") in _MODEL_NODES
        ),
        None,
    )


@instead
def stream(instrumentation: Instrumentation, original: Any, graph: Any, /, *args: Any, **kwargs: Any) -> Any:
    """In the place of ``Pregel.stream`` and ``astream``, which ``invoke`` and ``ainvoke`` read too."""
    items, run = original(graph, *args, **kwargs), None
    with instrumentation.contained():
        run = FollowedRun(instrumentation, graph, argument(args, kwargs, 1, "config"))
    return items if run is None else followed(run, items)
