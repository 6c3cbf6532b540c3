"""Which events AG2's client converts into its request: its mappers skip the others, and log little or nothing.

AG2's mappers live in ``ag2.config.<provider>.mappers``. All of them convert requests, responses, batches of tool
results and summaries. No mapper converts a bare `ModelMessage`, by which views of networks project an agent's own
turns. What a provider wants back of itself goes to that provider only, and the mappers of `_REPAIRS_PAIRS` leave a tool
call without a result, and a result without a call, out. xAI's mapper sends calls only as part of the provider's own
turn (``XAIAssistantEvent``): a response with nothing but calls and no such turn in front of it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from otel_assembly._internal.class_cache import cached_by_class

#: Providers whose mappers skip halves of tool pairs (AG2 1.0 to 1.2).
_REPAIRS_PAIRS: Final = frozenset({"anthropic", "bedrock"})
#: Configurations of OpenAI's Chat Completions, whose mapper converts no reasoning items.
_CHAT_COMPLETIONS: Final = "OpenAIConfig"


def converted(events: Any, config: Any) -> Any:
    """Return the events that the client of this configuration converts; the same object if it converts all of them.

    Events that a stream carries beside its messages, such as single tool results before their batch, stay: they are
    counted as nothing.

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
    opened = {call.id for event in events for call in _calls(event)}
    if not opened and provider == "anthropic":  # its mapper then takes every result for wanted
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
    """The provider's folder in which a configuration, or an event of one provider's, is defined; else empty."""
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
