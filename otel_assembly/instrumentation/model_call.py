"""`ModelCall`: one model call of a framework while it is prepared, which becomes one assembly.

A model call starts with the first observation of its messages, such as a reducer's input, and ends when the provider
client is called. Its input is the framework's messages, and each reducer on the way is a step. Differences between the
last step's output and the client request that no hook accounts for become one more step, named `framework`.

While a call is prepared, the context variable `CALL` contains it. A framework can run a reducer outside any call, for
example between two runs. `DeferredReductions` stores its `StepReport` until the next call of the same invoking agent in
the same conversation, which records it as a step.

A call is being prepared, or it has ended (`ModelCall.ended`). Each observation of messages prepares it again, because a
call can be repeated, as in a retry. It then has a new assembly with the same input and steps:

    prepared --client_called, end, rollback--> ended
    ended --set_input, observe_messages, begin_step, reduced, replay_deferred, client_called--> prepared
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from opentelemetry import trace

from otel_assembly._internal.registry import Registry
from otel_assembly._internal.tracked_runs import TrackedRun
from otel_assembly.instrumentation.context_variables import CALL, SUMMARIZED
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.instrumented import context_value, on_exit
from otel_assembly.instrumentation.message_alignment import (
    find_gaps,
    insert_gaps,
    locate,
    locate_each,
    replace_at,
    same,
)
from otel_assembly.instrumentation.rendered import find_rendering
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from otel_assembly.decision import Verdict
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep

#: The attributes that `ModelCall.checkpoint` saves. Their values are replaced, but never changed in place.
_STATE: Final = ("messages", "out", "prompts", "prompts_out", "_is_complete", "_stage", "_steps")
#: The name of the step with the changes of a client request that no hook accounts for.
FRAMEWORK: Final = "framework"
#: The name of an assembly without a model call: the compaction of a history outside any model call.
COMPACTION: Final = "compaction"
#: The most ledgers with deferred reductions; the least recently used ones are dropped first.
_MOST_LEDGERS: Final = 1_000
#: The most deferred reductions of one ledger; the oldest ones are dropped first.
_MOST_PER_LEDGER: Final = 16


class ClientRequest(NamedTuple):
    """The arguments with which a provider's client is called.

    Attributes:
        messages: The messages after the system prompts, in the framework's own types.
        prompts: The system prompts before the messages; None if they did not change while the call was prepared.
        tools: The schemas of the tools that the model may call; empty if unknown.
        window: The model's limit in tokens; None if unknown. It is a `ListedWindow` if the user cannot set the limit.
        invoking_agent: The invoking agent, used if no model call is being prepared.
        call: The model call for which the messages were prepared; used if the context variable `CALL` is not set.
        client: The rules for what the client adds around messages; None if only the model's name is known.
        unknown: True if the provider stores earlier messages, so that the model's whole input cannot be read.
        held_events: How many of the messages are not in the request itself, because the provider stores them; None if
            it stores none or their number is unknown.
        allowed_edits: The kinds of edits that the request allows the provider to make. If there are any, the recorder
            of the request calls `ObservedAssembly.answered` after the answer.
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
    held_events: int | None = None
    allowed_edits: tuple[str, ...] = ()


class SpannedRun(Protocol):
    """The run of a model call, whose span may have to be opened together with the call's assembly; see `LazyRun`."""

    def with_span(self) -> AbstractContextManager[None]: ...

    def inside_unless_traced(self) -> AbstractContextManager[None]: ...


