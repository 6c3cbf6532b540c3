"""Reductions by LangChain's middleware and by graph nodes, and the summaries that a reducer requests from a model.

A reducer such as `SummarizationMiddleware` may truncate the messages before it sends them to the summarizer. `Summary`
compares the messages that a summary replaces with those that the model read: the former are compacted if the model read
them, or else dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason, OverflowCause, Verdict
from otel_assembly.instrumentation.clients import count_tokens
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT
from otel_assembly.instrumentation.message_alignment import identity_keys
from otel_assembly.instrumentation.middleware_calls import MiddlewareReduction
from otel_assembly.instrumentation.reducers import is_ours, no_summary, outcome_of, settings_of
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from otel_assembly.budget.attempt import Attempt
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: LangChain's own middleware that reduces, by module and class, with the name of its steps.
_POLICY_NAMES: Final = {
    ("langchain.agents.middleware.summarization", "SummarizationMiddleware"): "summarization",
    ("langchain.agents.middleware.context_editing", "ContextEditingMiddleware"): "context_editing",
}
#: LangMem's node that summarizes, by module and class; its steps have the node's name.
_SUMMARIZING_NODE: Final = ("langmem.short_term.summarization", "SummarizationNode")
#: Numeric attributes that LangGraph sets on each node, which are no settings of a reducer.
_NODE_ATTRIBUTES: Final = frozenset({"explode_args", "recurse", "trace", "func_accepts"})


class _SummarizerReduction(MiddlewareReduction):
    """The changes by a middleware or node whose model calls are its summarizer's."""

    running = Reduction.running  # `MiddlewareReduction` excludes model calls from the reduction


def begin_reduction(
    instrumentation: Instrumentation, owner: Any, before: Sequence[Any], model_node: str | None = None
) -> MiddlewareReduction:
    """Return the `Reduction` of a middleware or a node that is about to run; the caller runs it and records its output.

    The owner is the middleware, LangMem's summarizing node, or the name of any other node. A reducer of LangChain or
    LangMem has a name and settings. Any other owner need not be a reducer, so its step has the kind None: unless the
    step is already open, it is recorded only if the messages change, and an error is not recorded. `model_node` is the
    node that will call the model, if that is not the current node.
    """
    class_names, run = _class_names(owner), GRAPH_CONTEXT.run.get()
    # A subclass of LangChain's middleware is no known reducer: the program can have changed what it does.
    own_name = owner.name if _SUMMARIZING_NODE in class_names else _POLICY_NAMES.get(class_names[0])
    if own_name:
        report = StepReport(own_name, before, config=_settings(owner))
    else:
        report = StepReport(owner if isinstance(owner, str) else type(owner).__name__, before, kind=None)
    # A model that one of these classes or their subclasses calls is its summarizer. `ContextEditingMiddleware` calls no
    # model itself, but an edit of the program's that it runs can do so.
    may_summarize = not {*_POLICY_NAMES, _SUMMARIZING_NODE}.isdisjoint(class_names)
    return (_SummarizerReduction if may_summarize else MiddlewareReduction)(
        instrumentation,
        report,
        find_call=partial(GRAPH_CONTEXT.call_for_reducer, instrumentation, node=model_node),
        agent_name=run.name if run is not None else None,
    )


def _class_names(owner: Any) -> list[tuple[str, str]]:
    return [(base.__module__, base.__qualname__) for base in type(owner).__mro__]


def is_summarizing_node(owner: Any) -> bool:
    """Return True for LangMem's `SummarizationNode` and its subclasses."""
    return _SUMMARIZING_NODE in _class_names(owner)


def is_observed(owner: Any) -> bool:
    """Return True for middleware, except for otel-assembly's own plug-in, which records its assemblies itself."""
    module: Any = sys.modules.get("langchain.agents.middleware.types")
    base: Any = getattr(module, "AgentMiddleware", None)
    return isinstance(base, type) and isinstance(owner, base) and not is_ours(owner)


