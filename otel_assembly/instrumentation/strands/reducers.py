"""What reduces the messages that an agent holds: managers of the conversation, strategies, hooks, and its own tools.

All of them change the agent's messages in place, between its model calls: each is a step of the next one.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.hooks import observe_async_hook, replace_hook
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.reducers import is_ours, is_own, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, reducer, reducing
from otel_assembly.instrumentation.strands.calls import PACKAGES, function_name, invoking_agent_of, is_framework_s
from otel_assembly.instrumentation.strands.messages import held_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: Why messages leave, where the model has not found them to be too many.
_REASONS: Final = {
    "SlidingWindowConversationManager": DecisionReason.OUTSIDE_WINDOW,
    "SummarizingConversationManager": DecisionReason.COMPACTED,
}
#: The conditions of a strategy, and where it holds them.
_HELD: Final = {
    "threshold": "_threshold",
    "utilization": "_utilization_threshold",
    "preserve_recent": "_preserve_recent",
}


def _in_place(agent_of: Callable[..., Any], policy: Callable[..., str], **more: Any) -> Wrap:
    """The hook of what changes an agent's messages in place; what it calls for that is a part of it."""

    def held(*args: Any, **kwargs: Any) -> Any:
        agent = agent_of(*args, **kwargs) if reducing() is None else None
        return held_by(agent) if isinstance(getattr(agent, "messages", None), list) else None

    return reducer(
        Reducer(held, policy=policy, invoking_agent=lambda *a, **k: invoking_agent_of(agent_of(*a, **k)), **more)
    )


def _managed(manager: Any, agent: Any, *_: Any, **__: Any) -> Any:
    return None if is_ours(manager) or type(manager).__name__ == "NullConversationManager" else agent


def _why(_: Any, __: Any, manager: Any, agent: Any, e: Any = None, **___: Any) -> Mapping[str, Any]:
    reason = known_of(type(manager), _REASONS, PACKAGES)
    if e is not None and reason is DecisionReason.OUTSIDE_WINDOW:
        reason = DecisionReason.OVER_BUDGET
    return {} if reason is None else {"reason": reason}


#: What a manager does after a run, before a call, or because the model has found its messages to be too many.
manages: Final = _in_place(
    _managed,
    lambda manager, *_, **__: policy_name(manager, PACKAGES, "ConversationManager"),
    config=lambda manager, *_, **__: settings_of(manager, {"removed_message_count"}),
    said=_why,
    ends=lambda _, agent, e=None, **__: None if e is None else invoking_agent_of(agent),
)


def _strategy(strategy: Any, *_: Any, **__: Any) -> str:
    return policy_name(strategy, PACKAGES, "Strategy")


def _left(before: Any, after: Any, strategy: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    """Messages of which nothing is left are out, whatever marks their place; only a summary stands for them."""
    if len(after) >= len(before) or not is_own(strategy, PACKAGES) or _strategy(strategy) == "summarize":
        return {}
    kept = [block for message in after for block in message["content"]]
    gone = [message for message in before if not any(block in kept for block in message["content"])]
    return {"verdicts": [Verdict(gone, DecisionOutcome.DROPPED, DecisionReason.OVER_BUDGET)]}


def _conditions(strategy: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    return {name: value for name, held in _HELD.items() if (value := getattr(strategy, held, None))}


_applies: Final = _in_place(lambda _, context: context.agent, _strategy, config=_conditions, said=_left)
#: What a strategy does to a message as it is added.
transforms: Final = _in_place(lambda *given, **_: given[4], _strategy, config=_conditions)


@observe_async_hook
def strategies(instrumentation: Instrumentation, manager: Any, /, *_: Any, **__: Any) -> Observation:
    """Around what applies the strategies of a context manager, which may be of any class."""
    for strategy in manager._strategies:  # noqa: SLF001  # nothing else gives them
        instrumentation.take(type(strategy), "apply", _applies)
    yield


def _hooks(instrumentation: Instrumentation, invoke: Any, registry: Any, event: Any) -> Any:
    """The callbacks of an event: each may edit the agent's messages; what the framework's own do is told apart."""
    with instrumentation.suppress_errors():
        if hasattr(event, "agent"):
            given, registry = registry.get_callbacks_for, copy(registry)
            # One by one: a callback may add others.
            registry.get_callbacks_for = lambda event: (_watched(one, instrumentation) for one in given(event))
    return invoke(registry, event)


def _watched(callback: Any, instrumentation: Instrumentation) -> Any:
    with instrumentation.suppress_errors():
        if not is_framework_s(callback) and not is_ours(getattr(callback, "__self__", None)):
            wrap = _in_place(lambda event: event.agent, lambda _: function_name(callback), kind=None)
            return wrap(callback, instrumentation)
    return callback


hooked: Final = replace_hook(_hooks)


def tools(module: Any, instrumentation: Instrumentation) -> None:
    """The tools by which a model reduces its own context."""

    def take(name: str) -> None:
        wrap = _in_place(lambda *_, tool_context, **__: tool_context.agent, lambda *_, **__: name)
        instrumentation.patches.wrap(getattr(module, name), "_tool_func", lambda made: wrap(made, instrumentation))

    take("summarize_context")
    take("truncate_context")
