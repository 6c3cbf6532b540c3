"""One run of an agent, in its session; and its model calls, from what a client holds to what it receives in the end."""

from __future__ import annotations

import inspect
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agent_framework import ResponseStream, normalize_messages
from opentelemetry import trace

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.clients import called, client
from otel_assembly.instrumentation.conversation import Asker, ByIdentity
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.instrumented import bound
from otel_assembly.instrumentation.model_call import CALL, ModelCall, Sent
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.runs import Run, within
from otel_assembly.instrumentation.splicing import found, same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

_INNER: Final = "_inner_get_response"


def carries(run: Run, answer: Any) -> bool:
    """A stream takes each of its steps inside of a run, and ends that: as it is read to its end, fails or is left."""
    if not isinstance(answer, ResponseStream):
        return False
    stream = weakref.ref(answer)
    ends = weakref.finalize(answer, lambda: run.end(getattr(stream(), "_stream_error", None)))  # at most once
    answer.with_pull_context_manager(run.current).with_cleanup_hook(ends)
    return True


def _begin_run(instrumentation: Instrumentation, runs: Any, /, *_: Any, **__: Any) -> Run | None:
    name = str(getattr(runs, "name", None) or type(runs).__name__)
    return None if _traced() else instrumentation.begin_run(name)


def _traced() -> bool:
    """Whether the framework's own telemetry gives the run a span."""
    from agent_framework.observability import OBSERVABILITY_SETTINGS  # it need not be imported

    provider = trace.get_tracer_provider()
    return OBSERVABILITY_SETTINGS.ENABLED and not isinstance(
        provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider
    )


#: One run of an agent or a workflow is one trace.
run: Final[Wrap] = within(_begin_run, carries)


class Ask:
    """One run of an agent, from what its providers load and reduce to the last of its model calls.

    What they reduce, they reduce once; it is told of each of these calls, for none of them is sent what has left.

    Attributes:
        asker: Who asks.
        first: Its first call, for which providers load and reduce.
    """

    def __init__(self, instrumentation: Instrumentation, agent: Any, session: Any) -> None:
        self.asker = asker_of(agent, session, self)
        self.first = ModelCall(instrumentation, self.asker)
        self._others: ModelCall | None = None

    def begins(self, held: Sequence[Any]) -> ModelCall | None:
        """A call of this run that holds these messages; None where they are none of the run's."""
        begun = self.first if self._others is None else self._others.another()
        if begun.out and found(held, begun.out) is None:
            return None
        self._others = self._others or begun.another()
        return begun


def asker_of(agent: Any, session: Any, run: object = None) -> Asker:
    """Who asks: an agent in a session; one that has none, in a run.

    A session is known by its id, for it may be written down and read again.
    """
    own = getattr(session, "session_id", None)
    name = getattr(agent, "name", None)
    return Asker(own or run, str(name or getattr(agent, "id", "")), name, own)


#: What is prepared of runs whose model is not called yet, by the context that their providers filled.
_PREPARED: Final[ByIdentity[Ask]] = ByIdentity()
#: The run whose model is called here.
ASK: Final[ContextVar[Ask | None]] = ContextVar("otel_assembly_agent_framework_ask", default=None)


@around_awaited
def prepares(instrumentation: Instrumentation, agent: Any, /, *_: Any, session: Any = None, **__: Any) -> Observation:
    """A run of an agent is prepared: its providers load and reduce; where one raises, no model is called."""
    ask = Ask(instrumentation, agent, session)
    try:
        with bound(ASK, None), ask.first.current():
            context = yield
    except BaseException as error:
        ask.first.end(error)
        raise
    _PREPARED.put(context["session_context"], ask)


def _calls_client(instrumentation: Instrumentation, agent: Any, context: Mapping[str, Any], **_: Any) -> BoundRun:
    ask = _PREPARED.pop(context["session_context"]) or Ask(instrumentation, agent, context.get("session"))
    return BoundRun(instrumentation, None, {ASK: ask, CALL: None}, ends=ask.first.end)


#: A run of an agent calls its model, once or in rounds.
calls_client: Final = within(_calls_client, carries)


@dataclass(slots=True)
class Held:
    """What a client hands to its middleware.

    Attributes:
        client: The client.
        messages: The messages; with those that a history is loaded to, where middleware of the framework's loads one.
        prompts: The instructions.
        plugin: What a plug-in of ours has made an assembly of, what came out of it, and the instructions with it.
    """

    client: Any
    messages: Sequence[Any]
    prompts: Sequence[str]
    plugin: tuple[Sequence[Any], Sequence[Any], Sequence[str]] | None = None


