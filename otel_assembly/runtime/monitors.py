"""The built-in observers: token usage, repeated tool calls, and budget utilization.

The observers read events with `describe`, so they support the messages of every framework.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.arguments import whole_number
from otel_assembly._internal.registry import Registry
from otel_assembly.conversation_state import REMEMBERED_CONVERSATIONS
from otel_assembly.errors import ConfigurationError, UnknownNameError
from otel_assembly.events import (
    AssemblyCompleted,
    Event,
    ObserverAlert,
    Severity,
    UsageEvent,
    severity_name,
)
from otel_assembly.messages.event_facts import describe

if TYPE_CHECKING:
    from collections.abc import Hashable

    from otel_assembly.context import Context
    from otel_assembly.conversation_state import Conversation
    from otel_assembly.events import SeverityName

#: The number of recent call reports that are kept to recognize a second report of the same call.
_MAX_REPORTS: Final = 64
#: The most characters of a tool's name in an alert. The model writes the name, so it may be any text.
_NAME_LENGTH: Final = 64
_SEVERITIES: Final = list(Severity)


class _Message(type):
    """Metaclass of `Message`: ``isinstance`` is true for the types that `describe` reads as messages."""

    def __instancecheck__(cls, event: Any) -> bool:
        return cls.__subclasscheck__(type(event))

    def __subclasscheck__(cls, kind: type) -> bool:
        return describe.dispatch(kind) not in {describe.dispatch(object), describe.dispatch(Event)}


class Message(metaclass=_Message):
    """A type for `Observer.watches` that matches the messages of every framework.

    Other events, such as alerts, do not match.
    """


class TokenMonitor:
    """Alerts when the billed input and output tokens of a conversation reach a threshold.

    The monitor reads `UsageEvent`s and the usage in responses of every framework. A call that is reported in both ways
    counts once: a `UsageEvent` and a response with the same token counts are one call, if fewer than 64 other calls
    are between them. Each threshold raises one alert. If one call reaches both thresholds, only the alert for
    `alert_threshold` is raised.

    Args:
        warn_threshold: The tokens at which an alert of `warn_severity` is raised.
        alert_threshold: The tokens at which an alert of `alert_severity` is raised.
        name: The source of the alerts.
        warn_severity: A `Severity` or its name.
        alert_severity: A `Severity` or its name; ``"fatal"`` halts the conversation.

    Raises:
        ConfigurationError: A threshold is not positive, `warn_threshold` is above `alert_threshold`, or
            `warn_severity` is more severe than `alert_severity`.
    """

    watches = (UsageEvent, Message)

    def __init__(
        self,
        warn_threshold: int = 50_000,
        alert_threshold: int = 100_000,
        *,
        name: str = "token_monitor",
        warn_severity: Severity | SeverityName = Severity.WARNING,
        alert_severity: Severity | SeverityName = Severity.CRITICAL,
    ) -> None:
        thresholds: dict[str, Any] = {"warn_threshold": warn_threshold, "alert_threshold": alert_threshold}
        for parameter, threshold in thresholds.items():
            if isinstance(threshold, int):
                whole_number(parameter, threshold, unit="tokens")
            elif not threshold > 0:  # float("inf") disables this alert
                raise ConfigurationError(f"{parameter} must be above 0 tokens, not {threshold}")
        if warn_threshold > alert_threshold:
            raise ConfigurationError(
                f"warn_threshold must be at most alert_threshold ({alert_threshold} tokens), got {warn_threshold}"
            )
        self.name = name
        self.warn_threshold = warn_threshold
        self.alert_threshold = alert_threshold
        self.warn_severity = _severity(warn_severity)
        self.alert_severity = _severity(alert_severity)
        if _SEVERITIES.index(self.warn_severity) > _SEVERITIES.index(self.alert_severity):
            raise ConfigurationError(
                f"warn_severity {self.warn_severity.value} is more severe than "
                f"alert_severity {self.alert_severity.value}"
            )
        self._states: Registry[Conversation, _TokenState] = Registry(REMEMBERED_CONVERSATIONS)

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Add the billed tokens of the event to the conversation's total; alert if a threshold is reached."""
        billed = _billed_tokens(event)
        if billed is None:
            return None
        spent = self._states.of(context.conversation, _TokenState)
        if not spent.calls.first(type(event), billed):
            return None
        previous_tokens = spent.tokens
        spent.tokens += sum(billed)
        for level, threshold, severity in (
            ("alert", self.alert_threshold, self.alert_severity),
            ("warning", self.warn_threshold, self.warn_severity),
        ):
            if previous_tokens < threshold <= spent.tokens:
                return ObserverAlert(
                    source=self.name,
                    severity=severity,
                    message=f"{spent.tokens} tokens used in this conversation; the {level} threshold is {threshold}",
                    data={"tokens": spent.tokens, "threshold": threshold},
                )
        return None


