"""`AlertPolicy`: what observers say reaches the model; what is FATAL ends the run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.conversation_state import AlertFacts, alert_facts
from otel_assembly.decision import Outcome
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies.base import INJECTION, DecidingPolicy, as_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.context import Context
    from otel_assembly.history.view import View


class AlertPolicy(DecidingPolicy):
    """Appends each new observer alert to the prompts; for a FATAL one it also emits a `HaltEvent` (as in AG2).

    An alert is known by its source, severity and message, in one conversation; an enum and a string severity are the
    same. What was shown is remembered by the conversation, so that one policy object may serve many agents. Where the
    assembly fails after all, the next one shows the alert. So it does where the model call failed, which shows by this
    that no response has come in since: up to three times, and the alert counts as delivered once. A `HaltEvent` is
    emitted only if the guard has not closed before: one in a conversation.

    Place it after other injections and before every filter or reduction, which would take alerts out of its sight.
    """

    name: str = "alert"
    kind: str = INJECTION
    reads: ClassVar[frozenset[str]] = frozenset({EventKind.ALERT})
    skippable: ClassVar[bool] = False

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the prompts with the new alerts, and those that the model has not answered."""
        conversation, view = context.conversation, as_view(events)
        deliveries, came = conversation.deliveries, context.input if context.input is not None else view
        shown: list[AlertFacts] = []
        for alert in (*deliveries.unanswered(), *self._alerts(view, context)):
            if deliveries.claim(alert, came, context.began):
                context.when_done(
                    success=partial(deliveries.deliver, alert, came), failure=partial(conversation.release, alert)
                )
                shown.append(alert)
        if not shown:
            return Outcome(prompts, events)
        fatal = [alert for alert in shown if alert.fatal]
        warnings = [alert for alert in shown if not alert.fatal]
        injected = list(prompts)
        if warnings:
            lines = (f"- [{alert.severity.upper()}] ({alert.source}): {alert.message}" for alert in warnings)
            injected.append("\n".join(("[OBSERVER MONITORING ALERTS]", *lines)))
        if fatal:
            halt = context.guard.close(fatal)
            if halt is not None:
                await context.halt(halt)
            injected.append(f"[FATAL ALERT] ({fatal[0].source}): {fatal[0].message}. Execution halting.")
        return Outcome(injected, events, alerts=tuple(filter(deliveries.first, shown)))

    def _alerts(self, view: View, context: Context) -> Iterator[AlertFacts]:
        history, conversation = view.history, context.conversation
        if not view.whole:
            for position in view.positions():
                if history.kind(position) is EventKind.ALERT:
                    yield alert_facts(history.event(position))
            return
        end = history.alerts.index(view.end)
        start = 0
        if history.conversation is conversation:
            start = conversation.alerts_read
            context.when_done(success=partial(conversation.has_read, end, conversation.releases))
        for position in history.alerts.positions(start, end):
            yield alert_facts(history.event(position))
