"""One run of an agent, in its session; its model calls, and what reduces the messages of each or what is stored."""

from __future__ import annotations

import re
import weakref
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from agent_framework import ResponseStream, normalize_messages, observability  # its settings are set anew
from opentelemetry import trace

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.clients import innermost_client_hook, model_in
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.message_alignment import same
from otel_assembly.instrumentation.middleware_calls import MIDDLEWARE_INPUT, middleware_entry_hook, middleware_exit_hook
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import is_own, left_for, limit_of, name_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, reducer, reducing
from otel_assembly.instrumentation.run_calls import CallsFromSharedStart
from otel_assembly.instrumentation.runs import Run, run_hook
from otel_assembly.instrumentation.tool_schemas import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation


def attach_to_stream(run: Run, answer: Any) -> bool:
    """A stream takes each of its steps inside of a run, and ends that: as it is read to its end, fails or is left."""
    if not isinstance(answer, ResponseStream):
        return False
    stream = weakref.ref(answer)
    ends = weakref.finalize(answer, lambda: run.end(getattr(stream(), "_stream_error", None)))  # at most once
    answer.with_pull_context_manager(run.current).with_cleanup_hook(ends)
    return True


#: The hook of a function whose answer may be such a stream.
_streamed: Final = partial(run_hook, attach_to_stream=attach_to_stream)
#: The name that a workflow has where its program gives it none: another one for each.
_NO_NAME: Final = re.compile("^WorkflowBuilder-[0-9a-f-]{36}$")


@_streamed
def run(instrumentation: Instrumentation, runs: Any, /, *_: Any, **__: Any) -> Run | None:
    """One run of an agent or a workflow is one trace, where the framework's own telemetry gives it no span."""
    unseen = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    name = _NO_NAME.sub(type(runs).__name__, name_of(runs))
    has_span = not unseen and observability.OBSERVABILITY_SETTINGS.ENABLED
    return ContextBoundRun(instrumentation, None if has_span else name, {})


def invoking_agent_of(agent: Any, session: Any) -> InvokingAgent:
    """Who asks: an agent, in a session, which is known by its id, for it may be written down and read again."""
    return InvokingAgent.of(
        getattr(session, "session_id", None), getattr(agent, "name", None), str(getattr(agent, "id", ""))
    )


#: The runs of agents: providers load and reduce once, for all calls of a run.
RUNS: Final = CallsFromSharedStart("agent_framework")


@run_hook
def prepares(instrumentation: Instrumentation, agent: Any, /, *_: Any, session: Any = None, **__: Any) -> Run:
    """A run of an agent is prepared: its providers load and reduce; where one raises, no model is called."""
    return RUNS.prepares(instrumentation, invoking_agent_of(agent, session), lambda context: context["session_context"])


@_streamed
def calls_client(instrumentation: Instrumentation, agent: Any, context: Mapping[str, Any], **_: Any) -> Run:
    """A run of an agent calls its model, once or in rounds."""
    return RUNS.run(instrumentation, context["session_context"], invoking_agent_of(agent, context.get("session")))


@observe_async_hook
def loads(_: Instrumentation, middleware: Any, messages: Any, /) -> Observation:
    """Around what loads a history for one call of a model: it is held, too."""
    context, handed = (yield), MIDDLEWARE_INPUT.get()
    if handed is not None and same(handed.messages, messages):
        handed.messages = context.get_messages(include_input=True)


def _given(client: Any, /, messages: Any = (), **given: Any) -> ClientRequest:
    """What a client is called with; the window of its model is known to a strategy."""
    strategy = given.get("compaction_strategy") or getattr(client, "compaction_strategy", None)
    window = limit_of(strategy, "max_context_window_tokens")
    return ClientRequest(normalize_messages(messages), prompts_of(given.get("options")), window=window)


def _sent(client: Any, /, *_: Any, messages: Any = (), options: Any = None, **__: Any) -> ClientRequest:
    tools, model = schemas_of((options or {}).get("tools")), model_in(options, client)
    held = (options or {}).get("conversation_id")  # of a thread that the service keeps, or of its last response
    return ClientRequest(normalize_messages(messages), prompts_of(options), tools, model, unknown=bool(held))


