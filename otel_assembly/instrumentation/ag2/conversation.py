"""What an AG2 model call belongs to: its conversation, agent, model and tools, and the assembly that it comes from.

Middlewares prepare a model call: each stands around the next, and the model's client stands innermost. The assembly
begins with the first middleware that reduces, and ends before the call goes on to where nothing reduces any more. A
halt on an agent's stream is reported on the conversation's last assembly.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from otel_assembly.events import HaltEvent
from otel_assembly.instrumentation.ag2.runs import AGENT_RUN, agent_run_of, channel_of, conversation_id, name_of
from otel_assembly.instrumentation.conversation import LEDGER_KEYS
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.instrumented import bound, ending
from otel_assembly.instrumentation.reducers import FRAMEWORK, same_objects
from otel_assembly.observe.conversations import reported_whole
from otel_assembly.recorder import Whose
from otel_assembly.telemetry.recorder import OpenTelemetryRecorder, emit_halt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly


#: The halts that were reported last; one that is passed on to another stream is not reported again.
_REPORTED: Final[deque[weakref.ref[Any]]] = deque(maxlen=64)

#: What is remembered of the last assembly of a history of AG2's.
_LAST: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()


def follow(stream: Any, assembly: ObservedAssembly | None) -> None:
    """Remember the last assembly of a stream: a halt that comes when no span is open is linked to it."""
    if assembly is not None:
        _LAST[stream.history] = assembly.recording.trail


def already_reported(halt: Any) -> bool:
    """Whether this halt has been reported; from now on it has."""
    if any(one() is halt for one in _REPORTED):
        return True
    _REPORTED.append(weakref.ref(halt))
    return False


def halts(package: str, original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `MemoryStream.send` of one of AG2's packages, through which every event of a stream goes."""
    halt_type = sys.modules[f"{package}.events"].HaltEvent

    @around_awaited
    def sent(instrumentation: Instrumentation, stream: Any, event: Any, context: Any) -> Observation:
        if isinstance(event, halt_type) and not already_reported(event):
            _report(instrumentation, HaltEvent(reason=str(event.reason), source=str(event.source)), stream)
        yield

    return sent(original, instrumentation)


def _report(instrumentation: Instrumentation, halt: HaltEvent, stream: Any) -> None:
    recorder = instrumentation.recorder
    told_by = recorder if isinstance(recorder, OpenTelemetryRecorder) else None
    emit_halt(halt, _LAST.get(stream.history), None, Whose(framework=instrumentation.framework), recorder=told_by)


_AGENT: Final = "__ag2_agent__"
_MODEL_CONFIG: Final = "__ag2_model_config__"


def ledger_of(context: Any, agent: Any, stage: str) -> object:
    """The key of the ledger: an object that goes with a history in memory, else an id.

    Two agents on one stream have two. What is no prompt of an agent's, or comes after a plug-in that makes assemblies
    itself, is a stage of its own.
    """
    own = f"{'' if agent is None else name_of(agent)}\0{stage}"
    channel = channel_of(context, agent)
    if channel is not None:  # a network makes a stream anew for every turn of a channel
        return f"{channel}\0{own}"
    history = context.stream.history
    if type(history.storage).__name__ != "MemoryStorage":
        return f"{context.stream.id}\0{own}"
    return LEDGER_KEYS.of(history, own)


def agent_of(context: Any) -> Any:
    """The agent that runs here, or None."""
    agent_run = agent_run_of(context)
    return agent_run.agent if agent_run is not None else context.dependencies.get(_AGENT)


def agent_name_of(context: Any) -> str | None:
    """The name of the agent that runs here."""
    agent = agent_of(context)
    return None if agent is None else name_of(agent)


def model_of(context: Any, agent: Any) -> str | None:
    """The model that will be called, if its configuration says so."""
    config = context.dependencies.get(_MODEL_CONFIG) or getattr(agent, "config", None)
    with suppress(NotImplementedError):  # by AG2's own test model, where it was given no name
        model = getattr(config, "model", None)
        return model if isinstance(model, str) and model else None
    return None


def tools_of(call_next: Any) -> tuple[dict[str, Any], ...]:
    """The functions that the model is offered, from the call at the end of the chain of middlewares."""
    while isinstance(call_next, partial):
        if "tools" in call_next.keywords:
            return _known_tools(call_next.keywords["tools"])
        call_next = call_next.args[0] if call_next.args else None
    return ()


def _known_tools(schemas: Any) -> tuple[dict[str, Any], ...]:
    """The list is the same one in all calls of a turn."""
    agent_run = AGENT_RUN.get()
    if agent_run is not None and agent_run.tools is not None and agent_run.tools[0] is schemas:
        return agent_run.tools[1]
    tools = tuple(tool for schema in schemas if (tool := tool_of(schema)) is not None)
    if agent_run is not None:
        agent_run.tools = schemas, tools
    return tools


