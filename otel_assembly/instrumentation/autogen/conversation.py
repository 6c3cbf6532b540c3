"""How an assembly of a model context begins: with what memories have put into it since the last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.askers import ASKERS
from otel_assembly.instrumentation.autogen.calls import current_agent, model_of
from otel_assembly.instrumentation.autogen.contexts import is_same
from otel_assembly.instrumentation.wrapping import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.autogen.calls import ModelCall
    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly


@dataclass(frozen=True, slots=True)
class Injection:
    """What one memory put into a context.

    Attributes:
        policy: The name of its step.
        started_ns: When the memory was asked.
        at: How many messages stood in front of it.
        messages: What it put there.
    """

    policy: str
    started_ns: int
    at: int
    messages: list[Any]


@dataclass(frozen=True, slots=True)
class _Stage:
    """One memory's injection, between two states of a context: without it and what came after it, and with it."""

    policy: str
    started_ns: int
    before: Sequence[Any]
    after: Sequence[Any]


_PENDING: Final[ByIdentity[list[Injection]]] = ByIdentity()


def remember(context: Any, injection: Injection) -> None:
    """The next assembly of this context has an injection to tell."""
    held = _PENDING.get(context)
    if held is None:
        held = _PENDING.put(context, [])
    held.append(injection)


def begin(
    instrumentation: Instrumentation,
    context: Any,
    events: Sequence[Any],
    *,
    call: ModelCall | None = None,
    started_ns: int | None = None,
    unknown: bool = False,
) -> ObservedAssembly | None:
    """An assembly of a context begins; None where nobody listens.

    Args:
        instrumentation: Where it is told.
        context: Whose messages they are.
        events: The messages.
        call: The model call that they are for, where that is known.
        started_ns: When it began, if that was earlier.
        unknown: What came in cannot be known.
    """
    stages = _stages(context, events)
    if unknown or not stages:
        stages = []
    else:
        started_ns = stages[0].started_ns
    agent_name = call.agent_name if call is not None else current_agent()
    assembly = instrumentation.observed.begin(
        ASKERS.of(context, agent_name or ""),
        stages[0].before if stages else events,
        prompts=call.prompts if call is not None else (),
        tools=call.tools if call is not None else (),
        agent_name=agent_name,
        model=call.model if call is not None else model_of(getattr(context, "_model_client", None)),
        started_ns=started_ns,
        unknown_input=unknown,
    )
    if assembly is None:
        return None
    for stage in stages:
        with assembly.step(stage.policy, kind="injection", started_ns=stage.started_ns) as step:
            step.out(stage.after)
    return assembly


def _stages(context: Any, events: Sequence[Any]) -> list[_Stage]:
    """What memories put into a context since its last assembly, as far as it still stands where they put it."""
    found = [one for one in _PENDING.pop(context) or () if _stands(one, events)]
    stages: list[_Stage] = []
    after = list(events)
    for one in reversed(found):
        before = [*after[: one.at], *after[one.at + len(one.messages) :]]
        stages.append(_Stage(one.policy, one.started_ns, before, after))
        after = before
    return stages[::-1]


def _stands(injection: Injection, events: Sequence[Any]) -> bool:
    there = events[injection.at : injection.at + len(injection.messages)]
    return is_same(there, injection.messages)
