"""Determines which events AG2's model client converts into its request; it skips the others.

AG2 converts events in ``ag2.config.<provider>.mappers``, and rarely logs what it skips. All mappers convert requests,
responses, batches of tool results and summaries. No mapper converts a bare `ModelMessage`, which views of networks use
for an agent's own turns. Events that a provider wants replayed (`ProviderReplay`) are sent to that provider only. The
mappers of `_REPAIRS_PAIRS` skip tool calls without a result and results without a call. xAI's mapper sends tool calls
only as part of the provider's own turn (``XAIAssistantEvent``), and skips a response that has only tool calls and
follows no such turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otel_assembly._internal.class_cache import cached_by_class

#: Providers whose mappers skip tool calls without a result, and results without a call (AG2 1.0 to 1.2).
_REPAIRS_PAIRS: Final = frozenset({"anthropic", "bedrock"})
#: The configuration class for OpenAI's Chat Completions; its mapper converts no reasoning.
_CHAT_COMPLETIONS: Final = "OpenAIConfig"


def converted(events: Any, config: Any) -> Any:
    """Return the events that the client of this configuration converts; the same object if it converts all of them.

    Events that are not messages, such as single tool results before their batch, are kept: they count no tokens.

    Args:
        events: The events that the client is called with.
        config: The agent's model configuration; None if it is not known.
    """
    if not isinstance(events, Sequence):  # an iterator, which only the client may read
        return events
    kinds = {*map(type, events)}
    config_type: type = type(config)
    provider = _provider(config_type)
    skipped = {kind for kind in kinds if _is_skipped(kind, provider, _names(config_type))}
    kept = [event for event in events if type(event) not in skipped] if skipped else events
    if provider == "xai":
        return _with_replayed_calls(kept)
    return _with_whole_pairs(kept, provider) if provider in _REPAIRS_PAIRS else kept


def _with_replayed_calls(events: Sequence[Any]) -> Sequence[Any]:
    """Remove the responses that xAI's mapper skips: those with only tool calls, if no xAI turn precedes them."""
    kept: list[Any] = []
    is_replayed = False
    for event in events:
        kind: type = type(event)
        if "ModelResponse" in _names(kind):
            if is_replayed or event.content:
                kept.append(event)
            is_replayed = False
        else:
            kept.append(event)
            is_replayed = is_replayed or "XAIAssistantEvent" in _names(kind)
    return kept if len(kept) < len(events) else events


def _with_whole_pairs(events: Sequence[Any], provider: str) -> Sequence[Any]:
    """Remove tool calls without a result, and results without a call."""
    opened = {call.id for event in events for call in _calls(event)}
    if not opened and provider == "anthropic":  # its mapper then converts every result
        return events
    closed = {result.parent_id for event in events for result in _results(event)}

    def is_sent(event: Any) -> bool:
        calls, results = _calls(event), _results(event)
        if results:
            return any(result.parent_id in opened for result in results)
        if calls and not getattr(event, "message", None):
            return any(call.id in closed for call in calls)
        return True

    kept = [event for event in events if is_sent(event)]
    return kept if len(kept) < len(events) else events


def _calls(event: Any) -> Sequence[Any]:
    kind: type = type(event)
    return event.tool_calls.calls if "ModelResponse" in _names(kind) else ()


def _results(event: Any) -> Sequence[Any]:
    kind: type = type(event)
    names = _names(kind)
    if "ToolResultsEvent" in names:
        results: Sequence[Any] = event.results
        return results
    return (event,) if "ToolResultEvent" in names else ()


@cached_by_class
def _names(kind: type) -> frozenset[str]:
    return frozenset(base.__name__ for base in kind.__mro__)


@cached_by_class
def _provider(kind: type) -> str:
    """Return the provider in whose folder a configuration or event class is defined; empty if in none."""
    for base in kind.__mro__:
        package, _, rest = base.__module__.partition(".config.")
        if rest and package in {"ag2", "autogen.beta"}:
            return rest.partition(".")[0]
    return ""


def _is_skipped(kind: type, provider: str, config: frozenset[str]) -> bool:
    names = _names(kind)
    if "ModelMessage" in names:
        return True
    if "ProviderReplay" not in names or not provider:
        return False
    return _provider(kind) != provider or ("ModelReasoning" in names and _CHAT_COMPLETIONS in config)
