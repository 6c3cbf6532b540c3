"""How AutoGen's LLM messages are read, and how others stand for them; imported once AutoGen is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autogen_core import FunctionCall, Image
from autogen_core.models import AssistantMessage, FunctionExecutionResultMessage, SystemMessage, UserMessage

from otel_assembly.instrumentation.autogen.reducers import reported_skips
from otel_assembly.messages import MEDIA_TOKENS
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.describe import EventFacts, EventKind, ToolCallFacts, describe
from otel_assembly.messages.replacements import result_texts, shortened, summary_like

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Who says a summary. AutoGen's clients look up a message's very class, so that a summary has to be one of theirs, and
#: its source is all that tells it from a request; it outlives the state's JSON.
SUMMARY_SOURCE: Final = "summary_of_earlier_messages"

read_from(SystemMessage, "content")
read_from(UserMessage, "content", "source")
read_from(AssistantMessage, "content", "thought")
read_from(FunctionExecutionResultMessage, "content")


@describe.register
def _(message: SystemMessage) -> EventFacts:
    return EventFacts(EventKind.SYSTEM, message.content)


@describe.register
def _(message: UserMessage) -> EventFacts:
    kind = EventKind.REQUEST
    if message.source == SUMMARY_SOURCE:
        kind = EventKind.SUMMARY
    elif reported_skips(message) is not None:
        kind = EventKind.OTHER  # the framework's note on what it skipped asks for nothing
    content = message.content
    if isinstance(content, str):
        return EventFacts(kind, content, name=message.source)
    texts = [part for part in content if isinstance(part, str)]
    media = sum(_image_tokens(part) for part in content if not isinstance(part, str))
    return EventFacts(kind, texts[0] if texts else "", fields=texts[1:], name=message.source, media_tokens=media)


@describe.register
def _(message: AssistantMessage) -> EventFacts:
    if isinstance(message.content, str):
        return EventFacts(EventKind.RESPONSE, message.content)
    calls: list[FunctionCall] = message.content
    return EventFacts(
        EventKind.RESPONSE,
        message.thought or "",  # beside calls it is sent as the message's content, beside a text it is not
        fields=[text for call in calls for text in (call.name, call.arguments)],
        opens=[call.id for call in calls],
        calls=[ToolCallFacts(call.id, call.name, call.arguments) for call in calls],
    )


@describe.register
def _(message: FunctionExecutionResultMessage) -> EventFacts:
    texts = [result.content for result in message.content]
    return EventFacts(
        EventKind.TOOL_RESULT,
        texts[0] if texts else "",
        fields=texts[1:],
        closes=[result.call_id for result in message.content],
    )


def _image_tokens(part: Any) -> int:
    """By OpenAI's published rule at high detail; any other part is counted as an image of 1024 × 1024."""
    if not isinstance(part, Image):
        return MEDIA_TOKENS
    width, height = part.image.size
    scale = min(1.0, 2048 / max(width, height, 1))
    scale = min(scale, 768 / max(min(width, height) * scale, 1) * scale)
    across, down = (max(1, -(-int(side * scale) // 512)) for side in (width, height))
    return 85 + 170 * across * down


@summary_like.register(SystemMessage)
@summary_like.register(UserMessage)
@summary_like.register(AssistantMessage)
@summary_like.register(FunctionExecutionResultMessage)
def _(message: Any, text: str, events: Sequence[Any]) -> UserMessage:
    said = f"[Earlier messages, summarised: details may be missing]\n{text}"
    return UserMessage(content=said, source=SUMMARY_SOURCE)


@result_texts.register(FunctionExecutionResultMessage)
def _(message: FunctionExecutionResultMessage) -> Sequence[str]:
    return [result.content for result in message.content if result.content]


@shortened.register(FunctionExecutionResultMessage)
def _(message: FunctionExecutionResultMessage, texts: Sequence[str]) -> FunctionExecutionResultMessage:
    given = iter(texts)
    results = [
        result.model_copy(update={"content": next(given)}) if result.content else result for result in message.content
    ]
    return message.model_copy(update={"content": results})
