"""Determines which events AG2's model client converts into its request; it skips the others.

AG2 converts events in ``ag2.config.<provider>.mappers``, and rarely logs what it skips. All mappers convert requests,
responses, batches of tool results and summaries. No mapper converts a bare `ModelMessage`, which views of networks use
for an agent's own turns. Events that a provider wants replayed (`ProviderReplay`) are sent to that provider only. The
mappers of `_REPAIRS_PAIRS` skip tool calls without a result and results without a call. xAI's mapper sends tool calls
only as part of the provider's own turn (``XAIAssistantEvent``), and skips a response that has only tool calls and
follows no such turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from otel_assembly._internal.class_cache import cached_by_class
from otel_assembly.instrumentation.ag2.messages import PACKAGES

#: Providers whose mappers skip tool calls without a result, and results without a call (AG2 1.0 to 1.2).
_REPAIRS_PAIRS: Final = frozenset({"anthropic", "bedrock"})
#: The configuration class for OpenAI's Chat Completions; its mapper converts no reasoning.
_CHAT_COMPLETIONS: Final = "OpenAIConfig"


def converted(events: Any, config: Any) -> Any:
    """Return the events that the client of a model configuration converts; the same object if it converts all of them.

    Events that are not messages, such as single tool results before their batch, are kept: they count no tokens.
    """
    if not isinstance(events, Sequence):  # an iterator, which only the client may read
        return events
    kinds = {*map(type, events)}
    config_type: type = type(config)
    provider = _provider(config_type)
    skipped = {kind for kind in kinds if _is_skipped(kind, provider, _names(config_type))}
    kept = [event for event in events if type(event) not in skipped] if skipped else events
    if provider == "xai":
        kept = _with_replayed_calls(kept)
    elif provider in _REPAIRS_PAIRS:
        kept = _with_whole_pairs(kept, provider)
    return kept if len(kept) < len(events) else events


def _with_replayed_calls(events: Sequence[Any]) -> Sequence[Any]:
    """Remove the responses that xAI's mapper skips: those with only tool calls, if no xAI turn precedes them."""
    kept: list[Any] = []
    is_replayed = False
    for event in events:
        names = _names(event.__class__)
        is_response = "ModelResponse" in names
        if is_replayed or not is_response or event.content:
            kept.append(event)
        is_replayed = not is_response and (is_replayed or "XAIAssistantEvent" in names)
    return kept


def _with_whole_pairs(events: Sequence[Any], provider: str) -> Sequence[Any]:
    """Remove tool calls without a result, and results without a call, as the mappers of `_REPAIRS_PAIRS` do."""
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

    return list(filter(is_sent, events))


def _calls(event: Any) -> Iterable[Any]:
    return event.tool_calls.calls if "ModelResponse" in _names(event.__class__) else ()


def _results(event: Any) -> Iterable[Any]:
    names = _names(event.__class__)
    if "ToolResultsEvent" in names:
        return event.results  # type: ignore[no-any-return]
    return (event,) if "ToolResultEvent" in names else ()


@cached_by_class
def _names(kind: type) -> frozenset[str]:
    """Return the names of a class and its base classes; ``ag2`` and ``autogen.beta`` define the same names."""
    return frozenset(base.__name__ for base in kind.__mro__)


@cached_by_class
def _provider(kind: type) -> str:
    """Return the provider in whose folder a class is defined; empty if in none."""
    for base in kind.__mro__:
        package, _, rest = base.__module__.partition(".config.")
        if rest and package in PACKAGES:
            return rest.partition(".")[0]
    return ""


def _is_skipped(kind: type, provider: str, config_names: frozenset[str]) -> bool:
    """Return True if a provider's mapper skips a class of events, for a configuration with these class names."""
    names = _names(kind)
    if "ModelMessage" in names:
        return True
    if "ProviderReplay" not in names or not provider:
        return False
    return _provider(kind) != provider or ("ModelReasoning" in names and _CHAT_COMPLETIONS in config_names)
