"""Hooks of reducers: code of a framework or a program that removes, shortens or adds messages.

`reducer` makes the hook of a function from a `Reducer`, which describes how to read the function's arguments and
result. Such a function may be sync or async, and may change its messages in place. A `Reduction` is one run of a
reducer. It becomes a step of the current model call; if there is none, it is deferred to the next one (see `deferred`).
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context

from otel_assembly.budget.attempt import Attempt
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, DeferredAttempt, DeferredReduction
from otel_assembly.instrumentation.hooks import observe_any_hook
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.message_alignment import same
from otel_assembly.instrumentation.model_call import CALL, ClientRequest, ModelCall
from otel_assembly.observe.assembly import settling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_assembly.decision import Verdict
    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedStep


@dataclass(frozen=True, slots=True)
class Reducer:
    """Describes how a hook reads one reducer of a framework.

    Each attribute that is a function gets the arguments with which the reducer was called. If `by` is set, `policy`,
    `kind`, `config` and `said` get the result of `by` instead of these arguments.

    Attributes:
        before: Returns the input messages; a `ClientRequest` if the reducer may change the system prompts, too; None
            if this call is not to be recorded.
        after: Returns the output messages, in the same form as `before`. It gets the reducer's result and then the
            arguments. If it is None, the reducer changes its input in place, and `before` is called again.
        policy: The reducer's name, of low cardinality.
        kind: ``reduction`` or ``injection``; None if unknown.
        config: Returns the reducer's settings; numbers, booleans and enums among them are recorded.
        said: Returns more arguments for `ObservedStep.out`, such as verdicts and a budget. It gets the input, the
            output and then the arguments.
        always: True to record a step even if the reducer changed nothing; otherwise only a metric counts that.
        invoking_agent: Returns the agent that will call a model with the output. It is called if the reducer ran
            outside any model call.
        by: Returns the object that reduces, such as a plug-in; None if there is none, so that nothing is recorded.
        ends: Returns the agent whose next model call does not happen if the reducer raises; None if the error is
            handled.
        expected_errors: Exceptions that are recorded elsewhere, and are not recorded as a failure of the reducer.
    """

    before: Callable[..., Sequence[Any] | ClientRequest | None]
    after: Callable[..., Sequence[Any] | ClientRequest | None] | None = None
    policy: Callable[..., str] | str = ""
    kind: Callable[..., str | None] | str | None = "reduction"
    config: Callable[..., Mapping[str, Any]] | None = None
    said: Callable[..., Mapping[str, Any]] | None = None
    always: bool = False
    invoking_agent: Callable[..., InvokingAgent | None] | None = None
    by: Callable[..., Any] | None = None
    ends: Callable[..., InvokingAgent | None] | None = None
    expected_errors: tuple[type[BaseException], ...] = ()


class Reduction:
    """One run of a reducer, which becomes a step of a model call.

    Args:
        instrumentation: The framework's instrumentation.
        policy: The reducer's name, of low cardinality.
        before: The reducer's input.
        kind: ``reduction`` or ``injection``; None if unknown.
        config: The reducer's settings.
        call: The model call that the step belongs to; None for the current one.
        finds: Finds that model call instead, from the reducer's input and start time in nanoseconds since 1970. It also
            returns the call's messages at that time. It is called when there is something to record.
        agent_name: The agent's name, used if there is no model call.

    Attributes:
        before: The reducer's input.
        config: The reducer's settings.
        call: The model call that the step belongs to; None if there is none.
        step: The open step; None until something has to be recorded below it, such as a summarizer's model call.
        verdicts: Why messages were dropped, as far as that is known before the reducer ends.
        summarising: True while a summary is made whose span is open; model calls are then part of that span.
        over: Whether the reducer has ended; code that it started may still run.
        read: The messages that the last summarizer received.
        attempt: The last attempt to make a summary; None without one.
    """

    __slots__ = (
        "_agent_name",
        "_call_messages",
        "_context",
        "_deferred_attempts",
        "_find_call",
        "_instrumentation",
        "_kind",
        "_policy",
        "_started_ns",
        "attempt",
        "before",
        "call",
        "config",
        "over",
        "read",
        "step",
        "summarising",
        "verdicts",
    )

    def __init__(
        self,
        instrumentation: Instrumentation,
        policy: str,
        before: Sequence[Any],
        *,
        kind: str | None = "reduction",
        config: Mapping[str, Any] | None = None,
        call: ModelCall | None = None,
        finds: Callable[[Sequence[Any], int], tuple[ModelCall, Sequence[Any] | None]] | None = None,
        agent_name: str | None = None,
    ) -> None:
        self._instrumentation = instrumentation
        self._policy = policy
        self.before = list(before)
        self._kind = kind
        self.config = config or {}
        self._find_call = finds
        self._agent_name = agent_name
        self.call = CALL.get() if call is None and finds is None else call
        self._call_messages: Sequence[Any] | None
        self._call_messages = self.call.out if self.call is not None and self.call.messages is not None else None
        self._started_ns = time.time_ns()
        self._context = otel_context.get_current()
        self.step: ObservedStep | None = None
        self.verdicts: list[Verdict] = []
        self.summarising = False
        self.over = False
        self.read: Sequence[Any] = ()
        self.attempt: Attempt | None = None
        self._deferred_attempts: list[DeferredAttempt] = []

    def resolve_model_call(self) -> ModelCall | None:
        """Return the model call that the step belongs to; None if there is none."""
        if self.call is None and self._find_call is not None:
            self.call, self._call_messages = self._find_call(self.before, self._started_ns)
        return self.call

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the reducer in this block: a model that is called in it, such as a summarizer's, belongs to its step."""
        with context_value(REDUCTION, self):
            yield

    @contextmanager
    def in_outer_context(self) -> Iterator[None]:
        """Make the OpenTelemetry context in which the reducer was called current, instead of the step's."""
        token = otel_context.attach(self._context)
        try:
            yield
        finally:
            otel_context.detach(token)

    @contextmanager
    def tracked(
        self,
        ends: Callable[[], InvokingAgent | None] | None = None,
        expected_errors: tuple[type[BaseException], ...] = (),
    ) -> Iterator[None]:
        """Run the reducer in this block, as `running` does, and record an exception before it is raised further.

        Args:
            ends: Returns the agent whose next model call does not happen because of the exception; None if the call
                happens nevertheless.
            expected_errors: Exceptions that are recorded elsewhere.
        """
        try:
            with self.running():
                yield
        except BaseException as error:
            invoking_agent = ends() if ends is not None else None
            if invoking_agent is not None:
                self.ended(error, invoking_agent)
            elif self.step is not None or not isinstance(error, expected_errors):
                self.failed(error)
            raise

    def open(self) -> ObservedStep | None:
        """Open the step, with the reducer's start time and context; None without a model call or telemetry."""
        call = self.resolve_model_call()
        if self.step is None and call is not None:
            with self.in_outer_context():  # the reducer may have opened other spans since it was called
                call.open(self._started_ns)
            step = call.step(
                self._policy, self.before, kind=self._kind, config=self.config, started_ns=self._started_ns
            )
            if step is not None:
                self.step = step.__enter__()
        return self.step

    @contextmanager
    def compacting(
        self,
        model: str,
        tokens_in: Callable[[Callable[[str], int]], int],
        *,
        started_ns: int | None = None,
        model_spans: Sequence[Any] = (),
    ) -> Iterator[Attempt | None]:
        """Record an attempt to compact messages, such as a summarizer's model call, as a ``compact_block`` span.

        The block yields the attempt, or None if it is not recorded. The span is below the step. Without a model call,
        the attempt is deferred together with the reduction.

        Args:
            model: The model's name, or the name of other code that compacts.
            tokens_in: Returns the tokens of the input; it takes the function that counts the tokens of a text.
            started_ns: When the attempt started, if that was before this block.
            model_spans: Filled with the span contexts of the model calls. The ``compact_block`` links to those that
                started before it.
        """
        step = self.open()
        if self.call is None and not self.summarising:
            # The next model call opens the span, with the times of this attempt.
            attempt = self.attempt = Attempt(
                model,
                len(self._deferred_attempts) + 1,
                0,
                0,
                started_ns=started_ns or time.time_ns(),
                model_spans=model_spans,
            )
            self._deferred_attempts.append(DeferredAttempt(attempt, tokens_in))
            try:
                with settling(attempt):
                    yield attempt
            finally:
                attempt.ended_ns = time.time_ns()
            return
        if step is None or self.call is None or self.summarising:
            yield None
            return
        tokens = tokens_in(self.call.count)
        with step.compacting(model, tokens_in=tokens, started_ns=started_ns, model_spans=model_spans) as attempt:
            self.attempt = attempt
            yield attempt

    def adopt_deferred(self, invoking_agent: InvokingAgent) -> None:
        """Record in this step what summarizers did for an invoking agent outside any model call."""
        reductions = DEFERRED_REDUCTIONS.take(invoking_agent)
        self._record_attempts([attempt for reduction in reductions for attempt in reduction.attempts])

    def adopt_attempts(self, inner: Reduction) -> None:
        """Add the summarizers' attempts of an inner reducer, which raised, to those of this reducer."""
        self._deferred_attempts += inner._deferred_attempts

    def _record_attempts(self, attempts: Sequence[DeferredAttempt]) -> None:
        """Record attempts of summarizers that ran outside any model call as ``compact_block`` spans of this step."""
        step = self.open() if attempts else None
        for attempt in attempts:
            if step is not None and self.call is not None:
                attempt.record(self.call.count, step)

    def answered(self, attempt: Attempt, text: str) -> None:
        """Record the text that a summarizer returned in an attempt."""
        if self.step is not None:
            attempt.tokens_out = self.step.count(text)
        elif self._deferred_attempts:  # counted when the attempt is recorded, because the model is not known yet
            self._deferred_attempts[-1].text = text

    def done(
        self, after: Sequence[Any], *, always: bool = False, invoking_agent: InvokingAgent | None = None, **report: Any
    ) -> None:
        """Record the reducer's output in its model call, or defer the reduction to the next call of an invoking agent.

        If the reducer changed nothing, only a metric counts it. If reducers that it called have recorded its whole
        change, nothing more is recorded.

        Args:
            after: The reducer's output.
            always: True to record a step even if nothing changed.
            invoking_agent: The agent that will call a model with the output; used if there is no model call.
            report: Other arguments for `ModelCall.reduced`, such as verdicts or changed prompts.
        """
        self.over = True
        if self.verdicts:
            report["verdicts"] = self.verdicts
        prompts = report.get("prompts")
        has_details = any(value is not None for name, value in report.items() if name != "prompts")
        changed = always or self.step is not None or prompts is not None or not same(self.before, after)
        if changed and self.resolve_model_call() is not None and self._is_recorded(after, prompts) and not has_details:
            return  # a second step with the same change would only repeat it
        if self.step is not None:
            self.step.__exit__(None, None, None)
        if changed and self.call is not None:
            self.call.reduced(
                self._policy,
                self.before,
                after,
                step=self.step,
                since=self._call_messages,
                kind=self._kind,
                config=self.config,
                started_ns=self._started_ns,
                **report,
            )
        elif invoking_agent is not None and (changed or self._deferred_attempts):
            DEFERRED_REDUCTIONS.put(invoking_agent, self.to_deferred(after, report))
        elif not changed and self._kind == "reduction":
            agent_name = self.call.invoking_agent.agent_name if self.call is not None else self._agent_name
            self._instrumentation.observed.declined(self._policy, agent_name)

    def to_deferred(self, after: Sequence[Any], report: Mapping[str, Any]) -> DeferredReduction:
        """Return this reduction and its output as data that a later model call can record.

        Args:
            after: The reducer's output.
            report: Other arguments for `ModelCall.reduced`.
        """
        self.over = True
        if self.verdicts:
            report = {**report, "verdicts": self.verdicts}
        attempts = self._deferred_attempts
        return DeferredReduction(self._policy, self.before, list(after), self._kind, self.config, report, attempts)

    def _is_recorded(self, after: Sequence[Any], prompts: Sequence[str] | None) -> bool:
        """Whether inner reducers have recorded steps since the start whose output is this reducer's output."""
        call = self.call
        if self.step is not None or call is None or call.out is self._call_messages or not same(call.out, after):
            return False
        return prompts is None or list(prompts) == list(call.prompts_out or ())

    def failed(self, error: BaseException) -> None:
        """Record that the reducer raised or was cancelled.

        The assembly stays open: the caller may handle the exception, and still call the model.
        """
        step, self.over = self.open(), True
        if self.call is not None:
            self.call.problem = error
        if step is not None:
            step.__exit__(type(error), error, error.__traceback__)

    def ended(self, error: BaseException, invoking_agent: InvokingAgent) -> None:
        """Record that the reducer raised, so that an agent's next model call does not happen.

        Outside any model call, a separate assembly is recorded, which ends with the error.
        """
        own_call = ModelCall(self._instrumentation, invoking_agent) if self.call is None else None
        self.call = self.call or own_call
        self._record_attempts(self._deferred_attempts)
        self.failed(error)
        if own_call is not None:
            own_call.end(error)