def tool_of(schema: Any) -> dict[str, Any] | None:
    """A function's schema as a provider is sent it; what a provider's own tools cost is not known."""
    if schema.type != "function":
        return None
    try:
        tool: dict[str, Any] = json.loads(json.dumps({"type": "function", "function": asdict(schema.function)}))
    except (TypeError, ValueError):
        return None
    return tool


def begin(
    instrumentation: Instrumentation,
    context: Any,
    events: Sequence[Any],
    *,
    stage: str,
    prompts: Sequence[str] = (),
    tools: Sequence[dict[str, Any]] = (),
    name: str | None = None,
    started_ns: int | None = None,
) -> ObservedAssembly | None:
    """An assembly of this conversation begins; None where no provider is configured, or where it cannot be reported."""
    assembly = None
    with instrumentation.contained():
        agent = agent_of(context)
        assembly = instrumentation.observed.begin(
            ledger_of(context, agent, stage),
            events,
            prompts=prompts,
            tools=tools,
            name=name,
            agent_name=None if agent is None else name_of(agent),
            model=model_of(context, agent),
            conversation_id=conversation_id(context, agent),
            started_ns=started_ns,
        )
        follow(context.stream, assembly)
    return assembly


#: AG2's middlewares that reduce, by the name of the class.
_REDUCES: Final = frozenset({"AssemblerMiddleware", "_HistoryLimiter", "_TokenLimiter"})


class ModelCall:
    """One model call, and what was reported of it so far."""

    __slots__ = ("_context", "_instrumentation", "assembly", "over", "plugins")

    def __init__(self, instrumentation: Instrumentation, context: Any) -> None:
        self._instrumentation = instrumentation
        self._context = context
        self.assembly: ObservedAssembly | None = None
        #: How many plug-ins of ours stood in it: what comes after one has its output for a conversation.
        self.plugins = 0
        #: Whether the model was called: a middleware that calls it again sends what it sent.
        self.over = False

    def serves(self, context: Any) -> bool:
        """Whether this call is prepared in this context."""
        return self._context is context

    def goes_on(self, prompts: Sequence[str], events: Sequence[Any], call_next: Any) -> ObservedAssembly | None:
        """The assembly, for what takes in these; a new one for the first. None where nothing is reported."""
        if self.over:
            return None
        assembly = self.assembly
        if assembly is None:
            self.assembly = assembly = begin(
                self._instrumentation,
                self._context,
                events,
                stage=f"after {self.plugins}" if self.plugins else "",
                prompts=prompts,
                tools=tools_of(call_next),
            )
        elif assembly.recording.measured:
            with reported_whole(assembly):
                _arrived(assembly, prompts, events)
        return assembly

    async def call(self, call_next: Callable[..., Any], events: Any, context: Any) -> Any:
        """Go on to the next middleware, or to the model in the caller's context, once the assembly is done."""
        if not _reduces_further(call_next):
            self.end()
            self.over = True
        with bound(CALL, self):
            return await call_next(events, context)

    def plugin(self) -> None:
        """A plug-in of ours makes an assembly itself: the one before it ends, what follows begins another."""
        self.end()
        self.plugins += 1

    def end(self, error: BaseException | None = None) -> None:
        """End the assembly that is open."""
        assembly, self.assembly = self.assembly, None
        if assembly is not None:
            assembly.end(error)


CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_ag2_call", default=None)


@contextmanager
def model_call(instrumentation: Instrumentation, context: Any) -> Iterator[ModelCall]:
    """The model call that is prepared here; it ends with this block where it begins with it, or fails in it."""
    running = CALL.get()
    first = running is None or not running.serves(context)
    call = ModelCall(instrumentation, context) if running is None or first else running

    def end(error: BaseException | None) -> None:
        if first or error is not None:
            with instrumentation.contained():
                call.end(error)

    with ending(end):
        yield call


def _arrived(assembly: ObservedAssembly, prompts: Sequence[str], events: Sequence[Any]) -> None:
    """Report what a middleware in between has changed."""
    steps = assembly.record.steps
    known = steps[-1].prompts_out if steps else assembly.record.prompts_in
    if not same_objects(events, assembly.events) or list(prompts) != list(known):
        with assembly.step(FRAMEWORK) as step:
            step.out(events, prompts=prompts)


def _reduces_further(call_next: Any) -> bool:
    """Whether another middleware that reduces comes before the model."""
    while isinstance(call_next, partial):
        owner = getattr(call_next.func, "__self__", None)
        if owner is not None and any(kind.__name__ in _REDUCES for kind in type(owner).__mro__):
            return True
        call_next = call_next.args[0] if call_next.args else None
    return False
