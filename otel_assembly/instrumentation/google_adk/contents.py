"""Hooks for the functions with which Google ADK turns a session's events into the contents of a request.

`_get_contents` calls all others: `_apply_rewinds`, `_process_compaction_events`, `_present_other_agent_message`, and
functions that put tool results after their calls. Each change that they make is recorded as a step of the model call.
Summaries that `_summarize_events_with_trace` makes outside a model call are recorded with the next one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.context_variables import CALL
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.model_call import FRAMEWORK, ModelCall
from otel_assembly.instrumentation.reducers import left_for, settings_of
from otel_assembly.instrumentation.reductions import Reduction, reducer
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.reductions import ReducerObservation

_observe_reduction: Final = partial(ModelCall.observe_messages, kind="reduction")


def contents_of(events: Iterable[Any]) -> list[Any]:
    """Return the contents of a session's events, without empty ones; for a compaction event, the summary."""
    contents = []
    for event in events:
        compaction = event.actions.compaction if event.actions else None
        content = compaction.compacted_content if compaction else event.content
        if content and content.parts:
            contents.append(content)
    return contents


def invoking_agent_of(session: Any, agent: str | None = None) -> InvokingAgent:
    """Return the invoking agent for a session and an agent's name; without a name, for any agent of the session."""
    # Session ids are unique only within an app and a user.
    return InvokingAgent(f"{session.app_name}\0{session.user_id}\0{session.id}", agent or "", agent, session.id)


class AgentCall(ModelCall):
    """A model call of an agent; its input is the contents of the session's events.

    Attributes:
        rewritten_contents: Messages of other agents that ADK rewrote for this one: the new content and the original,
            by the `id` of the new content.
    """

    def __init__(self, instrumentation: Instrumentation, invocation: Any) -> None:
        super().__init__(instrumentation, invoking_agent_of(invocation.session, invocation.agent.name))
        self.session = invocation.session
        self._settings = settings_of(getattr(invocation, "events_compaction_config", None))
        self.rewritten_contents: dict[int, tuple[Any, Any]] = {}

    def observe_events(self, events: Sequence[Any]) -> list[Any]:
        """Record what changed since the last step, and return the contents of the events that ADK processes next."""
        contents = contents_of(events)
        if not same_objects(self.out, contents):
            # First without the events that the agent may not see, such as those of other branches; then with the
            # messages of other agents in rewritten form.
            pairs = [self.rewritten_contents.get(id(content), (content, content)) for content in contents]
            original_ids = {id(original) for _, original in pairs}
            visible = [content for content in self.out if id(content) in original_ids]
            _observe_reduction(self, visible, policy="visible_events")
            self.observe_messages(contents, policy="other_agents" if self.rewritten_contents else FRAMEWORK)
        return contents

    def begin_compaction(self) -> Reduction:
        """Return a compaction step that includes the summarizer calls since the session's previous model call.

        If there are such calls, the step is open (`Reduction.step`), and so is recorded even if nothing was compacted.
        """
        compaction = Reduction(
            self.instrumentation, StepReport("compaction", self.out, config=self._settings), call=self
        )
        compaction.adopt_deferred(invoking_agent_of(self.session))
        return compaction


def _current_call() -> AgentCall | None:
    call = CALL.get()
    return call if isinstance(call, AgentCall) else None


@observe_hook
def get_contents(_: Instrumentation, current_branch: Any, events: Sequence[Any], *__: Any, **___: Any) -> Observation:
    """Set all contents of the session as the input of the model call, and record the contents that ADK returns."""
    call = _current_call()
    if call is not None:
        call.set_input(contents_of(call.session.events))
        # Only the events of the current turn, for example for an agent with ``include_contents="none"``.
        _observe_reduction(call, contents_of(events), policy="current_turn")
        contents = yield
        # Summarizer calls that produced no summary for `_process_compaction_events`, such as failed ones.
        if (compaction := call.begin_compaction()).step is not None:
            compaction.done(call.out)
        call.observe_messages(contents, policy="task_input", kind="injection")


@observe_hook
def rewrite_agent_message(_: Instrumentation, event: Any, **__: Any) -> Observation:
    """Remember the original of another agent's message, which ADK rewrites as a user message."""
    call, rewritten = _current_call(), (yield)
    if call is not None and rewritten is not None:
        call.rewritten_contents[id(rewritten.content)] = rewritten.content, event.content


@observe_hook
def process_compaction_events(_: Instrumentation, events: Sequence[Any], *__: Any, **___: Any) -> Observation:
    """Record a step `compaction`, in which summaries replace the events that they summarize."""
    call = _current_call()
    if call is not None:
        call.observe_events(events)
        compaction, after = call.begin_compaction(), contents_of((yield))
        verdicts = left_for(compaction.before, after, lambda _: DecisionReason.COMPACTED)
        compaction.report = replace(compaction.report, verdicts=verdicts)
        compaction.done(after)


def _observe_events(policy: str, _: Instrumentation, events: Sequence[Any], *__: Any, **___: Any) -> ReducerObservation:
    """Observe a function that takes and returns the events of a session."""
    call = _current_call()
    if call is None:
        return None
    # The kind is None, because runs of these functions without changes are no declined reductions.
    report = StepReport(policy, call.observe_events(events), kind=None)
    return replace(report, after=contents_of((yield report)))


apply_rewinds: Final = reducer(partial(_observe_events, "rewind"))
arrange_tool_results: Final = reducer(partial(_observe_events, "function_responses"))
#: The hook of functions that build contents or summaries for no particular model call, such as a token estimate.
outside_model_call: Final = run_hook(
    lambda instrumentation, *_, **__: ContextBoundRun(instrumentation, None, {CALL: None})
)


def _observe_summary(_: Instrumentation, *, events_to_compact: Sequence[Any], **__: Any) -> ReducerObservation:
    report = StepReport("", contents_of(events_to_compact))  # named later, when `_process_compaction_events` uses it
    summary_event = yield report
    return replace(report, after=contents_of([summary_event] if summary_event is not None else events_to_compact))


_summary: Final = reducer(_observe_summary, invoking_agent=lambda *, session, **_: invoking_agent_of(session))


def summarize_events(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Hook the function that calls a summarizer: the summary is recorded with the next model call of the session."""
    return outside_model_call(_summary(original, instrumentation), instrumentation)
