"""The hook of LiteLLM's `trim_messages`: the next call's assembly has it as a step with its settings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.provider_clients.program_reductions import defer_reduction
from otel_assembly.instrumentation.provider_clients.requests import plain
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation

_NAME: Final = "trim_messages"


def _trim(
    instrumentation: Instrumentation,
    messages: Sequence[Any],
    model: str | None = None,
    trim_ratio: float | None = None,
    return_response_tokens: bool = False,
    max_tokens: int | None = None,
) -> Generator[None, Any, None]:
    before = [plain(message) for message in messages]
    result = yield
    after = [plain(message) for message in (result[0] if isinstance(result, tuple) else result)]
    if after == before:
        instrumentation.observed.declined(_NAME)
        return
    settings = {"max_tokens": max_tokens, "trim_ratio": trim_ratio}
    report = StepReport(
        _NAME,
        before,
        after,
        config={name: value for name, value in settings.items() if value is not None},
        reason=DecisionReason.OVER_BUDGET,
        verdicts=_shortened(before, after),
        budget=max_tokens if isinstance(max_tokens, int) and max_tokens > 0 else None,
        stands_in=False,
    )
    defer_reduction(report)


def _shortened(before: Sequence[Any], after: Sequence[Any]) -> list[Verdict]:
    """Return a verdict for each message that is in the output with a part of its text cut out of the middle."""
    unchanged = Counter(map(repr, after)) & Counter(map(repr, before))
    cut = [message for message in after if not unchanged[repr(message)]]
    candidates = [message for message in before if not unchanged[repr(message)]]
    verdicts = []
    for message in reversed(cut):
        original = next((found for found in reversed(candidates) if _is_cut_from(message, found)), None)
        if original is not None:
            candidates.remove(original)
            verdicts.append(Verdict([original], DecisionOutcome.COMPACTED, DecisionReason.COMPACTED, message))
    return verdicts


def _is_cut_from(message: Any, original: Any) -> bool:
    """Return True if a message is the beginning and the end of another one, with two characters in place of the middle.

    LiteLLM's two characters are dots. They are not compared: the two ends suffice to find the original.
    """
    text, whole = message.get("content"), original.get("content")
    if not isinstance(text, str) or not isinstance(whole, str) or message.get("role") != original.get("role"):
        return False
    half = (len(text) - 2) // 2
    return half > 0 and len(text) < len(whole) and whole.startswith(text[:half]) and whole.endswith(text[half + 2 :])


trim_messages: Final = observe_hook(_trim)


hide_frames(globals())
