"""Hooks of reducers: code of a framework or a program that removes, shortens or adds messages.

`reducer` makes the hook of a function from a generator that yields a `StepReport` with the function's input and returns
one with its output. Such a function may be sync or async, and may change its messages in place. A `Reduction` is one
run of a reducer. It becomes a step of the current model call; if there is none, it is deferred to the next one (see
`DeferredReductions`).
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry import context as otel_context

from otel_assembly.budget.attempt import Attempt, CompactionOutcome
from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.context_variables import CALL, REDUCTION
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.message_alignment import identity_keys, same
from otel_assembly.instrumentation.model_call import DEFERRED_REDUCTIONS, ClientRequest, ModelCall
from otel_assembly.messages.event_facts import EventKind, describe
from otel_assembly.observe.assembly import settling
from otel_assembly.observe.step_report import StepReport, SummarizerAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedStep

#: The observation of one call of a reducer. It yields what is known before the reducer runs, gets the reducer's result,
#: and returns the complete report. If it ends without a report, nothing is recorded.
ReducerObservation: TypeAlias = Generator[StepReport, Any, StepReport | None]


class Reduction:
    """One run of a reducer, which becomes a step of a model call.

    A hook creates it when the reducer is called, runs the reducer in `tracked` or `running`, and then calls `done`. If
    the reducer raises, `tracked` calls `failed` or `prevented_call` instead.

    Args:
        report: What is known before the reducer runs: its name, kind, settings and input.
        call: The model call that the step belongs to; None for the current one.
        find_call: Returns that model call instead, from the reducer's input and start time in nanoseconds since 1970;
            and the call's messages at that time. It is called when there is something to record.
        agent_name: The agent's name, used if there is no model call.

    Attributes:
        report: What the reducer has done, as far as it is known.
        call: The model call that the step belongs to; None if there is none.
        step: The open step; None until something has to be recorded below it, such as a summarizer's model call.
        summary: The summary that the reducer makes now, if it has a span; model calls are then part of that span.
        over: Whether the reducer has ended; code that it started may still run.
        read: The messages that the last summarizer received.
        attempt: The last attempt to make a summary; None without one.
    """

    def __init__(
        self,
        instrumentation: Instrumentation,
        report: StepReport,
        *,
        call: ModelCall | None = None,
        find_call: Callable[[Sequence[Any], int], tuple[ModelCall, Sequence[Any] | None]] | None = None,
        agent_name: str | None = None,
    ) -> None:
        self._instrumentation = instrumentation
        self.report = report
        self._find_call = find_call
        self._agent_name = agent_name
        self.call = CALL.get() if call is None and find_call is None else call
        self._call_messages: Sequence[Any] | None
        self._call_messages = self.call.out if self.call is not None and self.call.messages is not None else None
        self._started_ns = time.time_ns()
        self._context = otel_context.get_current()
        self.step: ObservedStep | None = None
        self.summary: Any = None
        self.over = False
        self.read: Sequence[Any] = ()
        self.attempt: Attempt | None = None
        self._deferred_attempts: list[SummarizerAttempt] = []

    @property
    def before(self) -> Sequence[Any]:
        """The reducer's input."""
        return self.report.before

    @before.setter
    def before(self, messages: Sequence[Any]) -> None:
        self.report = replace(self.report, before=messages)

    def add_verdict(self, verdict: Verdict) -> None:
        self.report = replace(self.report, verdicts=(*self.report.verdicts, verdict))

    def resolve_model_call(self) -> ModelCall | None:
        """Return the model call that the step belongs to; None if there is none."""
        if self.call is None and self._find_call is not None:
            self.call, self._call_messages = self._find_call(self.before, self._started_ns)
        return self.call

    def running(self) -> AbstractContextManager[None]:
        """Run the reducer in this block: a model that is called in it, such as a summarizer's, belongs to its step."""
        return context_value(REDUCTION, self)

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
        uncalled_agent: Callable[[], InvokingAgent | None] | None = None,
        expected_errors: tuple[type[BaseException], ...] = (),
    ) -> Iterator[None]:
        """Run the reducer in this block, as `running` does, and record an exception before it is raised further.

        `uncalled_agent` returns the agent whose next model call the exception prevents; None if it prevents none.
        Exceptions of the types `expected_errors` are recorded elsewhere.
        """
        try:
            with self.running():
                yield
        except BaseException as error:
            invoking_agent = uncalled_agent() if uncalled_agent is not None else None
            if invoking_agent is not None:
                self.prevented_call(error, invoking_agent)
            elif self.step is not None or not isinstance(error, expected_errors):
                self.failed(error)
            raise

    def open(self) -> ObservedStep | None:
        """Open the step now, so that spans which start in the reducer are below it; usually `done` opens it.

        An open step is recorded even if the reducer changes nothing. It has the reducer's start time and context. The
        result is None without a model call or telemetry.
        """
        call = self.call or self.resolve_model_call()
        if self.step is None and call is not None:
            is_outside = otel_context.get_current() is self._context  # else the reducer has opened other spans since
            with nullcontext() if is_outside else self.in_outer_context():
                step = call.begin_step(self.report, self._started_ns)
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
            model_spans: Filled with the spans of the model calls. The ``compact_block`` links to those that started
                before it.
        """
        step = self.open()
        if self.call is None and self.summary is None:
            # The next model call opens the span, with the times of this attempt.
            attempt = self.attempt = Attempt(
                model,
                len(self._deferred_attempts) + 1,
                0,
                0,
                started_ns=started_ns or time.time_ns(),
                model_spans=model_spans,
            )
            self._deferred_attempts.append(SummarizerAttempt(attempt, tokens_in))
            try:
                with settling(attempt):
                    yield attempt
            finally:
                attempt.ended_ns = time.time_ns()
            return
        assembly = self.call.assembly if self.call is not None else None
        if step is None or assembly is None or self.summary is not None:  # a `Summary` has a span already
            yield None
            return
        tokens = tokens_in(assembly.count)
        with step.compacting(model, tokens_in=tokens, started_ns=started_ns, model_spans=model_spans) as attempt:
            self.attempt = attempt
            yield attempt

    def adopt_deferred(self, invoking_agent: InvokingAgent) -> None:
        """Record in this step, whose reducer uses the summary, what summarizers did for an agent outside any call."""
        reductions = DEFERRED_REDUCTIONS.take(invoking_agent)
        self._record_attempts([attempt for reduction in reductions for attempt in reduction.attempts])

    def adopt_attempts(self, inner: Reduction) -> None:
        """Add the summarizers' attempts of an inner reducer, which raised, to those of this reducer."""
        self._deferred_attempts += inner._deferred_attempts

    def _record_attempts(self, attempts: Sequence[SummarizerAttempt]) -> None:
        """Record attempts of summarizers that ran outside any model call as ``compact_block`` spans of this step."""
        step = self.open() if attempts else None
        for attempt in attempts:
            if step is not None:
                step.record_attempt(attempt)

    def record_summary(self, attempt: Attempt, text: str) -> None:
        """Record the text that a summarizer returned in an attempt."""
        if self.step is not None:
            attempt.tokens_out = self.step.count(text)
        elif self._deferred_attempts:  # counted when the attempt is recorded, because the model is not known yet
            self._deferred_attempts[-1].text = text

    def done(self, after: Sequence[Any], *, always: bool = False, invoking_agent: InvokingAgent | None = None) -> None:
        """Record the reducer's output in its model call, or defer the reduction to the next call of `invoking_agent`.

        If the reducer changed nothing and its step is not open, only a metric counts it, unless `always` is True. If
        reducers that it called have recorded its whole change, nothing more is recorded. Set other details, such as
        verdicts, in `report` before. If no model call is being prepared, and no agent is given that will make one, the
        reduction is not recorded.
        """
        self.over = True
        self.report = report = replace(self.report, after=after)
        changed = always or self.step is not None or report.prompts is not None or not same(report.before, after)
        call = (self.call or self.resolve_model_call()) if changed else None
        if call is not None and not report.has_details and self._is_recorded(report):
            return  # a second step with the same change would only repeat it
        if self.step is not None:
            self.step.__exit__(None, None, None)
        if call is not None:
            call.reduced(report, step=self.step, since=self._call_messages, started_ns=self._started_ns)
        elif invoking_agent is not None and (changed or self._deferred_attempts):
            DEFERRED_REDUCTIONS.put(invoking_agent, self.to_deferred(after))
        elif not changed and report.kind == "reduction":
            agent_name = self.call.invoking_agent.agent_name if self.call is not None else self._agent_name
            self._instrumentation.observed.declined(report.policy, agent_name)

    def to_deferred(self, after: Sequence[Any]) -> StepReport:
        """Return a report with the reducer's output that a later model call can record; the output is copied."""
        self.over = True
        return replace(self.report, after=list(after), attempts=self._deferred_attempts)

    def _is_recorded(self, report: StepReport) -> bool:
        """Whether inner reducers have recorded steps since the start whose output is this reducer's output."""
        call, after = self.call, report.after or ()
        if self.step is not None or call is None or call.out is self._call_messages or not same(call.out, after):
            return False
        return report.prompts is None or list(report.prompts) == list(call.prompts_out or ())

    def discard(self) -> None:
        """End the reducer without recording its output. An open step ends, because its context is attached."""
        self.over = True
        if self.step is not None:
            self.step.__exit__(None, None, None)

    def failed(self, error: BaseException) -> None:
        """Record that the reducer raised or was cancelled.

        The assembly stays open: the caller may handle the exception, and still call the model.
        """
        step, self.over = self.open(), True
        if self.call is not None:
            self.call.problem = error
        if step is not None:
            step.__exit__(type(error), error, error.__traceback__)

    def prevented_call(self, error: BaseException, invoking_agent: InvokingAgent) -> None:
        """Record that the reducer raised, so that an agent's next model call does not happen.

        Outside any model call, no later call will record the reduction. So an assembly without a model call is
        recorded now, which ends with the error.
        """
        own_call = ModelCall(self._instrumentation, invoking_agent) if self.call is None else None
        self.call = self.call or own_call
        self._record_attempts(self._deferred_attempts)
        self.failed(error)
        if own_call is not None:
            own_call.end(error)