#: What the client whose middleware runs here has handed to it.
HELD: Final[ContextVar[Held | None]] = ContextVar("otel_assembly_agent_framework_held", default=None)


def _handed(instrumentation: Instrumentation, client: Any, /, messages: Any = (), **given: Any) -> BoundRun:
    held = Held(client, normalize_messages(messages), prompts_of(given.get("options")))
    return BoundRun(instrumentation, None, {HELD: held})


@around_awaited
def loads(_: Instrumentation, middleware: Any, messages: Any, /) -> Observation:
    """Around what loads a history for one call of a model: it is held, too."""
    context = yield
    held: Any = HELD.get()
    if held is not None and same(held.messages, messages):
        held.messages = context.get_messages(include_input=True)


def _begins(instrumentation: Instrumentation, client: Any, /, messages: Any = (), **given: Any) -> ModelCall | None:
    """A model is to be called: by a client that is not called by another one, and for no reducer."""
    if called() or reducing() is not None:
        return None
    after, prompts_after = normalize_messages(messages), prompts_of(given.get("options"))
    ask, held, strategy = ASK.get(), HELD.get(), given.get("compaction_strategy") or client.compaction_strategy
    if held is None or held.client is not client:
        held = Held(client, after, prompts_after)
    call = (ask.begins(held.messages) if ask is not None else None) or ModelCall(instrumentation)
    call.knows(window=getattr(strategy, "max_context_window_tokens", None))
    before, prompts = held.messages, held.prompts
    call.came(before, prompts=prompts)
    if held.plugin is not None:
        seen, out, prompts = held.plugin
        _edited(call, before, seen)
        call.by_plugin(out, prompts=prompts)
        before = out
    _edited(call, before, after, prompts_after if prompts_after != prompts else None)
    return call


def _edited(call: ModelCall, before: Sequence[Any], after: Sequence[Any], prompts: Sequence[str] | None = None) -> None:
    """Middleware was handed messages, and hands others on."""
    if prompts is not None or not same(before, after):
        kind = "reduction" if found(after, before) is None else "injection"
        call.reduced("chat_middleware", before, list(after), kind=kind, prompts=prompts)


handing: Final[Wrap] = within(_handed, carries)
call: Final[Wrap] = within(_begins, carries)


def inner_client(original: Callable[..., Any], owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """What a class of clients is given; one that hands it on to the class behind it is looked through."""

    def reads(self: Any, /, *_: Any, messages: Any = (), options: Any = None, **__: Any) -> Sent | None:
        behind = getattr(super(owner, self), _INNER, None) if hands_on else None
        if behind is not None and not getattr(behind, "__isabstractmethod__", False):
            return None
        known = options or {}
        model = known.get("model") or getattr(self, "model", None)
        return Sent(
            normalize_messages(messages),
            prompts_of(options),
            schemas_of(known.get("tools")),
            model if isinstance(model, str) else None,
        )

    hands_on = _hands_on(owner)
    return client(reads, lambda answer: str(answer.text), carries)(original, instrumentation)


def _hands_on(owner: type) -> bool:
    """Whether the code of a class of clients has what it is given answered by the class behind it."""
    codes = [getattr(inspect.unwrap(one), "__code__", None) for one in vars(owner).values()]
    for code in codes:
        codes += [inside for inside in getattr(code, "co_consts", ()) if hasattr(inside, "co_names")]
    return any({"super", _INNER} <= set(code.co_names) for code in codes if code is not None)


def prompts_of(options: Mapping[str, Any] | None) -> list[str]:
    """The instructions of a call, which its client puts in front of the messages."""
    instructions = (options or {}).get("instructions")
    return [instructions] if isinstance(instructions, str) and instructions else []


def schemas_of(tools: Any) -> list[Mapping[str, Any]]:
    """The schemas of the tools that are known: a provider's own has none."""
    offered = tools if isinstance(tools, list | tuple) else [tools]
    specs = (one.to_json_schema_spec() if hasattr(one, "to_json_schema_spec") else one for one in offered)
    return [spec for spec in specs if isinstance(spec, dict) and ("function" in spec or "parameters" in spec)]