handing: Final = middleware_entry_hook(_given, attach_to_stream)
call: Final = middleware_exit_hook(_given, RUNS.begins, "chat_middleware", attach_to_stream)
#: What each class of clients is given.
inner_client: Final = innermost_client_hook(
    "_inner_get_response", _sent, lambda answer: str(answer.text), attach_to_stream=attach_to_stream
)
_SCHEMAS: Final = ToolSchemas(methodcaller("to_json_schema_spec"))


def prompts_of(options: Mapping[str, Any] | None) -> list[str]:
    """The instructions of a call, which its client puts in front of the messages."""
    return as_prompts((options or {}).get("instructions"))


def schemas_of(tools: Any) -> list[Mapping[str, Any]]:
    """The schemas of the tools that are known: a provider's own has none."""
    offered = _SCHEMAS.of(tools if isinstance(tools, list | tuple) else [tools])
    return [schema for schema in offered if "function" in schema or "parameters" in schema]


_PACKAGES: Final = ("agent_framework",)
#: By what a strategy notes on a message that it leaves out.
_REASONS: Final[Mapping[str, DecisionReason]] = {
    **dict.fromkeys(("sliding_window", "tool_call_compaction"), DecisionReason.OUTSIDE_WINDOW),
    **dict.fromkeys(
        ("truncation", "token_budget_fallback", "token_budget_fallback_strict"), DecisionReason.OVER_BUDGET
    ),
    **dict.fromkeys(("tool_result_compaction", "summarized"), DecisionReason.COMPACTED),
}


def _said(before: Sequence[Any], after: Sequence[Any], by: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    """Why each message left, as the strategy noted on it; and the limit of one that has it in tokens."""
    counts = getattr(by, "tokenizer", None) is not None
    limits = ("token_budget", "input_budget_tokens", *(("max_n",) if counts else ()))
    return {"verdicts": left_for(before, after, _why), "budget": limit_of(by, *limits)}


def _why(message: Any) -> DecisionReason | None:
    """A truncation goes by messages where nothing has counted their tokens."""
    noted = message.additional_properties
    why = str(noted.get("_exclude_reason"))
    counted = isinstance((noted.get("_group") or {}).get("token_count"), int)
    return DecisionReason.OUTSIDE_WINDOW if why == "truncation" and not counted else _REASONS.get(why)


def _compaction(strategy: Callable[..., Any], before: Callable[..., Sequence[Any] | None], **reads: Any) -> Wrap:
    """The hook of what applies a strategy, which is found among its arguments; for a reducer's own call it is left."""
    return reducer(
        Reducer(
            before,
            policy=lambda applied: policy_name(applied, _PACKAGES, "Strategy", "Compaction"),
            config=lambda applied: settings_of(applied) if is_own(applied, _PACKAGES) else {},
            said=_said,
            by=lambda *args, **kwargs: strategy(*args, **kwargs) if reducing() is None else None,
            **reads,
        )
    )


def _stored(provider: Any, /, *, session: Any = None, **_: Any) -> Sequence[Any] | None:
    state = session.state.get(provider.history_source_id) if session is not None else None
    found = state.get("messages") if isinstance(state, dict) else None
    return found if isinstance(found, list) else None


def _in_state(provider: Any, *_: Any, state: Any = None, **__: Any) -> Sequence[Any] | None:
    return list(state.get("messages", ())) if provider.skip_excluded and isinstance(state, dict) else None


#: A client compacts what it is about to send; what earlier rounds have left out is in the list still.
compaction: Final = _compaction(
    lambda *_, compaction_strategy=None, **__: compaction_strategy,
    lambda _, messages, **__: messages,
    after=lambda result, *_, **__: result,
)
#: A provider compacts what the providers in front of it have loaded, once for a run.
before_run: Final = _compaction(
    lambda provider, **_: provider.before_strategy, lambda _, context, **__: context.get_messages()
)
#: A provider compacts what is stored, when a run is over: what that changes there, the next one finds.
after_run: Final = _compaction(
    lambda provider, **_: provider.after_strategy,
    _stored,
    invoking_agent=lambda _, agent=None, session=None, **__: invoking_agent_of(agent, session),
)
#: A store leaves out what a compaction of what is stored has noted to be left out.
skips_excluded: Final = reducer(Reducer(_in_state, lambda result, *_, **__: result, policy="skip_excluded", said=_said))