class LoopDetector:
    """Alerts when a tool is called repeatedly with the same arguments.

    Arguments are compared as canonical JSON and stored as hashes; alerts do not contain them. The monitor reads tool
    calls in responses of every framework, and tool calls that are separate events. A call that is reported in both
    ways counts once. A loop raises one alert. It can raise another one after fewer than `repeat_threshold` of its calls
    were in the window.

    Args:
        window_size: The number of latest tool calls that are compared.
        repeat_threshold: The number of equal calls in the window that counts as a loop.
        name: The source of the alerts.
        severity: A `Severity` or its name; ``"fatal"`` halts the conversation.

    Raises:
        ConfigurationError: `repeat_threshold` is below 2 or above `window_size`.
    """

    watches = (Message,)

    def __init__(
        self,
        window_size: int = 10,
        repeat_threshold: int = 3,
        *,
        name: str = "loop_detector",
        severity: Severity | SeverityName = Severity.WARNING,
    ) -> None:
        whole_number("window_size", window_size, least=2)
        whole_number("repeat_threshold", repeat_threshold, least=2)
        if repeat_threshold > window_size:
            raise ConfigurationError(
                f"repeat_threshold must be between 2 and window_size ({window_size}), not {repeat_threshold}"
            )
        self.name = name
        self.window_size = window_size
        self.repeat_threshold = repeat_threshold
        self.severity = _severity(severity)
        self._states: Registry[Conversation, _LoopState] = Registry(REMEMBERED_CONVERSATIONS)

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Add the event's tool calls to the window and alert on new loops."""
        facts = describe(event)
        if not facts.calls:
            return None
        state = self._states.of(context.conversation, _LoopState)
        new_loops: dict[tuple[str, bytes], int] = {}
        for call in facts.calls:
            key = (call.name, _arguments_hash(call.arguments))
            if not state.reported.first(type(event), (call.id, key)):
                continue
            state.window.append(key)
            if len(state.window) > self.window_size:
                state.window.popleft()
            state.loops = {loop for loop in state.loops if state.window.count(loop) >= self.repeat_threshold}
            count = state.window.count(key)
            if count >= self.repeat_threshold and (key in new_loops or key not in state.loops):
                state.loops.add(key)
                new_loops[key] = count
        if not new_loops:
            return None
        state.loop_number += 1
        loops = [{"tool": tool[:_NAME_LENGTH], "count": count} for (tool, _), count in new_loops.items()]
        calls = " and ".join(f"tool {loop['tool']!r} was called {loop['count']} times" for loop in loops)
        # The number distinguishes a later loop of the same tool from this alert.
        return ObserverAlert(
            source=self.name,
            severity=self.severity,
            message=f"loop {state.loop_number}: {calls} with the same arguments "
            f"within the last {self.window_size} calls",
            data={"loops": loops, "window_size": self.window_size},
        )


