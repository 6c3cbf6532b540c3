"""The observers that come with the library: tokens spent, loops of tool calls, budgets that fill up.

They read what `describe` says of an event, so that they watch the messages of any framework as they watch our events.
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

#: Something reported in one way is awaited in the other ways for so many other things.
_AWAITED: Final = 64
#: Characters of a tool's name in a message: the model writes it, and it may write anything.
_NAME_LENGTH: Final = 64
_GRAVITY: Final = list(Severity)


class _Message(type):
    """Of events that are messages: those for which there is a row of `describe` that is more than a note's."""

    def __instancecheck__(cls, event: Any) -> bool:
        return cls.__subclasscheck__(type(event))

    def __subclasscheck__(cls, kind: type) -> bool:
        return describe.dispatch(kind) not in {describe.dispatch(object), describe.dispatch(Event)}


class Message(metaclass=_Message):
    """What an observer watches that is to be shown the messages of whichever framework, and our own; not notes."""


class TokenMonitor:
    """Adds up the tokens that a conversation's model calls were billed for, input and output.

    It reads `UsageEvent`, and what the responses of any framework say of their own usage. Where a call is reported in
    both ways it counts once: one of each, with the same two numbers and fewer than 64 others in between, are one call.
    Each threshold alerts once; where one call crosses both, the alert's alone is raised.

    Args:
        warn_threshold: Tokens from which `warn_severity` is raised.
        alert_threshold: Tokens from which `alert_severity` is raised.
        name: The source of its alerts.
        warn_severity: As `Severity` or its name.
        alert_severity: As `Severity` or its name; ``"fatal"`` halts the conversation.

    Raises:
        ConfigurationError: A threshold is not positive, or the warning is above the alert or graver than it.
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
            elif not threshold > 0:  # infinity: this alert never comes
                raise ConfigurationError(f"{parameter} must be above 0 tokens, not {threshold}")
        if warn_threshold > alert_threshold:
            raise ConfigurationError(
                f"warn_threshold {warn_threshold} is above alert_threshold {alert_threshold}: it would never warn first"
            )
        self.name = name
        self.warn_threshold = warn_threshold
        self.alert_threshold = alert_threshold
        self.warn_severity = _severity(warn_severity)
        self.alert_severity = _severity(alert_severity)
        if _GRAVITY.index(self.warn_severity) > _GRAVITY.index(self.alert_severity):
            raise ConfigurationError(
                f"warn_severity {self.warn_severity.value} is graver than alert_severity {self.alert_severity.value}"
            )
        self._states: Registry[Conversation, _Spent] = Registry(REMEMBERED_CONVERSATIONS)

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Add what the event was billed for."""
        billed = _billed(event)
        if billed is None:
            return None
        spent = self._states.of(context.conversation, _Spent)
        if not spent.calls.first(type(event), billed):
            return None
        before = spent.tokens
        spent.tokens += sum(billed)
        for what, threshold, severity in (
            ("alert", self.alert_threshold, self.alert_severity),
            ("warning", self.warn_threshold, self.warn_severity),
        ):
            if before < threshold <= spent.tokens:
                return ObserverAlert(
                    source=self.name,
                    severity=severity,
                    message=f"{spent.tokens} tokens used in this conversation; the {what} threshold is {threshold}",
                    data={"tokens": spent.tokens, "threshold": threshold},
                )
        return None


class LoopDetector:
    """Notices a tool that is called again and again with the same arguments.

    Arguments are compared as canonical JSON and remembered as hashes; they never stand in an alert. It reads the tool
    calls in the responses of any framework, and those that are events by themselves; a call that is reported in both
    ways counts once. A loop alerts once, until fewer than `repeat_threshold` of its calls are in the window.

    Args:
        window_size: How many of the newest tool calls are looked at.
        repeat_threshold: How many equal calls among them are a loop.
        name: The source of its alerts.
        severity: As `Severity` or its name; ``"fatal"`` halts the conversation.

    Raises:
        ConfigurationError: The threshold is below 2 or above the window.
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
        self._states: Registry[Conversation, _Calls] = Registry(REMEMBERED_CONVERSATIONS)

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Put the event's tool calls into the window and look for new loops."""
        facts = describe(event)
        if not facts.calls:
            return None
        state = self._states.of(context.conversation, _Calls)
        begun: dict[tuple[str, bytes], int] = {}
        for call in facts.calls:
            key = (call.name, _arguments_hash(call.arguments))
            if not state.reported.first(type(event), (call.id, key)):
                continue
            state.window.append(key)
            if len(state.window) > self.window_size:
                state.window.popleft()
            state.loops = {loop for loop in state.loops if state.window.count(loop) >= self.repeat_threshold}
            count = state.window.count(key)
            if count >= self.repeat_threshold and (key in begun or key not in state.loops):
                state.loops.add(key)
                begun[key] = count
        if not begun:
            return None
        state.found += 1
        loops = [{"tool": tool[:_NAME_LENGTH], "count": count} for (tool, _), count in begun.items()]
        which = " and ".join(f"tool {loop['tool']!r} was called {loop['count']} times" for loop in loops)
        # The number keeps a later loop of the same tool from being taken for this alert again.
        return ObserverAlert(
            source=self.name,
            severity=self.severity,
            message=f"loop {state.found}: {which} with the same arguments within the last {self.window_size} calls",
            data={"loops": loops, "window_size": self.window_size},
        )