def reducing() -> Reduction | None:
    """Return the reducer that runs in this context; None if there is none, or if it has ended but its tasks run on."""
    reduction = REDUCTION.get()
    return reduction if reduction is not None and not reduction.over else None


@contextmanager
def plugin_scope(instrumentation: Instrumentation, call: ModelCall) -> Iterator[None]:
    """Run a plug-in of this library in this block: end the assembly of `call`, because the plug-in makes its own.

    A model that is called in the block, such as a summarizer's, is not recorded as a model call of the framework. After
    it, the caller continues `call` with the plug-in's output (`ModelCall.replaced_by_plugin`).
    """
    call.end()
    with context_value(CALL, None):
        # Clients add their calls in the block to this reduction, which is never recorded.
        unrecorded = Reduction(instrumentation, StepReport(""))
        try:
            with unrecorded.running():
                yield
        finally:
            unrecorded.over = True


def reducer(
    observe: Callable[..., ReducerObservation],
    *,
    invoking_agent: Callable[..., InvokingAgent | None] | None = None,
    uncalled_agent: Callable[..., InvokingAgent | None] | None = None,
    expected_errors: tuple[type[BaseException], ...] = (),
) -> Wrap:
    """Return the hook of a sync or async function that reduces messages.

    Args:
        observe: A generator function, called with the `Instrumentation` and the reducer's arguments. It yields a
            `StepReport` with the reducer's input. Then the reducer runs, its result is sent into the generator, and
            the generator returns the complete report. If it returns before it yields, the call is not recorded; if it
            returns None or a report without output afterwards, the step is not.
        invoking_agent: Returns the agent that will call a model with the output, from the function's arguments. It is
            called if the reducer ran outside any model call; the step is then deferred to this agent's next call.
        uncalled_agent: Returns the agent whose next model call does not happen if the reducer raises; None if the error
            is handled. It gets the function's arguments.
        expected_errors: Exceptions that are recorded elsewhere, and are not recorded as a failure of the reducer.

    Example:
        >>> def window(_, keep, messages):
        ...     report = StepReport("window", messages, config={"size": keep.size})
        ...     result = yield report
        ...     return replace(report, after=result, reason=DecisionReason.OUTSIDE_WINDOW)
        >>> hook = Hook("clerks", "Window.reduce", reducer(window), "messages that a window drops")
    """
    return observe_hook(
        observe_reducer(
            observe, invoking_agent=invoking_agent, uncalled_agent=uncalled_agent, expected_errors=expected_errors
        )
    )


