"""Hooks for what changes a Strands agent's messages in place, between its model calls.

These are conversation managers, strategies of a context manager, callbacks of hooks, and the tools with which a model
reduces its own context. Each change is deferred, and recorded as a step of the agent's next model call.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.hooks import observe_async_hook, replace_hook
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.reducers import is_ours, is_own, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, reducer, reducing
from otel_assembly.instrumentation.strands.calls import (
    PACKAGES,
    function_name,
    invoking_agent_of,
    is_framework_function,
)
from otel_assembly.instrumentation.strands.messages import agent_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: Why a conversation manager drops messages, unless the model reported a context overflow.
_REASONS: Final = {
    "SlidingWindowConversationManager": DecisionReason.OUTSIDE_WINDOW,
    "SummarizingConversationManager": DecisionReason.COMPACTED,
}
#: The settings of a strategy that are recorded, and the attributes that contain them.
_SETTINGS: Final = {
    "threshold": "_threshold",
    "utilization": "_utilization_threshold",
    "preserve_recent": "_preserve_recent",
}


def _in_place_reducer(agent_of: Callable[..., Any], policy: Callable[..., str], **options: Any) -> Wrap:
    """Return a hook for a function that changes an agent's messages in place.

    Another such function that it calls is recorded as a part of it.

    Args:
        agent_of: Returns the agent from the function's arguments; None if the call is not to be recorded.
        policy: Returns the policy name from the function's arguments.
        options: Other attributes of `Reducer`.
    """

    def messages_of(*args: Any, **kwargs: Any) -> Any:
        agent = agent_of(*args, **kwargs) if reducing() is None else None
        return agent_messages(agent) if isinstance(getattr(agent, "messages", None), list) else None

    return reducer(
        Reducer(
            messages_of, policy=policy, invoking_agent=lambda *a, **k: invoking_agent_of(agent_of(*a, **k)), **options
        )
    )


def _managed_agent(manager: Any, agent: Any, *_: Any, **__: Any) -> Any:
    return None if is_ours(manager) or type(manager).__name__ == "NullConversationManager" else agent


def _manager_report(_: Any, __: Any, manager: Any, agent: Any, e: Any = None, **___: Any) -> Mapping[str, Any]:
    """Return why a conversation manager dropped messages; `e` is the model's context overflow, if there was one."""
    reason = known_of(type(manager), _REASONS, PACKAGES)
    if e is not None and reason is DecisionReason.OUTSIDE_WINDOW:
        reason = DecisionReason.OVER_BUDGET
    return {} if reason is None else {"reason": reason}


#: The hook of a conversation manager. It runs after a run, before a model call, or after a context overflow.
manage: Final = _in_place_reducer(
    _managed_agent,
    lambda manager, *_, **__: policy_name(manager, PACKAGES, "ConversationManager"),
    config=lambda manager, *_, **__: settings_of(manager, {"removed_message_count"}),
    said=_manager_report,
    ends=lambda _, agent, e=None, **__: None if e is None else invoking_agent_of(agent),
)


def _strategy_name(strategy: Any, *_: Any, **__: Any) -> str:
    return policy_name(strategy, PACKAGES, "Strategy")


def _strategy_report(before: Any, after: Any, strategy: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    """Return which messages a strategy dropped: those of which no content block is left.

    They count as dropped even if a notice replaces them. Only the strategy `summarize` compacts messages.
    """
    if len(after) >= len(before) or not is_own(strategy, PACKAGES) or _strategy_name(strategy) == "summarize":
        return {}
    kept = [block for message in after for block in message["content"]]
    dropped = [message for message in before if not any(block in kept for block in message["content"])]
    return {"verdicts": [Verdict(dropped, DecisionOutcome.DROPPED, DecisionReason.OVER_BUDGET)]}


def _strategy_settings(strategy: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    return {name: value for name, attribute in _SETTINGS.items() if (value := getattr(strategy, attribute, None))}


_apply_strategy: Final = _in_place_reducer(
    lambda _, context: context.agent, _strategy_name, config=_strategy_settings, said=_strategy_report
)
#: The hook of `_transform_blocks`, with which an offload strategy shortens a message when it is added.
transform_blocks: Final = _in_place_reducer(lambda *args, **_: args[4], _strategy_name, config=_strategy_settings)


@observe_async_hook
def run_strategies(instrumentation: Instrumentation, manager: Any, /, *_: Any, **__: Any) -> Observation:
    """Wrap `apply` in the classes of a context manager's strategies before they run; a program can define its own."""
    for strategy in manager._strategies:  # noqa: SLF001  # has no public name
        instrumentation.take(type(strategy), "apply", _apply_strategy)
    yield


def _invoke_callbacks(instrumentation: Instrumentation, invoke: Any, registry: Any, event: Any) -> Any:
    """Invoke an event's callbacks, each wrapped; the registry itself is not changed."""
    with instrumentation.suppress_errors():
        if hasattr(event, "agent"):
            get_callbacks, registry = registry.get_callbacks_for, copy(registry)
            # A generator, because a callback can add other callbacks.
            registry.get_callbacks_for = lambda event: (
                _wrap_callback(callback, instrumentation) for callback in get_callbacks(event)
            )
    return invoke(registry, event)


def _wrap_callback(callback: Any, instrumentation: Instrumentation) -> Any:
    """Wrap a program's own callback, which can edit the agent's messages; Strands' callbacks have other hooks."""
    with instrumentation.suppress_errors():
        if not is_framework_function(callback) and not is_ours(getattr(callback, "__self__", None)):
            wrap = _in_place_reducer(lambda event: event.agent, lambda _: function_name(callback), kind=None)
            return wrap(callback, instrumentation)
    return callback


invoke_callbacks: Final = replace_hook(_invoke_callbacks)


def context_tools(module: Any, instrumentation: Instrumentation) -> None:
    """Wrap the tools with which a model can reduce its own context, in the module that defines them."""

    def wrap_tool(name: str) -> None:
        wrap = _in_place_reducer(lambda *_, tool_context, **__: tool_context.agent, lambda *_, **__: name)
        tool = getattr(module, name)
        instrumentation.patches.wrap(tool, "_tool_func", lambda function: wrap(function, instrumentation))

    wrap_tool("summarize_context")
    wrap_tool("truncate_context")
