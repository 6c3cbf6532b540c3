"""`AlertPolicy`: adds observers' alerts to the prompts, and halts the run on a fatal alert."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.conversation_state import AlertFacts, alert_facts
from otel_assembly.decision import Outcome
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.policies.base import INJECTION, DecidingPolicy, as_view, waits_if

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_assembly.context import Context
    from otel_assembly.history.view import View


class AlertPolicy(DecidingPolicy):
    """Append each new observer alert to the prompts (as in AG2).

    If an alert is fatal, the policy also emits a `HaltEvent`, at most once per conversation.

    Two alerts of a conversation are the same if source, severity and message are equal. The conversation's state, not
    the policy, records which alerts were injected, so one policy object can serve many agents.

    An alert is injected again in two cases. If the assembly fails, the next assembly injects the alert. If the next
    input contains no new response, the model call is taken to have failed, and the alert is injected again, up to three
    times. The alert still counts as delivered once.

    Place this policy after other injections, and before every filter or reduction: those could drop the alerts.
    """

    name: str = "alert"
    kind: str = INJECTION
    reads: ClassVar[frozenset[str]] = frozenset({EventKind.ALERT})
    skippable: ClassVar[bool] = False

    @waits_if(lambda _, context: context.stream is not None)
    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return the prompts with the new alerts and the alerts that no response has followed."""
        conversation, view = context.conversation, as_view(events)
        deliveries, input_view = conversation.deliveries, context.input if context.input is not None else view
        shown: list[AlertFacts] = []
        for alert in (*deliveries.unanswered(), *self._alerts(view, context)):
            if deliveries.claim(alert, input_view, context.alerts_shown_before):
                context.when_done(
                    success=partial(deliveries.deliver, alert, input_view), failure=partial(conversation.release, alert)
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
        """Yield the alerts among the events, without those that earlier turns of the same `History` have read."""
        history, conversation = view.history, context.conversation
        if not view.whole:
            for position in view.positions():
                if history.kind(position) is EventKind.ALERT:
                    yield alert_facts(history.events[position])
            return
        end = history.alerts.index(view.end)
        start = 0
        if history.conversation is conversation:
            start = conversation.alerts_read
            context.when_done(success=partial(conversation.has_read, end, conversation.releases))
        for position in history.alerts.positions[start:end]:
            yield alert_facts(history.events[position])
