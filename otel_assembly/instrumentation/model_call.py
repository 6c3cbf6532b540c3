"""`ModelCall`: one model call of a framework while it is prepared, which becomes one assembly.

A model call starts with the first observation of its messages, such as a reducer's input, and ends when the provider
client is called. Its input is the framework's messages, and each reducer on the way is a step. Differences between the
last step's output and the client request that no hook accounts for become one more step, named `framework`.

While a call is prepared, the context variable `CALL` contains it. A reduction outside any call is deferred to the next
call of the same invoking agent in the same conversation (see `deferred`).

A call is in one of three states (`CallState`). Each observation of messages goes back to PREPARING, because a call can
be repeated, as in a retry. It then has a new assembly with the same input and steps:

    PREPARING --client_called--> SENT
    PREPARING --end-----------> ENDED    only if the assembly's span is open
    SENT, ENDED --set_input, observe_messages, begin_step, reduced, open--> PREPARING
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace

from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, DeferredReductions
from otel_assembly.instrumentation.instrumented import context_value, on_exit
from otel_assembly.instrumentation.message_alignment import insert_gaps, locate, replace_at, same, same_objects
from otel_assembly.instrumentation.reducers import FRAMEWORK
from otel_assembly.instrumentation.rendered import find_rendering
from otel_assembly.observe.conversations import suppress_errors
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from otel_assembly.decision import Verdict
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.lazy_runs import LazyRun
    from otel_assembly.instrumentation.rendered import Rendering
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep

#: The attributes that change while the messages of a call are prepared, except the list of steps.
_STATE: Final = ("messages", "out", "prompts", "_prompts_out", "_is_complete", "_stage")


class ClientRequest(NamedTuple):
    """The arguments with which a provider's client is called.

    Attributes:
        messages: The messages after the system prompts, in the framework's own types.
        prompts: The system prompts before the messages; None if they did not change while the call was prepared.
        tools: The schemas of the tools that the model may call; empty if unknown.
        model: The model's name; None if unknown.
        window: The model's limit in tokens; None if unknown. It is a `ListedWindow` if the user cannot set the limit.
        invoking_agent: The invoking agent, used if no model call is being prepared.
        call: The model call for which the messages were prepared; used if the context variable `CALL` is not set.
        client: The rules for what the client adds around messages; None if only the model's name is known.
        unknown: True if the provider stores earlier messages, so that the model's whole input cannot be read.
    """

    messages: Sequence[Any]
    prompts: Sequence[str] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    model: str | None = None
    window: int | None = None
    invoking_agent: InvokingAgent = InvokingAgent()
    call: ModelCall | None = None
    client: ClientRules | None = None
    unknown: bool = False


class RecordedStep(NamedTuple):
    """A step of a model call.

    Attributes:
        report: What the step did to all messages of the call; `after` is never None.
        step: The step in the call's assembly.
    """

    report: StepReport
    step: ObservedStep

    @property
    def messages(self) -> list[Any]:
        """All messages of the call after the step."""
        return [] if self.report.after is None else list(self.report.after)


class CallState(Enum):
    """The state of a model call; see the module's text for the transitions."""

    PREPARING = "preparing"
    #: A client was called with the messages, and the assembly has ended.
    SENT = "sent"
    #: The assembly has ended, or there is none, and no client was called with it.
    ENDED = "ended"


