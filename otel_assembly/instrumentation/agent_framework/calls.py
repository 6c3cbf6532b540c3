"""Wrappers for agent-framework's agent runs, model calls, compaction and history providers.

A run of an agent prepares its messages once (`RawAgent._prepare_run_context`), then calls the model in one or more
rounds (`RawAgent._call_chat_client`). Reductions during the preparation are recorded in each of these model calls.
Middleware and compaction strategies (`BaseChatClient._prepare_messages_for_model_call`) run for each call.
"""

from __future__ import annotations

import re
import weakref
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from agent_framework import ResponseStream, normalize_messages, observability

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.agent_framework.chat_middleware import (
    MIDDLEWARE_INPUT,
    middleware_entry_hook,
    middleware_exit_hook,
)
from otel_assembly.instrumentation.agent_framework.shared_start import CallsFromSharedStart
from otel_assembly.instrumentation.clients import innermost_client_hook, model_in
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.instrumented import has_tracer_provider
from otel_assembly.instrumentation.message_alignment import same
from otel_assembly.instrumentation.model_call import ClientRequest
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import is_own, left_for, limit_of, name_of, policy_name, settings_of
from otel_assembly.instrumentation.reductions import reducer, reducing
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.instrumentation.tool_schemas import ToolSchemas
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly._internal.tracked_runs import TrackedRun
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation


def attach_to_stream(run: TrackedRun, answer: Any) -> bool:
    """Attach a run to a `ResponseStream`, which then ends it, and return True; return False for any other answer."""
    if not isinstance(answer, ResponseStream):
        return False
    stream_ref = weakref.ref(answer)
    # A finalizer ends the run at most once: when the stream is consumed, or when the program drops it unfinished.
    end_run = weakref.finalize(answer, lambda: run.end(getattr(stream_ref(), "_stream_error", None)))
    answer.with_pull_context_manager(run.current).with_cleanup_hook(end_run)
    return True


#: Creates the hook of a function that can return a `ResponseStream`.
_streaming_run_hook: Final = partial(run_hook, attach_to_stream=attach_to_stream)
#: The generated name of a workflow without a name. It is unique per workflow, so telemetry leaves it out.
_GENERATED_NAME: Final = re.compile("^WorkflowBuilder-[0-9a-f-]{36}$")


@_streaming_run_hook
def run(instrumentation: Instrumentation, runner: Any, /, *_: Any, **__: Any) -> TrackedRun | None:
    """Record a run of an agent or workflow, with a span if the framework's own telemetry creates none."""
    name = _GENERATED_NAME.sub(type(runner).__name__, name_of(runner))
    # Read through the module: agent-framework replaces the object.
    has_span = has_tracer_provider() and observability.OBSERVABILITY_SETTINGS.ENABLED
    return ContextBoundRun(instrumentation, None if has_span else name, {})


def invoking_agent_of(agent: Any, session: Any) -> InvokingAgent:
    return InvokingAgent.of(
        getattr(session, "session_id", None), getattr(agent, "name", None), str(getattr(agent, "id", ""))
    )


#: The model calls of agent runs. Providers load and reduce messages once per run, for all of its calls.
RUNS: Final = CallsFromSharedStart("agent_framework")


@run_hook
def run_preparation(
    instrumentation: Instrumentation, agent: Any, /, *_: Any, session: Any = None, **__: Any
) -> TrackedRun:
    """Record the preparation of a run, in which providers load and reduce; `model_rounds` gets the session context."""
    return RUNS.preparing(
        instrumentation, invoking_agent_of(agent, session), lambda context: context["session_context"]
    )


@_streaming_run_hook
def model_rounds(instrumentation: Instrumentation, agent: Any, context: Mapping[str, Any], **_: Any) -> TrackedRun:
    """Connect the model calls of a run to its preparation, so that they begin with its messages and reductions."""
    return RUNS.run(instrumentation, context["session_context"], invoking_agent_of(agent, context.get("session")))


@observe_async_hook
def loaded_history(_: Instrumentation, middleware: Any, messages: Any, /) -> Observation:
    """Add history that is loaded for a single model call to that call's input, so that it is no edit by middleware."""
    context, middleware_input = (yield), MIDDLEWARE_INPUT.get()
    if middleware_input is not None and same(middleware_input.messages, messages):
        middleware_input.messages = context.get_messages(include_input=True)


def _request(client: Any, /, messages: Any = (), **arguments: Any) -> ClientRequest:
    """Return the messages and prompts of a request before the middleware and the compaction change it."""
    strategy = arguments.get("compaction_strategy") or getattr(client, "compaction_strategy", None)
    window = limit_of(strategy, "max_context_window_tokens")
    return ClientRequest(normalize_messages(messages), prompts_of(arguments.get("options")), window=window)


def _inner_request(client: Any, /, *_: Any, messages: Any = (), options: Any = None, **__: Any) -> ClientRequest:
    """Return the request that a client sends."""
    options = options or {}
    tools, model = schemas_of(options.get("tools")), model_in(options, client)
    # The id of a thread that the service stores, or of its last response: the request has no earlier messages then.
    unknown = bool(options.get("conversation_id"))
    return ClientRequest(normalize_messages(messages), prompts_of(options), tools, model, unknown=unknown)


