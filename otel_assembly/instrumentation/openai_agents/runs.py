"""Runs of agents, and in them each model call from what prepares it to the model that receives it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from agents.models.interface import Model

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.clients import innermost, model_in
from otel_assembly.instrumentation.conversation import Asker
from otel_assembly.instrumentation.instrumented import argument, bound
from otel_assembly.instrumentation.late_runs import LateRun
from otel_assembly.instrumentation.model_call import CALL, ModelCall, Sent
from otel_assembly.instrumentation.openai_agents.messages import SCHEMAS, items_of
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.reducers import name_of
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.run_calls import Preparing
from otel_assembly.instrumentation.runs import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation


class AgentRun(LateRun):
    """One run: what is reduced in it once stays reduced for all calls that follow, of whichever agent.

    It has a span of ours only where its first turn, inside of whatever the SDK's own tracing opens, has none.

    Args:
        instrumentation: Where it is reported.
        agent: The agent that it starts with.
        conversation_id: The conversation's real id, if it has one.

    Attributes:
        call: The call that is prepared, or made.
        loaded: What its session gave.
        reads: Whether it is about to read that.
        waits: By this, what is reduced between the calls waits for the next one.
    """

    def __init__(self, instrumentation: Instrumentation, agent: Any, conversation_id: str | None) -> None:
        super().__init__(instrumentation, name_of(agent), conversation_id, parent=RUN.get())
        self.call: ModelCall | None = None
        self.loaded: Sequence[Any] = ()
        self.reads = False
        self.waits = Asker(self)
        self._start = ModelCall(instrumentation)

    @contextmanager
    def current(self) -> Iterator[None]:
        """What runs in this block belongs to the run."""
        with bound(RUN, self), bound(CALL, None), super().current():
            yield

    def begins(self, agent: Any) -> ModelCall:
        """A call of this agent is prepared; the one before is not made any more, if it was not."""
        self.over()
        self.call = call = self._start.another()
        call.run = self
        call.asker = Asker(self.conversation_id or self, agent.name, agent.name, self.conversation_id)
        call.takes(self.waits)
        self._start = call.another()
        return call

    def over(self) -> None:
        """No call is made any more of what was prepared."""
        if self.call is not None:
            self.call.end()


RUN: Final[ContextVar[AgentRun | None]] = ContextVar("otel_assembly_openai_agents_run", default=None)


def id_of(session: Any) -> str | None:
    """A session's id; one that the provider holds has none before it is first read."""
    try:
        found = getattr(session, "session_id", None)
    except ValueError:
        return None
    return found if isinstance(found, str) and found else None


@within
def run(
    instrumentation: Instrumentation, *args: Any, session: Any = None, conversation_id: str | None = None, **named: Any
) -> AgentRun:
    """One run, streamed or not: `AgentRunner.run` has its agent, and what it is asked, behind itself."""
    agent = argument(args, named, 1, "starting_agent")
    state = named.get("run_state") or argument(args, named, 2, "input")
    agent = getattr(state, "_current_agent", None) or agent
    conversation_id = conversation_id or getattr(state, "_conversation_id", None)
    return AgentRun(instrumentation, agent, conversation_id or id_of(session))


class _Turn(BoundRun):
    """One turn of a run, whose span is open by then."""

    def __init__(self, instrumentation: Instrumentation, of: AgentRun) -> None:
        super().__init__(instrumentation, None, {}, ends=of.over)
        self._of = of

    @contextmanager
    def current(self) -> Iterator[None]:
        """What runs in this block belongs to the run: its model's call, and its tools."""
        with self._of.reported():
            yield


@within
def turn(instrumentation: Instrumentation, *_: Any, **__: Any) -> _Turn | None:
    """One turn; a summariser's has no span of its own."""
    of = RUN.get()
    return None if of is None or reducing() is not None else _Turn(instrumentation, of)


@within
def prepares(instrumentation: Instrumentation, *_: Any, agent: Any, **given: Any) -> Preparing | None:
    """A call is prepared, with all that the run holds; what works for a reducer prepares none."""
    of = RUN.get()
    if of is None or reducing() is not None:
        return None
    call = of.begins(agent)
    call.came(given["input_items"], prompts=as_prompts(given["system_instructions"]))
    return Preparing(instrumentation, call)


@within
def made(_: Instrumentation, *__: Any, **given: Any) -> ModelCall | None:
    """The model is called, and again where that fails; where the provider holds what was said, with what is new."""
    of = RUN.get()
    if of is None or of.call is None or reducing() is not None:
        return None
    of.call.unknown = bool(given.get("previous_response_id") or given.get("conversation_id"))
    return of.call


def _sent(model: Any, *args: Any, **named: Any) -> Sent:
    tools = [*argument(args, named, 3, "tools", ()), *argument(args, named, 5, "handoffs", ())]
    prompts = as_prompts(argument(args, named, 0, "system_instructions"))
    return Sent(items_of(argument(args, named, 1, "input")), prompts, SCHEMAS.of(tools), model_in(model))


def _said(answer: Any) -> str:
    parts = (part for item in answer.output for part in getattr(item, "content", None) or ())
    return "".join(getattr(part, "text", "") for part in parts)


def _holds_another(model: Any) -> bool:
    """Whether a model has another one that it asks, or several."""
    held = getattr(model, "__dict__", {}).values()
    inside = (one for each in held for one in (each if isinstance(each, list | tuple) else (each,)))
    return any(isinstance(one, Model) for one in inside)


#: What each class of models is given.
get_response: Final = innermost("get_response", _sent, _said, holds=_holds_another)
stream_response: Final = innermost("stream_response", _sent, holds=_holds_another)
