"""How a session's events become the contents of a request: what leaves on the way, and what becomes of the rest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.message_alignment import same_objects
from otel_assembly.instrumentation.model_call import CALL, ModelCall
from otel_assembly.instrumentation.reducers import FRAMEWORK, left_for, settings_of
from otel_assembly.instrumentation.reductions import Reducer, Reduction, reducer
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

_reduces: Final = partial(ModelCall.observe_messages, kind="reduction")


def _content(event: Any) -> Any:
    """What an event says: that of a compaction is the summary, which stands for others."""
    compaction = event.actions.compaction if event.actions else None
    return event.content if compaction is None else compaction.compacted_content


def said(events: Iterable[Any]) -> list[Any]:
    """What the events of a session say."""
    return [content for content in map(_content, events) if content is not None and content.parts]


def invoking_agent_of(session: Any, agent: str | None = None) -> InvokingAgent:
    """An agent in a session, whose id is one of a user's of an app; without a name, whichever asks next."""
    return InvokingAgent(f"{session.app_name}\0{session.user_id}\0{session.id}", agent or "", agent, session.id)


class AgentCall(ModelCall):
    """A model call of an agent, whose session holds what it begins with."""

    def __init__(self, instrumentation: Instrumentation, invocation: Any) -> None:
        super().__init__(instrumentation, invoking_agent_of(invocation.session, invocation.agent.name))
        self.session = invocation.session
        self._settings = settings_of(getattr(invocation, "events_compaction_config", None))
        #: By the identity of what tells the agent what another one said: that, and how that one said it.
        self.retold: dict[int, tuple[Any, Any]] = {}

    def shows(self, events: Sequence[Any]) -> list[Any]:
        """These events are gone on with: the agent is not to see the others, and hears anew what other agents said."""
        contents = said(events)
        if not same_objects(self.out, contents):
            kept = {id(self.retold.get(id(one), (one, one))[1]) for one in contents}
            _reduces(self, [one for one in self.out if id(one) in kept], policy="visible_events")
            self.observe_messages(contents, policy="other_agents" if self.retold else FRAMEWORK)
        return contents

    def compaction(self) -> Reduction:
        """Compaction, with what summarisers did for the session since the call before."""
        made = Reduction(self.instrumentation, "compaction", self.out, config=self._settings, call=self)
        made.adopt_deferred(invoking_agent_of(self.session))
        return made


def _call() -> AgentCall | None:
    call = CALL.get()
    return call if isinstance(call, AgentCall) else None


@observe_hook
def built(_: Instrumentation, current_branch: Any, events: Sequence[Any], *__: Any, **___: Any) -> Observation:
    """A request's contents are made of events: of all that the session has, or of the newest turn's alone."""
    call = _call()
    if call is not None:
        call.set_input(said(call.session.events))
        _reduces(call, said(events), policy="current_turn")
        contents = yield
        if (failed := call.compaction()).step is not None:
            failed.done(call.out)
        call.observe_messages(contents, policy="task_input", kind="injection")


@observe_hook
def retells(_: Instrumentation, event: Any, **__: Any) -> Observation:
    """What another agent has said is told as the user's words."""
    call, told = _call(), (yield)
    if call is not None and told is not None:
        call.retold[id(told.content)] = told.content, event.content


@observe_hook
def compacts(_: Instrumentation, events: Sequence[Any], *__: Any, **___: Any) -> Observation:
    """Summaries take the place of the events that they stand for."""
    call = _call()
    if call is not None:
        call.shows(events)
        compaction, after = call.compaction(), said((yield))
        compaction.done(after, verdicts=left_for(compaction.before, after, lambda _: DecisionReason.COMPACTED))


def _shown(events: Sequence[Any], *_: Any, **__: Any) -> Sequence[Any] | None:
    call = _call()
    return call.shows(events) if call is not None else None


#: They run for every request, so that it is not worth a count where they change nothing.
_of_events: Final = partial(Reducer, _shown, lambda made, *_, **__: said(made), kind=None)
rewinds: Final = reducer(_of_events(policy="rewind"))
rearranges: Final = reducer(_of_events(policy="function_responses"))
#: What runs for no call: contents that are only counted, a summary that waits for the next call, whoever makes that.
apart: Final = run_hook(lambda instrumentation, *_, **__: ContextBoundRun(instrumentation, None, {CALL: None}))
_summary: Final = reducer(
    Reducer(
        lambda *, events_to_compact, **_: said(events_to_compact),
        lambda made, *, events_to_compact, **_: said([made] if made is not None else events_to_compact),
        invoking_agent=lambda *, session, **_: invoking_agent_of(session),
    )
)


def summarises(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of what has a summary made."""
    return apart(_summary(original, instrumentation), instrumentation)