class ModelCall(TrackedRun):
    """One model call, from the first observation of its messages until the client is called: one assembly.

    Attributes:
        invoking_agent: The agent or graph node that makes the call.
        messages: The input, which is the framework's messages before any step; None until the first observation.
        out: The messages after the last step.
        prompts: The system prompts before any step; None until they are known.
        prompts_out: The system prompts after the last step; None until they are known.
        name: The assembly's name; it distinguishes assemblies without a model call, such as a compaction.
        sent: How often a client was called with this call's messages.
        unknown: True if the input cannot be read; the client request is then recorded as the input.
        client: The rules for what the client adds around messages; None if unknown.
        run: The run that the call belongs to, if the run's span may have to be opened together with the assembly.
        problem: The exception of the last reducer; its caller may have handled it.
        ended: Whether the call has ended; a later observation starts a new assembly for a repeated call.
        assembly: The call's assembly, or the last one if the call has ended; None if nothing was recorded.
        ends_before_client_span: True if the assembly ends with its last step instead of when the client is called,
            because the client's span may be open by then.
    """

    ends_before_client_span = False
    sent = 0
    unknown = False
    client: ClientRules | None = None
    held_events: int | None = None
    allowed_edits: tuple[str, ...] = ()
    run: SpannedRun | None = None
    problem: BaseException | None = None
    ended = False
    assembly: ObservedAssembly | None = None
    #: Whether `messages` is the whole input; a reducer may have received only a part of it.
    _is_complete = False
    #: The number of assemblies that plug-ins of this library have made of this call's messages.
    _stage = 0
    #: The recorded steps. The output in a report is all messages of the call after the step.
    _steps: tuple[tuple[StepReport, ObservedStep], ...] = ()

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
        self.prompts = self.prompts_out = prompts
        self.tools = tools
        self.model = model
        self.window = window
        self.name = name
        if messages is not None:
            self.set_input(messages)

    def set_input(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None) -> None:
        """Set the whole input of the call: the framework's messages and system prompts before any step.

        If messages were observed before, a difference from the last step's output becomes a step `framework`.
        """
        self.observe_messages(messages)
        self._is_complete = True
        if self.prompts is None:
            self.prompts = self.prompts_out = prompts

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

        A change of the system prompts is recorded as a step, too. The first known prompts are part of the input. The
        step has the name `policy`, and the kind ``reduction`` or ``injection`` if that is known. `verdicts` are the
        reasons of dropped messages, if those are known.
        """
        self._prepare(messages)
        is_same = same(self.out, messages)
        # Reducers may have received only a part of the messages; the others are input, and no change.
        if not is_same and not self._is_complete and self._add_surrounding(messages):
            is_same = same(self.out, messages)
        if self.prompts is None and prompts is not None:
            self.prompts = self.prompts_out = prompts
        is_new_prompt = prompts is not None and list(prompts) != list(self.prompts_out or ())
        if is_new_prompt or not is_same:
            report = StepReport(
                policy,
                self.out,
                list(messages),
                kind=kind,
                prompts=prompts if is_new_prompt else None,
                verdicts=verdicts or self.verdicts_on(self.out, messages),
            )
            self._add_step(report)

    def begin_step(self, report: StepReport, started_ns: int | None = None) -> ObservedStep | None:
        """Return the context manager of a reducer's step, in which the reducer runs; None without telemetry.

        The step starts at `started_ns`, by default now, but not before the end of the last one. The assembly's span is
        opened in the current context, if it is not open yet. Call `reduced` with the step and the reducer's output
        afterwards.
        """
        self._prepare(report.before)
        assembly = self._open_assembly(started_ns)
        if assembly is None:
            return None
        step_started_ns = max(started_ns or 0, assembly.done_ns) or None
        return assembly.step(report.policy, kind=report.kind, config=report.config, started_ns=step_started_ns)

    def reduced(
        self,
        report: StepReport,
        *,
        step: ObservedStep | None = None,
        since: Sequence[Any] | None = None,
        started_ns: int | None = None,
    ) -> bool:
        """Record the output of a reducer, whose input may be a part of the call's messages: it is replaced there.

        `step` is the reducer's open step; without one, the reducer started at `started_ns`. `since` has the call's
        messages at that time, if other reducers ran in the meantime. The result is False if nothing was recorded: none
        of the input's messages belongs to this call, or telemetry is off.
        """
        before = report.before
        self._prepare(before)
        whole = self.out if since is None else since
        places = locate(whole, before)
        if places is None:
            found = locate_each(whole, before)
            first = next(found, None)
            if first is None:
                return False  # the reducer worked on messages of another conversation or call
            if step is None:  # code without a hook changed the messages before the reducer ran: record that first
                self.observe_messages(before)
                whole, places = self.out, range(len(before))
            else:
                places = [first, *found]
        if report.verdicts and len(places) == len(before):  # the reducer may have received copies of the messages
            report = report.with_originals(dict(zip(map(id, before), map(whole.__getitem__, places), strict=True)))
        after = before if report.after is None else report.after
        return self._add_step(replace(report, after=replace_at(whole, places, after)), step, started_ns)

    def replay_deferred(self, report: StepReport) -> None:
        """Record a reduction that ran before this call existed, and the attempts of its summarizers, as a step."""
        self._prepare(report.before)
        started_ns = report.attempts[0].attempt.started_ns if report.attempts else None
        parent_started_ns = getattr(trace.get_current_span(), "start_time", None)
        # The step must not start before its parent span: the summarizer may have run in an earlier run. Without a
        # parent whose start is known, the step starts now.
        if started_ns is not None and (parent_started_ns is None or started_ns < parent_started_ns):
            started_ns = None
        step = self.begin_step(report, started_ns)
        if step is not None:
            with step:
                for attempt in report.attempts:
                    step.record_attempt(attempt)
            self.reduced(report, step=step)

    def client_called(self, request: ClientRequest) -> None:
        """Compare the messages of a client request with the last step's output, and end the assembly.

        Differences become one more step. After a plug-in of this library, no assembly is recorded if nothing changed.
        """
        self.model, self.tools = request.model or self.model, request.tools or self.tools
        self.window = request.window or self.window
        self.client = request.client or self.client
        self.unknown = self.unknown or request.unknown
        self.held_events, self.allowed_edits = request.held_events, request.allowed_edits
        self._prepare(request.messages)
        prompts, prompts_out = request.prompts, self.prompts_out
        if self._stage and not self.sent and not self._steps:
            is_same_prompt = prompts is None or prompts_out is None or list(prompts) == list(prompts_out)
            if is_same_prompt and same(self.out, request.messages):
                self.sent = 1
                return  # the plug-in's own assembly has recorded this prompt
        assembly = self._open_assembly()
        if assembly is None:
            return
        try:
            rendering = None
            if not self.unknown:
                rendering = find_rendering(self.out, request.messages, prompts or (), prompts_out or ())
            if rendering is None:
                self.observe_messages(request.messages, prompts=prompts)
            else:
                if not self._is_complete:  # the program's new message belongs to the input, like the rendered ones
                    self._add_surrounding([*self.out, *rendering.beside])
                self.observe_messages(rendering.messages, prompts=rendering.prompts, verdicts=rendering.verdicts)
        except Exception as problem:  # noqa: BLE001  # counted; the assembly is not exported
            assembly.fail(problem)
        self._close(assembly, called=True)

    def end(self, error: BaseException | None = None, *, stays: bool = False) -> None:
        """End the call's assembly without a model call; does nothing if no assembly is open.

        `error` is the exception because of which no model is called. `stays` is True if the changes of the steps remain
        in effect despite the exception; see `ObservedAssembly.end`.
        """
        if self.assembly is not None and not self.ended:
            self._close(self.assembly, error, stays=stays)

    def fail(self, problem: Exception) -> None:
        """Do not export the assembly, because an error made its data wrong; the error is counted."""
        if self.assembly is not None:
            self.assembly.fail(problem)

    def replaced_by_plugin(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None) -> None:
        """Continue after a plug-in of this library, which has made an assembly with this output itself.

        The steps before the plug-in become an assembly without a model call. Only later steps are recorded in the
        assembly of this call.
        """
        self.end()
        self.assembly, self.ended, self.sent, self._steps = None, False, 0, ()
        self.messages = self.out = list(messages)
        self.prompts = self.prompts_out = prompts
        self._is_complete, self._stage = True, self._stage + 1

    def fork(self, state: int | None = None) -> Self:
        """Return a new call with the input and the steps of this one, up to the given index in `states`.

        An agent that reduces its history once for all model calls of a run needs one fork for each of them.
        """
        forked = copy(self)
        forked.assembly, forked.ended, forked.sent = None, True, 0  # the first observation records the steps again
        forked._steps = self._steps[:state]  # noqa: SLF001  # of this class
        forked.out = list(forked.states[-1])
        return forked

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
        """Save the messages and steps, and return a function that restores them for a repeated call.

        The function does nothing while the call's assembly is open, because the assembly has recorded the steps.
        """
        state = {name: getattr(self, name) for name in _STATE}

        def rollback() -> None:
            if self.assembly is None or self.ended:
                self.ended = True  # the next observation records the restored steps in a new assembly
                vars(self).update(state)

        return rollback

    def current(self) -> AbstractContextManager[None]:
        """Make this call the current one (`CALL`) in a block, which must not stay open across a ``yield``."""
        return context_value(CALL, self)

    def calling(self) -> AbstractContextManager[Any]:
        """Return the context manager in which the client runs: the context of the call's run, if there is one."""
        return self.run.inside_unless_traced() if self.run is not None else nullcontext()

    def verdicts_on(self, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Verdict]:
        """Return verdicts on messages that code without a hook dropped between the last step and now.

        There are none, unless a subclass overrides this method.
        """
        return ()

    @property
    def states(self) -> list[Sequence[Any]]:
        """The messages of the input, and after each step."""
        return [self.messages or (), *[report.after or () for report, _ in self._steps]]

    @property
    def last_state(self) -> int:
        """The last index in `states`."""
        return len(self._steps)

    def _prepare(self, messages: Sequence[Any] | None = None) -> None:
        """Make the call ready for an observation: each method that observes messages calls this first.

        A call that has ended is prepared again, with a new assembly. The first messages are the call's input. If
        deferred reductions have produced them, the input is what those received, and they are the first steps.
        """
        if self.ended:
            steps, self._steps = self._steps, ()
            self.assembly, self.ended = None, False
            self.out, self.prompts_out = self.messages or [], self.prompts
            for report, _ in steps:
                self._add_step(report.repeated())
        if messages is not None and self.messages is None:
            original, reports = DEFERRED_REDUCTIONS.undo(self.invoking_agent, messages)
            self.messages = self.out = original
            for report in reports:
                self.replay_deferred(report)
            self.out = list(messages)

    def _open_assembly(self, started_ns: int | None = None) -> ObservedAssembly | None:
        """Return the call's assembly, a new one if there is none; None if nothing is recorded.

        The span of a new assembly is opened below the span of the call's run, which is opened first. The assembly
        belongs to no ledger until `_close`, because its input may still grow (`_add_surrounding`).
        """
        if self.assembly is None:
            with self.run.with_span() if self.run is not None else nullcontext():
                self.assembly = self.instrumentation.observed.prepare(
                    name=self.name,
                    agent_name=self.invoking_agent.agent_name,
                    model=self.model,
                    conversation_id=self.invoking_agent.conversation_id,
                    started_ns=started_ns,
                )
        return self.assembly

    def _add_step(self, report: StepReport, step: ObservedStep | None = None, started_ns: int | None = None) -> bool:
        """Add a step, whose output is all messages of the call after it; return False if telemetry is off.

        `step` is the reducer's open step. The assembly is None only if the call has ended since that step was opened;
        then the step is added, but not recorded.
        """
        step = step or self.begin_step(report, started_ns)
        if step is None:
            return False
        self.out = list(report.after or ())
        self._steps = (*self._steps, (report, step))
        if report.prompts is not None:
            self.prompts_out = report.prompts
        if self.assembly is not None:
            try:
                if not step.entered:  # its span has not been opened, so it is opened and closed here
                    with step:
                        pass
                step.record(report)
            except Exception as problem:  # noqa: BLE001  # counted; the assembly is not exported
                self.assembly.fail(problem)
        return True

    def _add_surrounding(self, messages: Sequence[Any]) -> bool:
        """Add the messages before, between and after those of the last step to the input and to every step.

        If the reducers received only a part of the framework's messages, the others show up in a later observation.
        Nothing is added, and the result is False, if `messages` do not contain all messages of the last step in order.
        """
        reduced, gaps = self.out, find_gaps(messages, self.out)
        if gaps is None:
            return False
        self.messages = insert_gaps(self.messages or (), reduced, gaps)
        self.out = insert_gaps(reduced, reduced, gaps)
        surrounding, steps = [message for gap in gaps for message in gap], []
        for report, step in self._steps:
            after = insert_gaps(report.after or (), reduced, gaps)
            steps.append((replace(report, after=after, beside=[*report.beside, *surrounding]), step))
            step.report = steps[-1][0]
        self._steps = tuple(steps)
        return True

    def _close(
        self,
        assembly: ObservedAssembly,
        error: BaseException | None = None,
        *,
        called: bool = False,
        stays: bool = False,
    ) -> None:
        """End the assembly and export it.

        `called` is True if a model is called with its output. For `stays`, see `ObservedAssembly.end`.
        """
        self.ended = True
        if called:
            self.sent += 1
        # `open` gives the assembly its ledger, input and model. All of them are known only now.
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
            held_events=self.held_events,
            allowed_edits=self.allowed_edits if called else (),
        )
        # A call of a model ends its assembly now. Without one, the assembly ended with its last step, if it has a step.
        ended_ns = None if called and not self.ends_before_client_span else assembly.done_ns or None
        assembly.end(error, stays=stays, called=called, ended_ns=ended_ns)