#: The reducer that runs in this context; None if there is none. It may have ended: see `reducing`.
REDUCTION: Final[ContextVar[Reduction | None]] = ContextVar("otel_assembly_reduction", default=None)


def reducing() -> Reduction | None:
    """Return the reducer that runs in this context; None if there is none, or if it has ended but its tasks run on."""
    reduction = REDUCTION.get()
    return reduction if reduction is not None and not reduction.over else None


@contextmanager
def plugin_scope(instrumentation: Instrumentation, call: ModelCall) -> Iterator[None]:
    """Run a plug-in of this library in this block; it makes an assembly itself.

    The call's assembly ends before. A model that is called in the block, such as a summarizer's, is not recorded as a
    model call of the framework.
    """
    call.end()
    with context_value(CALL, None):
        plugin = Reduction(instrumentation, "", ())
        with plugin.running():
            yield
    plugin.over = True


def outer_span_hook(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wrap a function that records something about a reducer on the current span.

    While a reducer runs, its step is the current span. The wrapper makes the span current in which the reducer was
    called, so that the framework's own data is not written to the step.
    """
    return observe_any_hook(_observe_in_outer_context)(original, instrumentation)


def _observe_in_outer_context(_: Instrumentation, /, *__: Any, **___: Any) -> Observation:
    reduction = reducing()
    with reduction.in_outer_context() if reduction is not None else nullcontext():
        yield


def reducer(spec: Reducer) -> Wrap:
    """Return the hook of a sync or async function that reduces messages."""
    return observe_any_hook(reduces(spec))


def reduces(spec: Reducer) -> Callable[..., Observation]:
    """Return the observation of a function that reduces messages, for `observe_any_hook` and similar functions."""

    def observe(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        def evaluate(setting: Any) -> Any:
            return setting(*setting_args, **setting_kwargs) if callable(setting) else setting

        setting_args, setting_kwargs = args, kwargs
        if spec.by is not None:
            setting_args, setting_kwargs = (spec.by(*args, **kwargs),), {}
            if setting_args[0] is None:
                return
        prompts, before = _split_prompts(spec.before(*args, **kwargs))
        if before is None:
            return
        policy, kind, config = map(evaluate, (spec.policy, spec.kind, spec.config))
        reduction = Reduction(instrumentation, policy, before, kind=kind, config=config)
        ends = partial(spec.ends, *args, **kwargs) if spec.ends is not None else None
        with reduction.tracked(ends, spec.expected_errors):
            result = yield
        output: Any = spec.before(*args, **kwargs) if spec.after is None else spec.after(result, *args, **kwargs)
        prompts_after, after = _split_prompts(output)
        if after is None:
            return
        report: dict[str, Any] = {}
        if spec.said is not None:
            report.update(spec.said(reduction.before, after, *setting_args, **setting_kwargs))
        if prompts_after != prompts:
            report["prompts"] = prompts_after
        invoking_agent = None
        if spec.invoking_agent is not None and reduction.call is None:
            invoking_agent = spec.invoking_agent(*args, **kwargs)
        reduction.done(after, always=spec.always, invoking_agent=invoking_agent, **report)

    return observe


def _split_prompts(
    messages: Sequence[Any] | ClientRequest | None,
) -> tuple[Sequence[str] | None, Sequence[Any] | None]:
    """Return the system prompts, or None if unknown, and the messages."""
    return (messages.prompts, messages.messages) if isinstance(messages, ClientRequest) else (None, messages)
