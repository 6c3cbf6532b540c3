"""Reductions that are recorded later than their reducer ran.

A framework can run a reducer (code that removes or shortens messages) outside any model call, for example between two
runs. `DeferredReductions` stores its `StepReport` until the invoking agent's next model call in the same conversation,
which records it as a step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.registry import Registry
from otel_assembly.instrumentation.context_variables import SUMMARIZED
from otel_assembly.instrumentation.message_alignment import locate, replace_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.step_report import StepReport

#: The most ledgers with deferred reductions; the least recently used ones are dropped first.
_MOST_LEDGERS: Final = 1_000
#: The most deferred reductions of one ledger; the oldest ones are dropped first.
_MOST_PER_LEDGER: Final = 16


class DeferredReductions:
    """The reductions that are not recorded yet, by ledger: one per invoking agent and conversation.

    Attributes:
        record: Records reductions of an invoking agent as an assembly without a model call. `model_call` sets this
            attribute, because `ModelCall` uses this module.
        take_reported: Takes the reductions that the program reported for messages of a conversation: returns the
            messages before them, and the reports. `program_reductions` sets this attribute when it is imported, which
            is before a program can report a reduction.
    """

    record: Callable[[Instrumentation, InvokingAgent, Sequence[StepReport]], None]
    take_reported: Callable[[Sequence[Any], str | None], tuple[list[Any], list[StepReport]]]

    def __init__(self) -> None:
        self.take_reported = lambda messages, conversation_id: (list(messages), [])
        self._by_ledger: Registry[Any, list[StepReport]] = Registry(_MOST_LEDGERS, clear_after_fork=True)

    def put(self, invoking_agent: InvokingAgent, report: StepReport) -> None:
        """Store a reduction; the next model call of this invoking agent records it before the call's own steps.

        Nothing is stored if the invoking agent has no conversation, because no later call can then be its next one.
        """
        key = invoking_agent.ledger()
        if key is not None:
            reductions = self._by_ledger.of(key, list)
            reductions.append(report)
            del reductions[:-_MOST_PER_LEDGER]
            invoking_agents = SUMMARIZED.get()
            if report.attempts and invoking_agents is not None:
                invoking_agents.append(invoking_agent)  # for `run_ended`

    def take(self, invoking_agent: InvokingAgent) -> list[StepReport]:
        """Remove the reductions of an invoking agent and return them, the oldest first."""
        key = invoking_agent.ledger()
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
                self.record(instrumentation, invoking_agent, reductions)
                stored += [replace(reduction, attempts=()) for reduction in reductions]


DEFERRED_REDUCTIONS: Final = DeferredReductions()
