"""The wrappers of the frameworks' reducers: functions that drop, shorten or summarize messages between model calls.

A reducer runs between two model calls of an agent's run. The next call in the run records it as a step. The messages
are given as the dicts that the client will send, because the call finds them in its request.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.provider_clients.agent_runs import current_agent_run
from otel_assembly.instrumentation.reducers import policy_name
from otel_assembly.instrumentation.reductions import reducer
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation


def _invoking_agent(*_: Any, **__: Any) -> InvokingAgent | None:
    run = current_agent_run()
    return run.invoking_agent if run is not None else None


def _history(*_: Any, **__: Any) -> InvokingAgent | None:
    """Return the agent for a reducer of the history with which a run starts."""
    run = current_agent_run()
    return run.history if run is not None else None


def _dicts(messages: Iterable[Any]) -> list[Any]:
    """Copy messages that are dicts, without the system prompts. A reducer may change the dicts in place."""
    return [{**message} for message in messages if message.get("role") != "system"]


def _reducer(
    policy: Callable[..., str],
    place: int,
    name: str,
    read: Callable[[Iterable[Any]], list[Any]] = _dicts,
    invoking_agent: Callable[..., InvokingAgent | None] = _invoking_agent,
    settings: Callable[..., Mapping[str, Any]] = lambda *_: {},
) -> Wrap:
    """Return the hook of a function that changes a list of messages in place, or returns the changed list.

    Args:
        policy: Returns the name of the step from the function's arguments.
        place: The position of the list among the arguments.
        name: The list's name among the arguments.
        read: Returns the messages of a list as the client sends them, without the system prompts.
        invoking_agent: As for `reducer`.
        settings: Returns the reducer's settings from the function's arguments.
    """

    def observe(_: Instrumentation, /, *args: Any, **kwargs: Any) -> ReducerObservation:
        messages = argument(args, kwargs, place, name)
        started = StepReport(policy(*args), read(messages), config=settings(*args))
        result = yield started
        return replace(started, after=read(result if isinstance(result, list) else messages))

    return reducer(observe, invoking_agent=invoking_agent)


# AG2: `ConversableAgent` with the capability `TransformMessages`


def _settings_of_transform(transform: Any, *_: Any) -> dict[str, Any]:
    values = {name.lstrip("_"): value for name, value in getattr(transform, "__dict__", {}).items()}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


_transform: Final = _reducer(
    lambda transform, *_: policy_name(transform, ("autogen",)), 1, "messages", settings=_settings_of_transform
)


def _transform_messages(instrumentation: Instrumentation, transformation: Any, /, *_: Any, **__: Any) -> Observation:
    """Wrap the transforms of a `TransformMessages`: the framework's classes, and those of the program."""
    for transform in transformation._transforms:  # noqa: SLF001  # has no public name
        instrumentation.wrap_once(type(transform), "apply_transform", _transform)
    yield


transform_messages: Final = observe_hook(_transform_messages)

# CrewAI

crewai_summarize: Final = _reducer(lambda *_: "summarize_messages", 0, "messages")
crewai_llm_summarize: Final = _reducer(lambda *_: "summarize_messages", 1, "messages")

# Agno


def _agno_dicts(messages: Iterable[Any]) -> list[Any]:
    dicts = []
    for message in messages:
        content = message.get_content(use_compressed_content=True)
        fields = {"role": message.role, "content": content, "tool_call_id": message.tool_call_id}
        fields["tool_calls"] = message.tool_calls or None
        if message.role != "system":
            dicts.append({name: value for name, value in fields.items() if value is not None})
    return dicts


def agno_history(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of the method that reads a session's history, up to a number of runs or messages."""

    def observe(_: Instrumentation, /, session: Any, *args: Any, **kwargs: Any) -> ReducerObservation:
        limits = {name: kwargs[name] for name in ("last_n_runs", "limit") if kwargs.get(name) is not None}
        if not limits or current_agent_run() is None:
            return None
        whole = original(session, *args, **{**kwargs, **dict.fromkeys(limits)})
        started = StepReport("history_limit", _agno_dicts(whole), config=limits, reason=DecisionReason.OUTSIDE_WINDOW)
        return replace(started, after=_agno_dicts((yield started)))

    return reducer(observe, invoking_agent=_history)(original, instrumentation)


agno_filter: Final = _reducer(lambda *_: "filter_tool_calls", 0, "messages", _agno_dicts, _history)
agno_compress: Final = _reducer(lambda *_: "compress_tool_results", 1, "messages", _agno_dicts)
agno_compact: Final = _reducer(lambda *_: "compaction", 2, "history", _agno_dicts, _history)


hide_frames(globals())