#: Wraps `ChatMiddlewareLayer.get_response`, which is called before chat middleware.
middleware_entry: Final = middleware_entry_hook(_request, attach_to_stream)
#: Wraps `BaseChatClient.get_response`, which is called after chat middleware.
call: Final = middleware_exit_hook(_request, RUNS.next_call, "chat_middleware", attach_to_stream)
#: Wraps ``_inner_get_response`` of each class of clients.
inner_client: Final = innermost_client_hook(
    "_inner_get_response", _inner_request, lambda answer: str(answer.text), attach_to_stream=attach_to_stream
)
_SCHEMAS: Final = ToolSchemas(methodcaller("to_json_schema_spec"))


def prompts_of(options: Mapping[str, Any] | None) -> list[str]:
    return as_prompts((options or {}).get("instructions"))


def schemas_of(tools: Any) -> list[Mapping[str, Any]]:
    """Return the schemas of the tools. A provider's own tools have none."""
    offered = _SCHEMAS.of(tools if isinstance(tools, list | tuple) else [tools])
    return [schema for schema in offered if "function" in schema or "parameters" in schema]


_PACKAGES: Final = ("agent_framework",)
#: The reason of a drop, by the value that a strategy stores in the message as ``_exclude_reason``.
_REASONS: Final[Mapping[str, DecisionReason]] = {
    **dict.fromkeys(("sliding_window", "tool_call_compaction"), DecisionReason.OUTSIDE_WINDOW),
    **dict.fromkeys(
        ("truncation", "token_budget_fallback", "token_budget_fallback_strict"), DecisionReason.OVER_BUDGET
    ),
    **dict.fromkeys(("tool_result_compaction", "summarized"), DecisionReason.COMPACTED),
}


def _with_output(report: StepReport, after: Sequence[Any], strategy: Any) -> StepReport:
    """Complete a strategy's report: the output, why each message was dropped, and the limit if it is in tokens."""
    counts_tokens = getattr(strategy, "tokenizer", None) is not None
    limits = ("token_budget", "input_budget_tokens", *(("max_n",) if counts_tokens else ()))
    verdicts = left_for(report.before, after, _drop_reason)
    return replace(report, after=after, verdicts=verdicts, budget=limit_of(strategy, *limits))


def _drop_reason(message: Any) -> DecisionReason | None:
    """Return why a strategy dropped a message. A truncation without token counts has a limit in messages."""
    properties = message.additional_properties
    reason = str(properties.get("_exclude_reason"))
    has_token_count = isinstance((properties.get("_group") or {}).get("token_count"), int)
    if reason == "truncation" and not has_token_count:
        return DecisionReason.OUTSIDE_WINDOW
    return _REASONS.get(reason)


def _observe_strategy(strategy: Any, messages_of: Callable[[], Sequence[Any] | None]) -> ReducerObservation:
    """Observe a function that applies a compaction strategy to the messages that `messages_of` returns."""
    before = messages_of() if strategy is not None and reducing() is None else None
    if before is None:
        return None
    config = settings_of(strategy) if is_own(strategy, _PACKAGES) else {}
    report = StepReport(policy_name(strategy, _PACKAGES, "Strategy", "Compaction"), before, config=config)
    result = yield report
    after = result if isinstance(result, list) else messages_of()  # None: the strategy changed the list in place
    return None if after is None else _with_output(report, after, strategy)


@reducer
def compaction(
    _: Instrumentation, _client: Any, messages: Any, *, compaction_strategy: Any = None, **_options: Any
) -> ReducerObservation:
    """Wrap `BaseChatClient._prepare_messages_for_model_call`: a client compacts the full list before each call."""
    return (yield from _observe_strategy(compaction_strategy, lambda: messages))


@reducer
def before_run(_: Instrumentation, provider: Any, *, context: Any, **__: Any) -> ReducerObservation:
    """Wrap `CompactionProvider.before_run`: compacts the messages that earlier providers loaded, once per run."""
    return (yield from _observe_strategy(provider.before_strategy, context.get_messages))


def _observe_after_run(_: Instrumentation, provider: Any, *, session: Any = None, **__: Any) -> ReducerObservation:
    """Observe `CompactionProvider.after_run`, whose strategy changes the list of stored messages in place.

    The strategies of agent-framework only mark a message that they exclude, and keep it in the list; only a summary
    that they insert changes the list. So this step records summaries. An exclusion is recorded by the step that omits
    the marked message later: `skips_excluded`, `before_run` or `compaction`.
    """

    def stored_messages() -> Sequence[Any] | None:
        state = session.state.get(provider.history_source_id) if session is not None else None
        messages = state.get("messages") if isinstance(state, dict) else None
        return messages if isinstance(messages, list) else None

    return (yield from _observe_strategy(provider.after_strategy, stored_messages))


#: Wraps `CompactionProvider.after_run`, which runs after the model calls of a run. The first model call of the agent's
#: next run records a change of the stored list.
after_run: Final = reducer(
    _observe_after_run, invoking_agent=lambda _, agent=None, session=None, **__: invoking_agent_of(agent, session)
)


@reducer
def skips_excluded(_: Instrumentation, provider: Any, *__: Any, state: Any = None, **___: Any) -> ReducerObservation:
    """Wrap `InMemoryHistoryProvider.get_messages`, which leaves out what `CompactionProvider.after_run` excluded."""
    if not provider.skip_excluded or not isinstance(state, dict):
        return None
    report = StepReport("skip_excluded", state.get("messages", ()))
    return _with_output(report, (yield report), provider)
