"""One run of an agent, in its session; and its model calls, from what a client holds to what it receives in the end."""

from __future__ import annotations

import weakref
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from agent_framework import ResponseStream, normalize_messages
from opentelemetry import trace

from otel_assembly.instrumentation.clients import called, innermost
from otel_assembly.instrumentation.conversation import Asker
from otel_assembly.instrumentation.handing_on import HANDED, Handed, handed_by
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.model_call import ModelCall, Sent
from otel_assembly.instrumentation.offered_tools import ToolSchemas
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.run_calls import CallsOfOneStart
from otel_assembly.instrumentation.runs import Run, within
from otel_assembly.instrumentation.splicing import same

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.bound_runs import BoundRun
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.run_calls import Preparing


def carries(run: Run, answer: Any) -> bool:
    """A stream takes each of its steps inside of a run, and ends that: as it is read to its end, fails or is left."""
    if not isinstance(answer, ResponseStream):
        return False
    stream = weakref.ref(answer)
    ends = weakref.finalize(answer, lambda: run.end(getattr(stream(), "_stream_error", None)))  # at most once
    answer.with_pull_context_manager(run.current).with_cleanup_hook(ends)
    return True


def _begin_run(instrumentation: Instrumentation, runs: Any, /, *_: Any, **__: Any) -> Run | None:
    """A run to which the framework's own telemetry gives no span."""
    from agent_framework.observability import OBSERVABILITY_SETTINGS  # it is set anew as telemetry is configured

    unseen = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    name = str(getattr(runs, "name", None) or type(runs).__name__)
    return instrumentation.begin_run(name) if unseen or not OBSERVABILITY_SETTINGS.ENABLED else None


#: One run of an agent or a workflow is one trace.
run: Final[Wrap] = within(_begin_run, carries)


def asker_of(agent: Any, session: Any) -> Asker:
    """Who asks: an agent, in a session, which is known by its id, for it may be written down and read again."""
    own, name = getattr(session, "session_id", None), getattr(agent, "name", None)
    return Asker(own, str(name or getattr(agent, "id", "")), name, own)


#: The runs of agents: providers load and reduce once, for all calls of a run.
RUNS: Final = CallsOfOneStart("agent_framework")


def _prepares(instrumentation: Instrumentation, agent: Any, /, *_: Any, session: Any = None, **__: Any) -> Preparing:
    return RUNS.prepares(instrumentation, asker_of(agent, session), lambda context: context["session_context"])


def _calls_client(instrumentation: Instrumentation, agent: Any, context: Mapping[str, Any], **_: Any) -> BoundRun:
    return RUNS.run(instrumentation, context["session_context"], asker_of(agent, context.get("session")))


def _handed(instrumentation: Instrumentation, client: Any, /, messages: Any = (), **given: Any) -> BoundRun:
    return Handed(client, normalize_messages(messages), prompts_of(given.get("options"))).hands(instrumentation)


@around_awaited
def loads(_: Instrumentation, middleware: Any, messages: Any, /) -> Observation:
    """Around what loads a history for one call of a model: it is held, too."""
    context, handed = (yield), HANDED.get()
    if handed is not None and same(handed.messages, messages):
        handed.messages = context.get_messages(include_input=True)


def _begins(instrumentation: Instrumentation, client: Any, /, messages: Any = (), **given: Any) -> ModelCall | None:
    """A model is to be called: by a client that is not called by another one, and for no reducer."""
    if called() or reducing() is not None:
        return None
    sent, prompts = normalize_messages(messages), prompts_of(given.get("options"))
    handed, strategy = handed_by(client, sent, prompts), given.get("compaction_strategy") or client.compaction_strategy
    call = RUNS.begins(handed.messages) or ModelCall(instrumentation)
    call.knows(window=getattr(strategy, "max_context_window_tokens", None))
    handed.handed_on(call, sent, prompts, "chat_middleware")
    return call


def _sent(client: Any, /, *_: Any, messages: Any = (), options: Any = None, **__: Any) -> Sent:
    known = options or {}
    model = known.get("model") or getattr(client, "model", None)
    named = model if isinstance(model, str) else None
    return Sent(normalize_messages(messages), prompts_of(options), schemas_of(known.get("tools")), named)


#: A run of an agent is prepared: its providers load and reduce; where one raises, no model is called.
prepares: Final[Wrap] = within(_prepares)
#: A run of an agent calls its model, once or in rounds.
calls_client: Final[Wrap] = within(_calls_client, carries)
handing: Final[Wrap] = within(_handed, carries)
call: Final[Wrap] = within(_begins, carries)
#: What each class of clients is given.
inner_client: Final = innermost("_inner_get_response", _sent, lambda answer: str(answer.text), carries)
_SCHEMAS: Final = ToolSchemas(methodcaller("to_json_schema_spec"))


def prompts_of(options: Mapping[str, Any] | None) -> list[str]:
    """The instructions of a call, which its client puts in front of the messages."""
    instructions = (options or {}).get("instructions")
    return [instructions] if isinstance(instructions, str) and instructions else []


def schemas_of(tools: Any) -> list[Mapping[str, Any]]:
    """The schemas of the tools that are known: a provider's own has none."""
    offered = _SCHEMAS.of(tools if isinstance(tools, list | tuple) else [tools])
    return [schema for schema in offered if "function" in schema or "parameters" in schema]