class BudgetMonitor:
    """Alerts when the messages of a model call overflow their token budget or reach a utilization threshold.

    The monitor reads the `AssemblyCompleted` event that is sent before each model call.

    Every overflow raises an alert. Utilization is the share of the budget that is used by fixed content, which no
    policy may drop: the rest of a budget is always filled. If the fixed content is unknown, all content counts. The
    threshold raises one alert, and another one each time the utilization reaches the threshold again.

    Args:
        utilization_threshold: The share of the budget at which an alert is raised, above 0 and at most 1.
        name: The source of the alerts.
        utilization_severity: A `Severity` or its name.
        overflow_severity: A `Severity` or its name; ``"fatal"`` halts the conversation.

    Raises:
        ConfigurationError: The threshold is not above 0 and at most 1.
    """

    watches = (AssemblyCompleted,)

    def __init__(
        self,
        utilization_threshold: float = 0.9,
        *,
        name: str = "budget_monitor",
        utilization_severity: Severity | SeverityName = Severity.WARNING,
        overflow_severity: Severity | SeverityName = Severity.CRITICAL,
    ) -> None:
        if not 0 < utilization_threshold <= 1:
            raise ConfigurationError(
                f"utilization_threshold must be above 0 and at most 1, not {utilization_threshold}"
            )
        self.name = name
        self.utilization_threshold = utilization_threshold
        self.utilization_severity = _severity(utilization_severity)
        self.overflow_severity = _severity(overflow_severity)
        self._states: Registry[Conversation, _UtilizationState] = Registry(REMEMBERED_CONVERSATIONS)

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Compare the tokens of the assembly with its budget; alert on an overflow or a reached threshold."""
        state = self._states.of(context.conversation, _UtilizationState)
        if event.overflow_tokens > 0:
            # Keep the utilization state: after an overflow, the output may be empty.
            return self._overflow(event)
        if not event.budget:
            return None
        measured, tokens = ("content", event.tokens) if event.fixed is None else ("fixed content", event.fixed)
        was_above, state.is_above = state.is_above, tokens / event.budget >= self.utilization_threshold
        if was_above or not state.is_above:
            return None
        return ObserverAlert(
            source=self.name,
            severity=self.utilization_severity,
            message=f"turn {event.turn}: {measured} takes {tokens} of {event.budget} tokens, "
            f"{tokens / event.budget:.0%} of the budget",
            data={"turn": event.turn, "tokens": tokens, "budget": event.budget},
        )

    def _overflow(self, event: AssemblyCompleted) -> ObserverAlert:
        excess = event.overflow_tokens
        data: dict[str, Any] = {"turn": event.turn, "overflow_tokens": excess, "cause": event.overflow_cause}
        message = f"turn {event.turn}: the context overflows its budget by {excess} tokens"
        if event.budget is not None:
            message += f", it needs {event.budget + excess} of {event.budget}"
            data |= {"tokens": event.budget + excess, "budget": event.budget}
        return ObserverAlert(source=self.name, severity=self.overflow_severity, message=message, data=data)


class _ReportedCalls:
    """Recognizes a call that several event types report, so that the call counts once."""

    __slots__ = ("_reported",)

    def __init__(self) -> None:
        self._reported: OrderedDict[Hashable, dict[type, int]] = OrderedDict()

    def first(self, event_type: type, key: Hashable) -> bool:
        """Return True if this is the first report of a call, among all event types.

        If the same event type reports a key twice, these are two calls.

        Args:
            event_type: The type of the reporting event.
            key: The values by which reports of the same call are recognized.
        """
        reported = self._reported.setdefault(key, {})
        self._reported.move_to_end(key)
        while len(self._reported) > _MAX_REPORTS:
            self._reported.popitem(last=False)
        most_reports = max(reported.values(), default=0)
        reported[event_type] = reported.get(event_type, 0) + 1
        return reported[event_type] > most_reports


@dataclass(slots=True)
class _TokenState:
    tokens: int = 0
    calls: _ReportedCalls = field(default_factory=_ReportedCalls)


@dataclass(slots=True)
class _LoopState:
    window: deque[tuple[str, bytes]] = field(default_factory=deque)
    loops: set[tuple[str, bytes]] = field(default_factory=set)
    loop_number: int = 0
    reported: _ReportedCalls = field(default_factory=_ReportedCalls)


@dataclass(slots=True)
class _UtilizationState:
    #: True if the utilization of the latest assembly reached the threshold.
    is_above: bool = False


def _billed_tokens(event: Any) -> tuple[int, int] | None:
    """Return the billed input and output tokens that an event reports; None if the event contains no usage."""
    if isinstance(event, UsageEvent):
        return event.usage.input_tokens, event.usage.output_tokens
    facts = describe(event)
    if facts.billed_tokens is None and facts.output_tokens is None:
        return None
    return facts.billed_tokens or 0, facts.output_tokens or 0


def _severity(value: Severity | SeverityName) -> Severity:
    name = severity_name(value)
    if name not in _SEVERITIES:
        raise UnknownNameError("severity", name, [severity.value for severity in Severity])
    return Severity(name)


def _arguments_hash(arguments: str) -> bytes:
    try:
        text = json.dumps(json.loads(arguments, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        text = arguments
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _number(text: str) -> float:
    # 2.0 and 2 are the same number in JSON, so equal calls must have equal hashes.
    number = float(text)
    return int(number) if number.is_integer() else number
