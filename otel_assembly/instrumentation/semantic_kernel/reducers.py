"""Histories that reduce themselves: each time is a step of the next call that is made with what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semantic_kernel.contents.chat_history import ChatHistory

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.hooks import observe_async_hook
from otel_assembly.instrumentation.known_reducers import known_of
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.reducers import is_ours, policy_name, settings_of
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.instrumentation.semantic_kernel.calls import invoking_agent_of, looked_at
from otel_assembly.instrumentation.semantic_kernel.messages import is_prompt
from otel_assembly.instrumentation.summaries import summed_up

if TYPE_CHECKING:
    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

_PACKAGES: Final = ("semantic_kernel",)
_TRUNCATION, _SUMMARIZATION = "truncation", "summarization"
_NAMES: Final = {"ChatHistoryTruncationReducer": _TRUNCATION, "ChatHistorySummarizationReducer": _SUMMARIZATION}


@observe_async_hook
def reduces(instrumentation: Instrumentation, history: Any, /, *_: Any, **__: Any) -> Observation:
    """Around ``reduce`` of a class of histories; what that asks another one for is a part of it."""
    if reducing() is not None:
        return
    looked_at(history)
    policy, known = policy_name(history, _PACKAGES, names=_NAMES), known_of(type(history), _NAMES, _PACKAGES)
    reduction = Reduction(instrumentation, policy, history.messages, config=settings_of(history))
    try:
        with reduction.running():
            result = yield
    except BaseException as error:
        reduction.ended(error, invoking_agent_of(history))
        raise
    left = result if isinstance(result, ChatHistory) else history
    after = looked_at(left, told=True)
    if is_ours(history):
        return  # it has told of its own assembly
    # System prompts that stay in front are none of its affair; one that goes, it has dropped.
    prompts = set(map(id, in_front(left.messages, is_prompt)[0]))
    reduction.before = [message for message in reduction.before if id(message) not in prompts]
    said: dict[str, Any] = {} if known is None else {"reason": DecisionReason.OUTSIDE_WINDOW}
    if known == _SUMMARIZATION:
        said["verdicts"] = summed_up(reduction, after)
    reduction.done(after, invoking_agent=invoking_agent_of(left), **said)