class BudgetMonitor:
    """Watches how full the context is after every assembly (`AssemblyCompleted`).

    Every overflow alerts. Utilisation is fixed content ÷ budget, for a reducer fills any budget; where the fixed
    content is not known, tokens ÷ budget. Reaching the threshold alerts once, until it was below again.

    Args:
        utilization_threshold: The part of the budget from which it alerts, above 0 and at most 1.
        name: The source of its alerts.
        utilization_severity: As `Severity` or its name.
        overflow_severity: As `Severity` or its name; ``"fatal"`` halts the conversation.

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
        self._states: Registry[Conversation, _Fill] = Registry(REMEMBERED_CONVERSATIONS)

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        """Compare the assembly with its budget."""
        state = self._states.of(context.conversation, _Fill)
        if event.overflow_tokens > 0:
            # What was sent says nothing of the fill here: it may be nothing.
            return self._overflow(event)
        if not event.budget:
            return None
        what, tokens = ("content", event.tokens) if event.fixed is None else ("fixed content", event.fixed)
        above, state.above = state.above, tokens / event.budget >= self.utilization_threshold
        if above or not state.above:
            return None
        return ObserverAlert(
            source=self.name,
            severity=self.utilization_severity,
            message=f"turn {event.turn}: {what} takes {tokens} of {event.budget} tokens, "
            f"{tokens / event.budget:.0%} of the budget",
            data={"turn": event.turn, "tokens": tokens, "budget": event.budget},
        )

    def _overflow(self, event: AssemblyCompleted) -> ObserverAlert:
        over = event.overflow_tokens
        data: dict[str, Any] = {"turn": event.turn, "overflow_tokens": over, "cause": event.overflow_cause}
        message = f"turn {event.turn}: the context overflows its budget by {over} tokens"
        if event.budget is not None:
            message += f", it needs {event.budget + over} of {event.budget}"
            data |= {"tokens": event.budget + over, "budget": event.budget}
        return ObserverAlert(source=self.name, severity=self.overflow_severity, message=message, data=data)


class _Once:
    """What is reported in several ways, by itself or with the response, counts as often as one of them reports it."""

    __slots__ = ("_reported",)

    def __init__(self) -> None:
        self._reported: OrderedDict[Hashable, dict[type, int]] = OrderedDict()

    def first(self, way: type, what: Hashable) -> bool:
        """Whether this is the first to report it, of events of the type `way` and of others."""
        reported = self._reported.setdefault(what, {})
        self._reported.move_to_end(what)
        while len(self._reported) > _AWAITED:
            self._reported.popitem(last=False)
        most = max(reported.values(), default=0)
        reported[way] = reported.get(way, 0) + 1
        return reported[way] > most


@dataclass(slots=True)
class _Spent:
    tokens: int = 0
    calls: _Once = field(default_factory=_Once)


@dataclass(slots=True)
class _Calls:
    window: deque[tuple[str, bytes]] = field(default_factory=deque)
    loops: set[tuple[str, bytes]] = field(default_factory=set)
    found: int = 0
    reported: _Once = field(default_factory=_Once)


@dataclass(slots=True)
class _Fill:
    above: bool = False


def _billed(event: Any) -> tuple[int, int] | None:
    """The tokens that a call was billed for, in and out; None where the event does not say."""
    if isinstance(event, UsageEvent):
        return event.usage.input_tokens, event.usage.output_tokens
    facts = describe(event)
    if facts.billed_tokens is None and facts.output_tokens is None:
        return None
    return facts.billed_tokens or 0, facts.output_tokens or 0


def _severity(value: Severity | SeverityName) -> Severity:
    name = severity_name(value)
    if name not in _GRAVITY:
        raise UnknownNameError("severity", name, [each.value for each in Severity])
    return Severity(name)


def _arguments_hash(arguments: str) -> bytes:
    try:
        text = json.dumps(json.loads(arguments, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        text = arguments
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _number(text: str) -> float:
    # 2.0 and 2 are one number in JSON.
    number = float(text)
    return int(number) if number.is_integer() else number
