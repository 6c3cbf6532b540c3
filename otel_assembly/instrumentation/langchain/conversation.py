"""What a LangChain model call belongs to: the run of a graph, the conversation, the model and its tools.

A run of an agent that was made by LangChain's factories has its span from the start. Any other graph gets one when
something in it reduces a context, and none otherwise; where a span is current already, none is added. A conversation is
the thread of a graph, else it is known by the message that it opens with.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace

from otel_assembly._internal.forks import new_lock
from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.conversation import LedgerKey
from otel_assembly.instrumentation.hooks import ByIdentity, instead
from otel_assembly.instrumentation.instrumented import argument, bound
from otel_assembly.instrumentation.reducers import same_objects
from otel_assembly.instrumentation.runs import followed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.telemetry.run import OpenRun


_UNNAMED: Final = "LangGraph"
#: The functions that call the model in the graphs of LangChain's factories.
_MODEL_NODES: Final = frozenset({"create_agent.<locals>.model_node", "create_react_agent.<locals>.call_model"})
#: Checkpointers whose threads are theirs alone: the same id in another one is another conversation.
_IN_MEMORY: Final = frozenset({"InMemorySaver", "MemorySaver"})


class GraphRun:
    """One run of a graph, from its first step to its last."""

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
        self.ledgers: dict[str, Any] | None = None
        #: The model calls that reducers prepare here, and whether the run is over.
        self.model_calls: list[Any] = []
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

    def open(self) -> None:
        """Open the run, and its span where none is current."""
        if self._opened is None:
            with self._parent():
                self._opened = self.instrumentation.begin_run(self.name, conversation_id=self.thread_id)

    def _parent(self) -> AbstractContextManager[None]:
        if self.parent is None:
            return nullcontext()
        self.parent.open()
        return self.parent.joined()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """What runs in this block belongs to the run, unless a span is current that a node opened in it."""
        if self._opened is None or _in_a_span():
            yield
        else:
            with self._parent(), self._opened.current():
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
                with self._parent(), self._opened.current():
                    yield

    def end(self, error: BaseException | None = None) -> None:
        """The run came to its end, and so does what waited in it for a model call that never came."""
        self.ended = True
        for model_call in [*self.model_calls]:
            with self.instrumentation.contained():
                model_call.end()
        if self._opened is not None:
            self._opened.end(error)


GRAPH_RUN: Final[ContextVar[GraphRun | None]] = ContextVar("otel_assembly_graph_run", default=None)


@contextmanager
def in_the_run() -> Iterator[GraphRun | None]:
    """The run that something is reported in: what opens in this block stands under its span."""
    run = GRAPH_RUN.get()
    if run is None:
        yield None
        return
    run.open()
    with run.joined():
        yield run


def current_config() -> Any:
    """The configuration of the runnable that is running here."""
    module: Any = sys.modules.get("langchain_core.runnables.config")
    return module.var_child_runnable_config.get() if module is not None else None


def thread_of(config: Any) -> str | None:
    """The thread that a configuration names."""
    settings: Mapping[str, Any] = (config or {}).get("configurable") or {}
    thread = settings.get("thread_id")
    return None if thread is None else str(thread)


def path_of(config: Any) -> str:
    """Where in nested graphs something runs, by the names of the nodes around it."""
    return "/".join(part.split(":", 1)[0] for part in _namespace(config).split("|")[:-1])


def superstep_of(config: Any) -> int:
    """The number of the step of its graph that a configuration was made for; 0 outside of any."""
    return int(((config or {}).get("metadata") or {}).get("langgraph_step") or 0)


def _namespace(config: Any) -> str:
    settings: Mapping[str, Any] = (config or {}).get("configurable") or {}
    return str(settings.get("checkpoint_ns") or "")


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
        node = task.rsplit("|", 1)[-1].split(":", 1)[0]
        return cls(run, thread_of(config), path_of(config), node, task, superstep_of(config))

    def asker(self, node: str) -> str:
        """What tells a node of this graph, as one who asks a model, from any other asker of the conversation."""
        return "\0".join((self.run.scope, self.path, node)) if self.run is not None else ""


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
        run = GraphRun(instrumentation, graph, argument(args, kwargs, 1, "config"))
    return items if run is None else followed(run, items)


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


def changed(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether messages are not those that they were, or read differently."""
    return not same(before, after)


def part_of(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether these very messages, and there are any, all stand in a list."""
    return bool(part) and set(map(id, part)) <= set(map(id, whole))


def holds(messages: Sequence[Any], any_of: Sequence[Any]) -> bool:
    """Whether one of these very messages stands in a list."""
    return not set(map(id, any_of)).isdisjoint(map(id, messages))


def spliced(whole: Sequence[Any], part: Sequence[Any], instead: Sequence[Any]) -> list[Any]:
    """A list with others in the place of a part of it."""
    objects = set(map(id, part))
    at = next((place for place, one in enumerate(whole) if id(one) in objects), len(whole))
    return [*whole[:at], *instead, *(one for one in whole[at:] if id(one) not in objects)]


#: Where chat models of LangChain keep the name of the model that they call.
_NAMES: Final = ("model_name", "model", "model_id")
#: So many runnables stand around a model, at most.
_AROUND: Final = 8


def model_of(model: Any, settings: Mapping[str, Any] | None = None) -> str | None:
    """The name of the model that a chat model calls, where one is said.

    Args:
        model: A chat model, or a runnable around one: bound to settings, with fall-backs, or configurable.
        settings: Those of the call, which may name another model.
    """
    for _ in range(_AROUND):
        held = getattr(model, "__dict__", {})
        said = _said(settings) or _said(held.get("_default_config"))
        inner = held.get("bound", held.get("runnable"))
        if said is not None or inner is None:
            return said or next((name for key in _NAMES if isinstance(name := getattr(model, key, None), str)), None)
        model, settings = inner, held.get("kwargs")
    return None


def _said(settings: Mapping[str, Any] | None) -> str | None:
    name = settings.get("model") if settings else None
    return name if isinstance(name, str) else None


def counting_model(count: Callable[..., Any]) -> str | None:
    """The model that a reducer counts with, where it counts with a chat model: it is trimmed for that one."""
    model = getattr(count, "__self__", None)
    return model_of(model) if hasattr(model, "get_num_tokens_from_messages") else None


logger = logging.getLogger("otel_assembly")

_KNOWN: Final[ByIdentity[Mapping[str, Any]]] = ByIdentity()


def schemas_of(tools: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
    """The schemas of tools; each is worked out once. One that has none takes no tokens."""
    found = (tool if isinstance(tool, dict) else _schema(tool) for tool in tools)
    return tuple(schema for schema in found if schema is not None)


def _schema(tool: Any) -> Mapping[str, Any] | None:
    known = _KNOWN.get(tool)
    if known is not None:
        return known
    from langchain_core.utils.function_calling import convert_to_openai_tool  # who has tools has imported it

    try:
        schema: Mapping[str, Any] = convert_to_openai_tool(tool)
    except Exception as error:  # noqa: BLE001  # a tool that LangChain itself cannot describe is the model's to refuse
        logger.debug("a tool has no schema: %s", type(error).__name__)
        return None
    return _KNOWN.put(tool, schema)
