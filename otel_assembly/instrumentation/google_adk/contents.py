"""How a session's events become the contents of a request: what leaves on the way, and what becomes of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.decision import DecisionReason
from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.conversation import Asker
from otel_assembly.instrumentation.hooks import around
from otel_assembly.instrumentation.model_call import CALL, ModelCall
from otel_assembly.instrumentation.reducers import left_for, settings_of
from otel_assembly.instrumentation.reductions import Reducer, Reduction, reducer
from otel_assembly.instrumentation.runs import within
from otel_assembly.instrumentation.splicing import same, same_objects
from otel_assembly.instrumentation.waiting import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

_COMPACTION: Final = "compaction"


def _content(event: Any) -> Any:
    """What an event says: that of a compaction is the summary, which stands for others."""
    compaction = event.actions.compaction if event.actions else None
    return event.content if compaction is None else compaction.compacted_content


def said(events: Iterable[Any]) -> list[Any]:
    """What the events of a session say."""
    return [content for content in map(_content, events) if content is not None and content.parts]


class AgentCall(ModelCall):
    """A model call of an agent, whose session holds what it begins with.

    Args:
        instrumentation: Where it is reported.
        invocation: The invocation that the agent works in.
    """

    def __init__(self, instrumentation: Instrumentation, invocation: Any) -> None:
        super().__init__(instrumentation, Asker.of(invocation.session.id, invocation.agent.name))
        self.session = invocation.session
        self._settings = settings_of(getattr(invocation, "events_compaction_config", None))
        #: By the identity of a content that tells the agent what another one has said: that, and how that one said it.
        self.retold: dict[int, tuple[Any, Any]] = {}

    def shows(self, events: Sequence[Any]) -> list[Any]:
        """These events are gone on with: the agent is not to see the others, and hears anew what other agents said."""
        contents = said(events)
        if not same_objects(self.out, contents):
            kept = {id(self.retold.get(id(one), (one, one))[1]) for one in contents}
            self.becomes("visible_events", [one for one in self.out if id(one) in kept])
            if self.retold:
                self.becomes("other_agents", contents, kind=None)
            self.arrives(contents)
        return contents

    def becomes(self, policy: str, contents: list[Any], *, kind: str | None = "reduction") -> None:
        """What the last step let out has become this."""
        if not same(self.out, contents):
            self.reduced(policy, self.out, contents, kind=kind)

    def compaction(self) -> Reduction:
        """Compaction, with what summarisers have done for this session since the call before."""
        made = Reduction(self.instrumentation, _COMPACTION, self.out, config=self._settings, call=self)
        for attempt in [attempt for one in WAITING.take(Asker(self.session.id)) for attempt in one.attempts]:
            step = made.open()
            if step is not None:
                attempt.told(self.count, step)
        return made


def _call() -> AgentCall | None:
    call = CALL.get()
    return call if isinstance(call, AgentCall) else None


@around
def built(_: Instrumentation, branch: Any, events: Sequence[Any], *__: Any, **___: Any) -> Observation:
    """A request's contents are made of events: of all that the session has, or of the newest turn's alone."""
    call = _call()
    if call is None:
        return
    call.came(said(call.session.events))
    call.becomes("current_turn", said(events))
    contents = yield
    failed = call.compaction()
    if failed.step is not None:
        failed.done(call.out)
    call.becomes("task_input", contents, kind="injection")


@around
def retells(_: Instrumentation, event: Any, **__: Any) -> Observation:
    """What another agent has said is told as the user's words."""
    call, told = _call(), (yield)
    if call is not None and told is not None:
        call.retold[id(told.content)] = told.content, event.content


def _shown(events: Sequence[Any], *_: Any, **__: Any) -> Sequence[Any] | None:
    call = _call()
    return call.shows(events) if call is not None else None


def _of_events(policy: str, kind: str | None) -> Reducer:
    return Reducer(_shown, lambda made, *_, **__: said(made), policy, kind)


rewinds: Final = reducer(_of_events("rewind", "reduction"))
rearranges: Final = reducer(_of_events("function_responses", None))


@around
def compacts(_: Instrumentation, events: Sequence[Any], *__: Any, **___: Any) -> Observation:
    """Summaries take the place of the events that they stand for."""
    call = _call()
    if call is None:
        return
    call.shows(events)
    compaction = call.compaction()
    after = said((yield))
    compaction.done(after, verdicts=left_for(compaction.before, after, lambda _: DecisionReason.COMPACTED))


_summary: Final = reducer(
    Reducer(
        lambda *, events_to_compact, **_: said(events_to_compact),
        lambda made, *, events_to_compact, **_: said([made] if made is not None else events_to_compact),
        _COMPACTION,
        asker=lambda *, session, **_: Asker(session.id),
    )
)


def summarises(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of what has a summary made, which waits for the session's next call, whoever makes that."""
    apart = within(lambda *_, **__: BoundRun(instrumentation, None, {CALL: None}))
    return apart(_summary(original, instrumentation), instrumentation)
