"""One run of an agent, in its session; and its model calls, from what a client holds to what it receives in the end."""

from __future__ import annotations

import re
import weakref
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from agent_framework import ResponseStream, normalize_messages
from opentelemetry import trace

from otel_assembly.instrumentation.clients import innermost
from otel_assembly.instrumentation.conversation import Asker
from otel_assembly.instrumentation.handing_on import HANDED, handed_to, hands
from otel_assembly.instrumentation.hooks import around_awaited
from otel_assembly.instrumentation.model_call import Sent
from otel_assembly.instrumentation.offered_tools import ToolSchemas
from otel_assembly.instrumentation.reducers import limit_of
from otel_assembly.instrumentation.run_calls import CallsOfOneStart
from otel_assembly.instrumentation.runs import Run, within
from otel_assembly.instrumentation.splicing import same

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.bound_runs import BoundRun
    from otel_assembly.instrumentation.hooks import Observation
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


#: The hook of a function whose answer may be such a stream.
_streamed: Final = partial(within, carries=carries)
#: The name that a workflow has where its program gives it none: another one for each.
_NO_NAME: Final = re.compile("WorkflowBuilder-[0-9a-f-]{36}")


@_streamed
def run(instrumentation: Instrumentation, runs: Any, /, *_: Any, **__: Any) -> Run | None:
    """One run of an agent or a workflow is one trace, where the framework's own telemetry gives it no span."""
    from agent_framework.observability import OBSERVABILITY_SETTINGS  # it is set anew as telemetry is configured

    unseen = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    name = str(getattr(runs, "name", None) or "")
    named = type(runs).__name__ if not name or _NO_NAME.fullmatch(name) else name
    return instrumentation.begin_run(named) if unseen or not OBSERVABILITY_SETTINGS.ENABLED else None


def asker_of(agent: Any, session: Any) -> Asker:
    """Who asks: an agent, in a session, which is known by its id, for it may be written down and read again."""
    own, name = getattr(session, "session_id", None), getattr(agent, "name", None)
    return Asker(own, str(name or getattr(agent, "id", "")), name, own)


#: The runs of agents: providers load and reduce once, for all calls of a run.
RUNS: Final = CallsOfOneStart("agent_framework")


@within
def prepares(instrumentation: Instrumentation, agent: Any, /, *_: Any, session: Any = None, **__: Any) -> Preparing:
    """A run of an agent is prepared: its providers load and reduce; where one raises, no model is called."""
    return RUNS.prepares(instrumentation, asker_of(agent, session), lambda context: context["session_context"])


@_streamed
def calls_client(instrumentation: Instrumentation, agent: Any, context: Mapping[str, Any], **_: Any) -> BoundRun:
    """A run of an agent calls its model, once or in rounds."""
    return RUNS.run(instrumentation, context["session_context"], asker_of(agent, context.get("session")))


@around_awaited
def loads(_: Instrumentation, middleware: Any, messages: Any, /) -> Observation:
    """Around what loads a history for one call of a model: it is held, too."""
    context, handed = (yield), HANDED.get()
    if handed is not None and same(handed.messages, messages):
        handed.messages = context.get_messages(include_input=True)


def _given(client: Any, /, messages: Any = (), **given: Any) -> Sent:
    """What a client is called with; the window of its model is known to a strategy."""
    strategy = given.get("compaction_strategy") or getattr(client, "compaction_strategy", None)
    window = limit_of(strategy, "max_context_window_tokens")
    return Sent(normalize_messages(messages), prompts_of(given.get("options")), window=window)


def _sent(client: Any, /, *_: Any, messages: Any = (), options: Any = None, **__: Any) -> Sent:
    known = options or {}
    model = known.get("model") or getattr(client, "model", None)
    named = model if isinstance(model, str) else None
    return Sent(normalize_messages(messages), prompts_of(options), schemas_of(known.get("tools")), named)


handing: Final = hands(_given, carries)
call: Final = handed_to(_given, RUNS.begins, "chat_middleware", carries)
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