def observe_edits(report: StepReport, read: Callable[[], ClientRequest]) -> Generator[StepReport, Any, StepReport]:
    """Observe a reducer that edits messages in place; `read` returns the messages and prompts, before and after."""
    before = read()
    report = replace(report, before=before.messages, prompts_before=before.prompts)
    yield report
    after = read()
    return replace(report, after=after.messages, prompts=after.prompts)


def observe_reducer(
    observe: Callable[..., ReducerObservation],
    *,
    always: bool = False,
    invoking_agent: Callable[..., InvokingAgent | None] | None = None,
    uncalled_agent: Callable[..., InvokingAgent | None] | None = None,
    expected_errors: tuple[type[BaseException], ...] = (),
) -> Callable[..., Observation]:
    """Return the observation of a reducer for `observe_hook`; the arguments are those of `reducer`.

    If `always` is True, a step is recorded even if the reducer changed nothing; otherwise only a metric counts that. If
    the reducer raises, `observe` is closed without the exception, which `Reduction.tracked` records.
    """

    def observation(instrumentation: Instrumentation, /, *args: Any, **kwargs: Any) -> Observation:
        reducer_observation = observe(instrumentation, *args, **kwargs)
        input_report = next(reducer_observation, None)
        if input_report is None:
            return
        reduction = Reduction(instrumentation, input_report)
        find_uncalled_agent = None if uncalled_agent is None else partial(uncalled_agent, *args, **kwargs)
        with reduction.tracked(find_uncalled_agent, expected_errors):
            result = yield
        try:
            reducer_observation.send(result)
            raise RuntimeError("the observation of a reducer must yield once, and then return its report")
        except StopIteration as end:
            report: StepReport | None = end.value
        except BaseException:
            reduction.discard()
            raise
        after = report.after if report is not None else None
        if report is None or after is None:
            reduction.discard()
            return
        if report.prompts == report.prompts_before:
            report = replace(report, prompts=None)
        # The hook of a summarizer that ran in the reducer may have added verdicts, which are more precise.
        reduction.report = replace(report, verdicts=reduction.report.verdicts or report.verdicts)
        next_agent = invoking_agent(*args, **kwargs) if invoking_agent is not None and reduction.call is None else None
        reduction.done(after, always=always, invoking_agent=next_agent)

    return observation


def compacted_verdict(reduction: Reduction, after: Sequence[Any], summary: Any = None) -> Verdict:
    """Return the verdict on the messages that a reducer replaced with a summary: they are compacted.

    These are the removed messages that the summarizer read, if its call was successful, and earlier summaries. If no
    call of a summarizer was captured, all removed messages count. `summary` is the message with the summary, if the
    reducer adds to the summarizer's text; its tokens are counted.
    """
    attempt, call = reduction.attempt, reduction.call
    is_successful = attempt is not None and attempt.outcome is CompactionOutcome.COMPACTED
    kept, read = identity_keys(after), identity_keys(reduction.read if is_successful else ())
    removed = [message for message in reduction.before if not identity_keys([message]) & kept]
    compacted = [
        message
        for message in removed
        if attempt is None or identity_keys([message]) & read or describe(message).kind is EventKind.SUMMARY
    ]
    if attempt is not None and is_successful and call is not None and summary is not None:
        attempt.tokens_out = call.instrumentation.observed.meter(call.model).event(describe(summary))
    return Verdict(compacted, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)