class ModelCall(TrackedRun):
    """One model call, from the first observation of its messages until the client is called: one assembly.

    Attributes:
        invoking_agent: The agent or graph node that makes the call.
        messages: The input, which is the framework's messages before any step; None until the first observation.
        out: The messages after the last step.
        prompts: The system prompts before any step; None until they are known.
        tools: The schemas of the tools.
        model: The model's name.
        window: The model's limit in tokens.
        name: The assembly's name; it distinguishes assemblies without a model call, such as a compaction.
        sent: How often a client was called with this call's messages.
        unknown: True if the input cannot be read; the client request is then recorded as the input.
        client: The rules for what the client adds around messages; None if unknown.
        run: The run that the call belongs to, if the run's span may have to be opened together with the assembly.
        problem: The exception of the last reducer; its caller may have handled it.
        ends_before_client_span: True if the assembly ends with its last step instead of when the client is called,
            because the client's span may be open by then.
    """

    ends_before_client_span = False

    def __init__(
        self,
        instrumentation: Instrumentation,
        invoking_agent: InvokingAgent = InvokingAgent(),  # noqa: B008  # a tuple
        *,
        messages: Sequence[Any] | None = None,
        prompts: Sequence[str] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        model: str | None = None,
        window: int | None = None,
        name: str | None = None,
    ) -> None:
        self.instrumentation = instrumentation
        self.invoking_agent = invoking_agent
        self.messages: list[Any] | None = None
        self.out: list[Any] = []
        self.prompts = prompts
        self.tools = tools
        self.model = model
        self.window = window
        self.name = name
        self.sent = 0
        self.unknown = False
        self.client: ClientRules | None = None
        self.run: LazyRun | None = None
        self.problem: BaseException | None = None
        self._prompts_out: Sequence[str] | None = prompts
        #: Whether `messages` is the whole input; a reducer may have received only a part of it.
        self._is_complete = False
        #: The number of assemblies that plug-ins of this library have made of this call's messages.
        self._stage = 0
        self._assembly: ObservedAssembly | None = None
        self._recorded_steps: list[RecordedStep] = []
        self._state = CallState.PREPARING
        if messages is not None:
            self.set_input(messages)

    def set_input(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None) -> None:
        """Set the whole input of the call: the framework's messages and system prompts before any step.

        If messages were observed before, a difference from the last step's output becomes a step `framework`.
        """
        self._prepare()
        if self.messages is None:
            self._first_observation(messages)
        else:
            self.observe_messages(messages)
        self._is_complete = True
        if self.prompts is None:
            self.prompts = self._prompts_out = prompts

    def set_model_info(
        self, *, tools: Sequence[Mapping[str, Any]] = (), model: str | None = None, window: int | None = None
    ) -> None:
        """Set the tools, the model's name and its limit in tokens, as far as they are not known yet."""
        self.tools = self.tools or tools
        self.model = self.model or model
        self.window = self.window or window

    def open(self, started_ns: int | None = None) -> None:
        """Open the assembly's span in the current context, if it is not open yet.

        Args:
            started_ns: The start time; None for the current time.
        """
        self._prepare()
        self._prepare_assembly(started_ns)

    def count(self, text: str) -> int:
        """Return the tokens of a text for the call's model; 0 if nothing is recorded."""
        return self._assembly.count(text) if self._assembly is not None else 0

    def begin_step(self, report: StepReport, started_ns: int | None = None) -> ObservedStep | None:
        """Begin the step of a reducer, and return the context manager in which the reducer runs.

        Call `reduced` with the step and the reducer's output afterwards.

        Args:
            report: The reducer and its input.
            started_ns: When the reducer started, if it has already; None for the current time.

        Returns:
            None if nothing is recorded.
        """
        self._prepare()
        self._first_observation(report.before)
        return self._begin_step(report, started_ns)

    def reduced(
        self,
        report: StepReport,
        *,
        step: ObservedStep | None = None,
        since: Sequence[Any] | None = None,
        started_ns: int | None = None,
    ) -> bool:
        """Record the output of a reducer, whose input may be a part of the call's messages.

        Args:
            report: What the reducer did.
            step: The reducer's step, if it is open.
            since: The call's messages when the reducer started, if other reducers ran in the meantime.
            started_ns: When the reducer started, if no step is open.

        Returns:
            False if nothing was recorded: none of the input's messages belongs to this call, or telemetry is off.
        """
        before = report.before
        self._prepare()
        self._first_observation(before)
        whole = self.out if since is None else since
        places = locate(whole, before)
        if places is None:
            places = [place for message in before for place in locate(whole, [message]) or ()]
            if not places:
                return False  # the reducer worked on messages of another conversation or call
            if step is None:  # code without a hook changed the messages before the reducer ran: record that first
                self.observe_messages(before)
                whole, places = self.out, list(range(len(before)))
        if step is None:
            step = self._begin_step(report, started_ns)
        if step is None:
            return False
        if report.verdicts and len(places) == len(before):  # the reducer may have received copies of the messages
            report = report.with_originals(dict(zip(map(id, before), map(whole.__getitem__, places), strict=True)))
        after = before if report.after is None else report.after
        self._record_step(replace(report, after=replace_at(whole, places, after)), step)
        return True

    def replay_deferred(self, report: StepReport) -> None:
        """Record a reduction that ran before this call existed as a step of this call."""
        self._prepare()
        self._first_observation(report.before)
        step = self._begin_deferred_step(report)
        if step is not None:
            self.reduced(report, step=step)

    def fork(self, state: int | None = None) -> Self:
        """Return a new call with the input and the steps of this one.

        An agent that reduces its history once for all model calls of a run needs one fork for each of them.

        Args:
            state: The index in `states` of the messages with which the new call continues; None for the last ones.
        """
        forked = copy(self)
        forked._reset_to(self._recorded_steps[:state])  # noqa: SLF001  # of this class
        return forked

    def apply_deferred(self, invoking_agent: InvokingAgent) -> None:
        """Record the deferred reductions of an invoking agent as the next steps of this call, the oldest first."""
        for report in DEFERRED_REDUCTIONS.take(invoking_agent):
            self._prepare()
            self.observe_messages(report.before)
            originals = dict(zip(map(id, report.before), self.out, strict=True))
            self._apply_deferred_step(report.with_originals(originals))

    def observe_messages(
        self,
        messages: Sequence[Any],
        *,
        prompts: Sequence[str] | None = None,
        policy: str = FRAMEWORK,
        kind: str | None = None,
        verdicts: Sequence[Verdict] = (),
    ) -> None:
        """Observe the messages that a framework uses next; if they differ from the last output, record a step.

        A change of the system prompts is recorded as a step, too. The first known prompts are part of the input.

        Args:
            messages: The messages.
            prompts: The system prompts; None if unknown.
            policy: The name of the code that changed the messages.
            kind: ``reduction`` or ``injection``; None if unknown.
            verdicts: Why messages were dropped, if that is known.
        """
        self._prepare()
        self._first_observation(messages)
        if not self._is_complete and not same(self.out, messages):
            self._add_surrounding(messages)
        prompts_changed = False
        if prompts is not None and self.prompts is None:
            self.prompts = self._prompts_out = prompts
        elif prompts is not None:
            prompts_changed = list(prompts) != list(self._prompts_out or ())
        if prompts_changed or not same(self.out, messages):
            report = StepReport(
                policy,
                self.out,
                list(messages),
                kind=kind,
                prompts=prompts if prompts_changed else None,
                verdicts=verdicts or self.why(self.out, messages),
            )
            step = self._begin_step(report)
            if step is not None:
                self._record_step(report, step)

    @contextmanager
    def scoped(self) -> Iterator[None]:
        """At the end of the block, end the assembly if it is open, and undo the steps that the block recorded.

        Use this around a middleware that calls the next one, down to the client. An outer middleware may call it
        several times, and each time the middleware makes its changes again, starting from the same messages.
        """
        self._prepare()
        rollback = self.checkpoint()
        try:
            with on_exit(self.end):
                yield
        finally:
            rollback()

    def checkpoint(self) -> Callable[[], None]:
        """Save the messages and steps, and return a function that restores them.

        The function does nothing while the call's assembly is open.
        """
        state, steps = {name: getattr(self, name) for name in _STATE}, [*self._recorded_steps]

        def rollback() -> None:
            if self._assembly is None or self.ended:
                self._recorded_steps, self._state = [*steps], CallState.ENDED
                for name, value in state.items():
                    setattr(self, name, value)

        return rollback

    def replaced_by_plugin(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None) -> None:
        """Continue after a plug-in of this library, which has made an assembly with this output itself.

        The steps before the plug-in become an assembly without a model call. Only later steps are recorded in the
        assembly of this call.
        """
        self.end()
        self._assembly, self._state, self._stage = None, CallState.PREPARING, self._stage + 1
        self.messages, self.out, self._is_complete = list(messages), list(messages), True
        self._recorded_steps, self._prompts_out, self.prompts, self.sent = [], prompts, prompts, 0

    def client_called(self, request: ClientRequest) -> None:
        """Compare the messages of a client request with the last step's output, and end the assembly.

        Differences become one more step. After a plug-in of this library, no assembly is recorded if nothing changed.
        """
        self._prepare()
        self.model, self.tools = request.model or self.model, request.tools or self.tools
        self.window = request.window or self.window
        self.client = request.client or self.client
        self.unknown = self.unknown or request.unknown
        if self._stage and not self.sent and not self._recorded_steps and self._is_output(request):
            self.sent += 1
            return  # the plug-in's own assembly has recorded this prompt
        assembly = self._prepare_assembly()
        if assembly is None:
            return
        with suppress_errors(assembly.fail):
            rendering = self._find_rendering(request)
            if rendering is None:
                self.observe_messages(request.messages, prompts=request.prompts)
            else:
                if not self._is_complete:  # the program's new message belongs to the input, like the rendered ones
                    self._add_surrounding([*self.out, *rendering.beside])
                self.observe_messages(rendering.messages, prompts=rendering.prompts, verdicts=rendering.verdicts)
        self._close(called=True)

    def _find_rendering(self, request: ClientRequest) -> Rendering | None:
        """Find messages of the call that the request contains as text within a prompt; None if there are none."""
        if not self.out or self.unknown or same_objects(self.out, request.messages):
            return None
        return find_rendering(self.out, request.messages, request.prompts or (), self._prompts_out or ())

    @property
    def ended(self) -> bool:
        """Whether the call's assembly has ended; a later observation starts a new assembly for a repeated call."""
        return self._state is not CallState.PREPARING

    @property
    def prompts_out(self) -> Sequence[str] | None:
        """The system prompts after the last step; None until they are known."""
        return self._prompts_out

    @property
    def states(self) -> list[Sequence[Any]]:
        """The messages of the input, and after each step."""
        return [self.messages or (), *(recorded.messages for recorded in self._recorded_steps)]

    def end(self, error: BaseException | None = None, *, stays: bool = False) -> None:
        """End the call's assembly without a model call; does nothing if no assembly is open.

        Args:
            error: The exception because of which no model is called; None without an exception.
            stays: True if the changes of the steps remain in effect despite the exception; see `ObservedAssembly.end`.
        """
        if self._assembly is not None and not self.ended:
            self._close(error, stays=stays)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this call the current one (`CALL`) in a block, which must not stay open across a ``yield``."""
        with context_value(CALL, self):
            yield

    def fail(self, problem: Exception) -> None:
        """Do not export the assembly, because an error made its data wrong; the error is counted."""
        if self._assembly is not None:
            self._assembly.fail(problem)

    def why(self, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Verdict]:
        """Return verdicts on messages that code without a hook dropped; none, unless a subclass overrides this method.

        Args:
            before: The messages after the last step.
            after: The messages that were observed next.
        """
        return ()

    def calling(self) -> AbstractContextManager[Any]:
        """Return the context manager in which the client runs: the context of the call's run, if there is one."""
        return self.run.inside_unless_traced() if self.run is not None else nullcontext()

    @property
    def done_ns(self) -> int:
        """When the last step ended, in nanoseconds since 1970; 0 without a step."""
        return self._assembly.done_ns if self._assembly is not None else 0

    @property
    def assembly_reference(self) -> object:
        """A reference to the last assembly, on which a later halt can be recorded; None without an assembly."""
        return self._assembly.recording.assembly_reference if self._assembly is not None else None

    def _is_output(self, request: ClientRequest) -> bool:
        """Whether a client request has the messages and prompts of the last step."""
        if (
            request.prompts is not None
            and self._prompts_out is not None
            and list(request.prompts) != list(self._prompts_out)
        ):
            return False
        return same(self.out, request.messages)

    def _prepare_assembly(self, started_ns: int | None = None) -> ObservedAssembly | None:
        """Return the call's assembly; None if nothing is recorded.

        If there is none, one is made. Its span is opened below the span of the call's run, which is opened first.

        Args:
            started_ns: The start time of a new assembly; None for the current time.
        """
        if self._assembly is None:
            with self.run.with_span() if self.run is not None else nullcontext():
                self._assembly = self.instrumentation.observed.prepare(
                    name=self.name,
                    agent_name=self.invoking_agent.agent_name,
                    model=self.model,
                    conversation_id=self.invoking_agent.conversation_id,
                    started_ns=started_ns,
                )
        return self._assembly

    def _first_observation(self, messages: Sequence[Any]) -> None:
        """On the first observation of messages, set the input; deferred reductions become the first steps.

        A deferred reduction belongs here if its output is among the messages. The input is what the messages were
        before the oldest such reduction.
        """
        if self.messages is not None:
            return
        original: list[Any] = list(messages)
        deferred: list[tuple[StepReport, list[Any]]] = []  # with all messages after the reduction
        for report in reversed(DEFERRED_REDUCTIONS.take(self.invoking_agent)):
            after, places = original, locate(original, report.after or ())
            if places:
                original = replace_at(after, places, report.before)
                deferred.append((report, after))
        self.messages = self.out = original
        for report, after in reversed(deferred):
            self._apply_deferred_step(replace(report, after=after))
        self.out = list(messages)

    def _apply_deferred_step(self, report: StepReport) -> None:
        """Record a deferred reduction as the next step; the report's output is all messages of the call after it."""
        step = self._begin_deferred_step(report)
        if step is not None:
            self._record_step(report, step)

    def _begin_deferred_step(self, report: StepReport) -> ObservedStep | None:
        """Begin the step of a deferred reduction, and record the attempts of its summarizers below it."""
        oldest = report.attempts[0].attempt if report.attempts else None
        started_ns = oldest.started_ns if oldest is not None else None
        parent_started_ns = getattr(trace.get_current_span(), "start_time", None)
        # The step must not start before its parent span: the summarizer may have run in an earlier run. Without a
        # parent whose start is known, the step starts now.
        if started_ns is not None and (parent_started_ns is None or started_ns < parent_started_ns):
            started_ns = None
        step = self._begin_step(report, started_ns)
        if step is not None:
            with step:
                for attempt in report.attempts:
                    step.record_attempt(attempt, self.count)
        return step

    def _begin_step(self, report: StepReport, started_ns: int | None = None) -> ObservedStep | None:
        """Begin the next step, not before the end of the last one; None if nothing is recorded."""
        assembly = self._prepare_assembly(started_ns)
        if assembly is None:
            return None
        step_started_ns = max(started_ns or 0, assembly.done_ns) or None
        return assembly.step(report.policy, kind=report.kind, config=report.config, started_ns=step_started_ns)

    def _record_step(self, report: StepReport, step: ObservedStep) -> None:
        """Add a step to the call, and record its output: all messages of the call after it."""
        recorded = RecordedStep(report, step)
        self.out = recorded.messages
        self._recorded_steps.append(recorded)
        if report.prompts is not None:
            self._prompts_out = report.prompts
        if self._assembly is not None:
            with suppress_errors(self._assembly.fail):
                if not step.entered:  # its span has not been opened, so it is opened and closed here
                    with step:
                        pass
                step.record(report)

    def _add_surrounding(self, messages: Sequence[Any]) -> None:
        """Add the messages before, between and after those of the last step to the input and to every step.

        If the reducers received only a part of the framework's messages, the others show up in a later observation.
        Does nothing if `messages` do not contain all messages of the last step in their order.
        """
        places = locate(messages, self.out) if self.out else None
        if places is None or any(place >= next_place for place, next_place in pairwise(places)):
            return
        gaps = [list(messages[start + 1 : end]) for start, end in pairwise((-1, *places, len(messages)))]
        reduced = self.out
        self.messages = insert_gaps(self.messages or (), reduced, gaps)
        self.out = insert_gaps(reduced, reduced, gaps)
        surrounding = [message for gap in gaps for message in gap]
        for index, (report, step) in enumerate(self._recorded_steps):
            after = insert_gaps(report.after or (), reduced, gaps)
            widened = replace(report, after=after, beside=[*report.beside, *surrounding])
            self._recorded_steps[index] = RecordedStep(widened, step)
            step.amend(widened)

    def _prepare(self) -> None:
        """If the call's assembly has ended, the call is repeated: start a new assembly with the same steps."""
        if self._state is CallState.PREPARING:
            return
        earlier_steps, self._recorded_steps = self._recorded_steps, []
        self._assembly, self._state = None, CallState.PREPARING
        self.out, self._prompts_out = list(self.messages or ()), self.prompts
        for report, _ in earlier_steps:
            step = self._begin_step(report)
            if step is not None:
                self._record_step(report.repeated(), step)

    def _reset_to(self, steps: list[RecordedStep]) -> None:
        """Make this call, a copy of another one, independent of it; the next observation repeats `steps`."""
        self.messages = None if self.messages is None else list(self.messages)
        self._recorded_steps, self._assembly, self._state, self.sent = steps, None, CallState.ENDED, 0
        self.out = list(self.states[-1])

    def _close(self, error: BaseException | None = None, *, called: bool = False, stays: bool = False) -> None:
        """End the assembly and export it.

        Args:
            error: The exception because of which no model is called; None without an exception.
            called: True if a model is called with the assembly's output.
            stays: True if the changes of the steps remain in effect despite the exception.
        """
        assembly, self._state = self._assembly, CallState.SENT if called else CallState.ENDED
        if assembly is None:
            return
        self.sent += called
        self.instrumentation.observed.open(
            assembly,
            self.invoking_agent.ledger(self._stage),
            self.messages or (),
            prompts=self.prompts or (),
            tools=self.tools,
            model=self.model,
            window=self.window,
            name=self.name,
            unknown_input=self.unknown,
            client=self.client,
        )
        over_ns = None if called and not self.ends_before_client_span else self.done_ns or None
        assembly.end(error, stays=stays, called=called, over_ns=over_ns)


#: The name of an assembly without a model call: the compaction of a history outside any model call.
COMPACTION: Final = "compaction"


def _record(instrumentation: Instrumentation, invoking_agent: InvokingAgent, reductions: Sequence[StepReport]) -> None:
    """Record deferred reductions as an assembly without a model call; see `DeferredReductions.record`."""
    call = ModelCall(instrumentation, invoking_agent, name=COMPACTION)
    for reduction in reductions:
        # The reducer that will use the summary has not run yet, so the reduction has no policy name.
        call.replay_deferred(reduction if reduction.policy else replace(reduction, policy=COMPACTION))
    call.end()


DeferredReductions.record = staticmethod(_record)


def current_model_call() -> ModelCall | None:
    """Return the model call that is being prepared in this context; None if there is none."""
    return CALL.get()