def _settings(owner: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    excluded = _NODE_ATTRIBUTES if is_summarizing_node(owner) else ()
    for holder in (owner, *getattr(owner, "edits", ())[:1]):  # `ContextEditingMiddleware` has its settings in `edits`
        settings |= settings_of(holder, excluded)
    # `SummarizationMiddleware` has limits such as ("tokens", 4000), alone, in a list, or as a dict.
    for name in ("keep", "trigger"):
        limits = getattr(owner, name, None)
        for limit in limits if isinstance(limits, list) else [limits]:
            pairs = limit.items() if isinstance(limit, Mapping) else [limit] if isinstance(limit, tuple) else ()
            settings |= {f"{name}_{unit}": value for unit, value in pairs}
    return settings


class Summary:
    """One summary; a context manager around the reducer's code that creates it.

    Args:
        reduction: The reduction, whose step is open.

    Attributes:
        needed: The tokens that the summarizer's input needed, if it was truncated to nothing; None otherwise.
        limit: The limit of the summarizer's input in tokens.
    """

    def __init__(self, reduction: Reduction, messages: Sequence[Any]) -> None:
        self.needed: int | None = None
        self.limit = 0
        self._reduction = reduction
        self._messages = messages
        self._read: Sequence[Any] | None = None
        self._attempt: Attempt | None = None
        self._attempt_span = ExitStack()

    def __enter__(self) -> Self:
        self._reduction.summary = self
        return self

    def __exit__(self, *raised: Any) -> None:
        self._reduction.summary = None
        self._attempt_span.__exit__(*raised)

    def begin(self, model: str, read: Sequence[Any]) -> None:
        """Start the ``compact_block`` span of the summarizer's call; there is none if it has no messages to read."""
        self._read, step, call = list(read), self._reduction.step, self._reduction.call
        assembly = call.assembly if call is not None else None
        if read and self._attempt is None and step is not None and assembly is not None:
            tokens_in = count_tokens(assembly.count, read)
            self._attempt = self._attempt_span.enter_context(step.compacting(model, tokens_in=tokens_in))

    def finish(self, text: str) -> None:
        """Record the text of the summary, and the verdicts on the messages that it replaces."""
        step, read = self._reduction.step, self._read
        if step is None or read is None:
            return
        if self._attempt is None:  # the summarizer's input was truncated to nothing, so all messages are lost
            if self.needed is not None:
                step.overflow(budget=self.limit, needed=self.needed, cause=OverflowCause.FRAMEWORK)
            self._add_verdict(self._messages, DecisionReason.OVER_BUDGET)
            return
        self._attempt.tokens_out = step.count(text)
        self._attempt.outcome = no_summary(text, read)
        if self._attempt.outcome is not None:
            self._add_verdict(self._messages, DecisionReason.POLICY_ERROR)
            return
        keys = identity_keys(read)
        unread = [message for message in self._messages if not identity_keys([message]) & keys]
        self._add_verdict(unread, DecisionReason.OVER_BUDGET)
        summarized = [message for message in self._messages if identity_keys([message]) & keys]
        self._add_verdict(summarized, DecisionReason.COMPACTED)

    def _add_verdict(self, messages: Sequence[Any], reason: DecisionReason) -> None:
        if messages:
            self._reduction.add_verdict(Verdict(messages, outcome_of(reason), reason))


def summary_hook(messages_of: Callable[..., Sequence[Any]]) -> Wrap:
    """Return the hook of a reducer's function, async or not, that returns the text of a summary.

    `messages_of` returns the messages that the summary replaces, from the function's arguments.
    """

    def observe(_: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        messages, reduction = messages_of(*args, **kwargs), reducing()
        if messages and reduction is not None and reduction.open() is not None:
            with Summary(reduction, messages) as summary:
                text = yield
                summary.finish(text if isinstance(text, str) else "")

    return observe_hook(observe)


def summarizer_input_hook(model: Callable[..., str]) -> Wrap:
    """Return the hook of a reducer's function that returns the messages for the summarizer, before it is called.

    `model` returns the summarizer's name, from the function's arguments.
    """

    def observe(_: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        messages, reduction = (yield), reducing()
        if reduction is not None and reduction.summary is not None:
            reduction.summary.begin(model(*args, **kwargs), messages)

    return observe_hook(observe)


#: Hook of ``SummarizationMiddleware._create_summary`` and ``_acreate_summary``.
create_summary = summary_hook(lambda _, messages_to_summarize=(), *__, **___: messages_to_summarize)
#: Hook of ``SummarizationMiddleware._trim_messages_for_summary``, whose result the summarizing model gets.
trim_for_summary = summarizer_input_hook(
    lambda middleware, *_, **__: type(getattr(middleware, "summarizer", None) or middleware.model).__name__
)
