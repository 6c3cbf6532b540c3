"""What reduces the messages that an agent holds: managers of the conversation, strategies, hooks, and its own tools.

All of them change the agent's messages in place, between its model calls: each is a step of the next one.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.hooks import around_awaited, instead
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.reducers import is_ours, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reducer, Reduction, reducer, reducing
from otel_assembly.instrumentation.runs import within
from otel_assembly.instrumentation.strands.calls import PACKAGES, asker_of, function_name, is_framework_s
from otel_assembly.instrumentation.strands.messages import held_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: Why a manager's messages leave, where the model has not found them to be too many.
_REASONS: Final = {
    "SlidingWindowConversationManager": DecisionReason.OUTSIDE_WINDOW,
    "SummarizingConversationManager": DecisionReason.COMPACTED,
}
_TOOLS: Final = "strands._context_manager"


def _in_place(agent_of: Callable[..., Any], policy: Callable[..., str], **more: Any) -> Wrap:
    """The hook of what changes an agent's messages in place; what it calls for that is a part of it."""

    def held(*args: Any, **kwargs: Any) -> Any:
        agent = agent_of(*args, **kwargs) if reducing() is None else None
        return None if agent is None else held_by(agent)

    return reducer(Reducer(held, policy=policy, asker=lambda *a, **k: asker_of(agent_of(*a, **k)), **more))


def _managed(manager: Any, agent: Any, *_: Any, **__: Any) -> Any:
    return None if is_ours(manager) or type(manager).__name__ == "NullConversationManager" else agent


def _why(_: Any, __: Any, manager: Any, ___: Any, e: Any = None, **____: Any) -> Mapping[str, Any]:
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
)


def _strategy(strategy: Any, *_: Any, **__: Any) -> str:
    return policy_name(strategy, PACKAGES, "Strategy")


def _conditions(strategy: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    named = {"threshold": "_threshold", "utilization": "_utilization_threshold", "preserve_recent": "_preserve_recent"}
    return {name: value for name, held in named.items() if (value := getattr(strategy, held, None))}


_applies: Final = _in_place(lambda _, context: context.agent, _strategy, config=_conditions)
#: What a strategy does to a message as it is added.
transforms: Final = _in_place(lambda *given, **_: given[4], _strategy, config=_conditions)


@around_awaited
def strategies(instrumentation: Instrumentation, manager: Any, /, *_: Any, **__: Any) -> Observation:
    """Around what applies the strategies of a context manager, which may be of any class."""
    for strategy in manager._strategies:  # noqa: SLF001  # nothing else gives them
        instrumentation.take(type(strategy), "apply", _applies)
    yield


def _callbacks(instrumentation: Instrumentation, callbacks: Any, registry: Any, event: Any) -> Any:
    """The callbacks of hooks: each may change the messages of the agent; what the framework's own do is told apart."""
    for callback in callbacks(registry, event):
        own = is_framework_s(callback) or is_ours(getattr(callback, "__self__", None))
        watched = own or not hasattr(event, "agent")
        yield callback if watched else _calls_back(callback)(callback, instrumentation)


def _calls_back(callback: Any) -> Wrap:
    return _in_place(lambda event: event.agent, lambda _: function_name(callback), kind=None)


hooked: Final = instead(_callbacks)


class _ToolReduction(Reduction):
    """What a tool does by which a model reduces its own context."""

    def __init__(self, instrumentation: Instrumentation, name: str, agent: Any) -> None:
        super().__init__(instrumentation, name, held_by(agent))
        self._agent = agent

    @contextmanager
    def current(self) -> Iterator[None]:
        """The tool runs in this block."""
        with self.running():
            yield

    def end(self, error: BaseException | None = None) -> None:
        """It has answered."""
        self.done(held_by(self._agent), asker=asker_of(self._agent))


@within
def tool(instrumentation: Instrumentation, used: Any, _: Any, state: Any, /, **__: Any) -> _ToolReduction | None:
    """A tool is used."""
    function = getattr(used, "_tool_func", None)
    own = str(getattr(function, "__module__", "")).startswith(_TOOLS)
    agent = state.get("agent") if own and isinstance(state, dict) else None
    return None if agent is None else _ToolReduction(instrumentation, used.tool_name, agent)
