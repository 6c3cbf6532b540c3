"""How a session's events become the contents of a request: what leaves on the way, and what else does to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.conversation import Asker
from otel_assembly.instrumentation.hooks import around
from otel_assembly.instrumentation.model_call import CALL, ModelCall
from otel_assembly.instrumentation.reductions import Reducer, reducer
from otel_assembly.instrumentation.splicing import same, same_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_assembly.instrumentation.hooks import Observation, Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation


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
        #: By the identity of a content that tells what another agent has said: that agent's own.
        self.retold: dict[int, tuple[Any, Any]] = {}

    def shows(self, events: Sequence[Any]) -> list[Any]:
        """These events are taken on: what the agent is not to see has left, and what others said may be told anew."""
        contents = said(events)
        if not same_objects(self.out, contents):
            kept = {id(self.retold[id(one)][1] if id(one) in self.retold else one) for one in contents}
            self._leaves("visible_events", [one for one in self.out if id(one) in kept])
            if self.retold:
                self._leaves("other_agents", contents, kind=None)
            self.arrives(contents)
        return contents

    def _leaves(self, policy: str, contents: list[Any], *, kind: str | None = "reduction") -> None:
        if not same_objects(self.out, contents):
            self.reduced(policy, self.out, contents, kind=kind)


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
    call._leaves("current_turn", said(events))
    contents = yield
    if not same(call.out, contents):
        call.reduced("task_input", call.out, contents, kind="injection")


@around
def retells(_: Instrumentation, event: Any, **__: Any) -> Observation:
    """What another agent has said is told as the user's words."""
    call, told = _call(), (yield)
    if call is not None and told is not None:
        call.retold[id(told.content)] = told.content, event.content


def _shown(events: Sequence[Any], *_: Any, **__: Any) -> Sequence[Any] | None:
    call = _call()
    return call.shows(events) if call is not None else None


def of_events(policy: str, kind: str | None = "reduction") -> Wrap:
    """The hook of a function that makes events of events."""
    return reducer(Reducer(_shown, lambda made, *_, **__: said(made), policy, kind))


rewinds: Final = of_events("rewind")
rearranges: Final = of_events("function_responses", None)
compacts: Final = of_events("compaction")