class DeferredReductions:
    """The reductions that are not recorded yet, by ledger: one per invoking agent and conversation.

    Attributes:
        take_reported: Takes the reductions that the program reported for messages of a conversation: returns the
            messages before them, and the reports. `program_reductions` sets this attribute when it is imported, which
            is before a program can report a reduction.
    """

    def __init__(self) -> None:
        self.take_reported: Callable[[Sequence[Any], str | None], tuple[list[Any], list[StepReport]]] | None = None
        self._is_used = False  #: Whether a reduction was ever stored; most programs never do.
        self._by_ledger: Registry[Any, list[StepReport]] = Registry(_MOST_LEDGERS, clear_after_fork=True)

    def put(self, invoking_agent: InvokingAgent, report: StepReport) -> None:
        """Store a reduction; the next model call of this invoking agent records it before the call's own steps.

        Nothing is stored if the invoking agent has no conversation, because no later call can then be its next one.
        """
        key = invoking_agent.ledger()
        if key is not None:
            self._is_used = True
            reductions = self._by_ledger.of(key, list)
            reductions.append(report)
            del reductions[:-_MOST_PER_LEDGER]
            invoking_agents = SUMMARIZED.get()
            if report.attempts and invoking_agents is not None:
                invoking_agents.append(invoking_agent)  # for `run_ended`

    def take(self, invoking_agent: InvokingAgent) -> list[StepReport]:
        """Remove the reductions of an invoking agent and return them, the oldest first."""
        key = invoking_agent.ledger() if self._is_used else None
        stored = self._by_ledger.get(key) if key is not None else None
        if not stored:
            return []
        reductions = [*stored]
        stored.clear()
        return reductions

    def undo(self, invoking_agent: InvokingAgent, messages: Sequence[Any]) -> tuple[list[Any], list[StepReport]]:
        """Take the reductions of an agent, and find out what the messages of its model call were before them.

        The result is the messages before the oldest reduction whose output is among the messages, and a report for each
        such reduction, the oldest first. The reports are about all messages of the call.
        """
        before, program_reports = list(messages), list[StepReport]()
        if self.take_reported is not None:
            before, program_reports = self.take_reported(messages, invoking_agent.conversation_id)
        reports: list[StepReport] = []
        for report in reversed(self.take(invoking_agent)):
            after, places = before, locate(before, report.after or ())
            if places:
                before = replace_at(after, places, report.before)
                reports.append(replace(report, before=before, after=after))
        return before, [*reports[::-1], *program_reports]

    def run_ended(self, instrumentation: Instrumentation, invoking_agents: Sequence[InvokingAgent]) -> None:
        """Record what summarizers did for these agents in a run that has ended, unless a model call has recorded it.

        No later run may follow, so the attempts are recorded now, in an assembly without a model call. The reductions
        themselves stay stored: the next model call, if there is one, has them as its steps, too.
        """
        for invoking_agent in invoking_agents:
            stored = self._by_ledger.get(invoking_agent.ledger()) or []
            reductions = [*stored]
            if any(reduction.attempts for reduction in reductions):
                stored.clear()  # else the assembly would take the reductions from here, too
                call = ModelCall(instrumentation, invoking_agent, name=COMPACTION)
                for report in reductions:
                    # The reducer that will use the summary has not run yet, so the reduction has no policy name.
                    call.replay_deferred(report if report.policy else replace(report, policy=COMPACTION))
                call.end()
                stored += [replace(reduction, attempts=()) for reduction in reductions]


DEFERRED_REDUCTIONS: Final = DeferredReductions()


def current_model_call() -> ModelCall | None:
    """Return the model call that is being prepared in this context; None if there is none."""
    return CALL.get()
