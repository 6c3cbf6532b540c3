"""Readers of the parts of a message's content, by the part's type. A reader adds one part to a `Draft`.

Parts of OpenAI, Anthropic, LangChain and OpenTelemetry have a ``type``. Bedrock's and Gemini's parts have a single key
instead (`keyed_parts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.errors import DescribeError
from otel_assembly.messages.event_facts import spelled
from otel_assembly.messages.keyed_parts import BEDROCK, GEMINI, is_thought
from otel_assembly.messages.provider_rules import Provider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.messages.draft import Draft

#: The keys of a part's text, by the part's type.
_TEXTS: Final = {
    "text": ("text", "content"),
    "input_text": ("text",),
    "output_text": ("text",),
    "summary_text": ("text",),
    "reasoning_text": ("text",),
    "text-plain": ("title", "context", "text"),
    "refusal": ("refusal",),
}
_MEDIA: Final = (
    "audio",
    "blob",
    "computer_screenshot",
    "container_upload",
    "file",
    "image",
    "image_url",
    "input_audio",
    "input_file",
    "input_image",
    "media",
    "output_audio",
    "uri",
    "video",
    "video_url",
)
#: Types of calls of tools that OpenAI runs itself.
HOSTED: Final = ("web_search_call", "file_search_call", "code_interpreter_call", "mcp_call")
#: Keys with metadata that the model does not read.
_MARKS: Final = frozenset({"cache_control", "citations", "signature", "type", "id", "tool_use_id", "status", "caller"})
#: Types and keys of parts that are unique to Anthropic.
_ANTHROPIC_PARTS: Final = frozenset(
    {"document", "mcp_tool_use", "redacted_thinking", "server_tool_use", "thinking", "tool_result", "tool_use"}
)
_ANTHROPIC_MARKS: Final = frozenset({"cache_control", "citations"})
#: The number of keys of a text part without metadata.
_PLAIN_TEXT_KEYS: Final = 2
_ENCRYPTED: Final = frozenset({"encrypted_content", "encrypted_stdout", "encrypted_index"})


def read_content(draft: Draft, content: Any) -> None:
    """Add the content of a message or a tool result to a draft.

    Args:
        draft: Collects the facts of the message.
        content: A text, a list of texts and parts, or None.

    Raises:
        DescribeError: The content is not a string, a list or None.
    """
    if isinstance(content, str):
        draft.text(content)
    elif isinstance(content, (list, tuple)):
        read_parts(draft, content)
    elif content is not None:
        raise DescribeError(dict, f"its 'content' is a {type(content).__name__}, expected a string, a list or null")


def read_parts(draft: Draft, parts: Sequence[Any], untyped: Mapping[str, Any] = BEDROCK) -> None:
    """Add parts of a message's content to a draft, each with the reader of its type.

    Args:
        draft: Collects the facts of the message.
        parts: The parts: dicts or texts.
        untyped: The readers of parts without a ``type``, by the key that identifies the part.

    Raises:
        DescribeError: A part is invalid.
    """
    for part in parts:
        if isinstance(part, str):
            draft.text(part)
            continue
        if not isinstance(part, dict):
            raise DescribeError(dict, f"a part of its 'content' is a {type(part).__name__}, expected an object")
        kind = part.get("type")
        if not isinstance(kind, str):
            _read_untyped(draft, part, untyped)
        elif kind == "text" and isinstance(text := part.get("text"), str):
            draft.text(text)  # fast path for the most frequent part
            if len(part) > _PLAIN_TEXT_KEYS and not _ANTHROPIC_MARKS.isdisjoint(part):
                draft.provider = Provider.ANTHROPIC
        elif (row := PARTS.get(kind)) is not None:
            row(draft, part)
            if kind in _ANTHROPIC_PARTS:
                draft.provider = Provider.ANTHROPIC
        else:
            draft.other(kind, part)


def _read_untyped(draft: Draft, part: dict[str, Any], untyped: Mapping[str, Any]) -> None:
    values = {key: value for key, value in part.items() if value is not None}  # clients include unset keys as None
    if untyped is GEMINI and is_thought(values):
        with draft.thinking():
            draft.text(values.get("text"))
        draft.provider = Provider.GEMINI
        return
    for key, value in values.items():
        row = untyped.get(key)
        if row is not None:
            row(draft, value, read_content)
            draft.provider = Provider.BEDROCK if untyped is BEDROCK else Provider.GEMINI
            return
    first: Any = next(iter(values), None)
    if isinstance(values.get("refusal"), str):
        draft.text(values["refusal"])
    elif len(values) == 1 and isinstance(first, str) and isinstance(values[first], dict):
        draft.other(first, part)
    elif values or untyped.keys().isdisjoint(part):
        raise DescribeError(dict, "a part of its 'content' has neither a 'text' nor a 'type'")


def _text(draft: Draft, part: Mapping[str, Any]) -> None:
    for key in _TEXTS[part["type"]]:
        text = part.get(key)
        if isinstance(text, str):
            draft.text(text)
        elif text is not None:
            raise DescribeError(dict, f"the {key!r} of a part is a {type(text).__name__}, expected a string")


def _media(draft: Draft, part: Mapping[str, Any]) -> None:
    image = part.get("image_url")
    draft.file(image.get("detail") if isinstance(image, dict) else part.get("detail"))


def _document(draft: Draft, part: Mapping[str, Any]) -> None:
    """Read a document part: a title, a context, and a text or a file."""
    draft.text(part.get("title"))
    draft.text(part.get("context"))
    source = part.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if isinstance(source, dict) and kind == "text":
        draft.text(source.get("data"))
    elif isinstance(source, dict) and kind == "content":
        read_content(draft, source.get("content"))
    else:
        draft.file()


def _reasoning(draft: Draft, part: Mapping[str, Any]) -> None:
    text = next((part[key] for key in ("reasoning", "text") if isinstance(part.get(key), str)), None)
    with draft.thinking():
        draft.text(text)
        if text is None:
            for key in ("summary", "content"):
                read_content(draft, part.get(key))
        draft.encrypted(part.get("encrypted_content"))


def _thinking(draft: Draft, part: Mapping[str, Any]) -> None:
    text = part.get("thinking")
    if not isinstance(text, str | None):
        raise DescribeError(dict, f"the 'thinking' of a part is a {type(text).__name__}, expected a string")
    with draft.thinking():
        draft.text(text)


def _redacted(draft: Draft, part: Mapping[str, Any]) -> None:
    with draft.thinking():
        draft.encrypted(part.get("data"))


def _call(draft: Draft, part: Mapping[str, Any]) -> None:
    call = part.get("call_id", part.get("id"))
    if not isinstance(call, str):
        raise DescribeError(dict, f"a part of type {part['type']!r} has no 'id'")
    draft.call(call, part.get("name"), _arguments(part), awaiting=part.get("awaiting_approval") is True)


def _arguments(part: Mapping[str, Any]) -> Any:
    return next((part[key] for key in ("input", "args", "arguments") if part.get(key) is not None), None)


def _result(draft: Draft, part: Mapping[str, Any]) -> None:
    key = next((key for key in ("tool_use_id", "tool_call_id", "id") if key in part), "tool_use_id")
    draft.result(part.get(key))
    content = next((part[key] for key in ("content", "response", "result") if part.get(key) is not None), None)
    with draft.aside():
        if isinstance(content, (str, list, tuple)) or content is None:
            read_content(draft, content)
        else:
            draft.text(spelled(content))


def _server_call(draft: Draft, part: Mapping[str, Any]) -> None:
    """Read a call of a tool that the provider runs itself, so that the client sends no result."""
    draft.spell(part.get("name"), _arguments(part))
    draft.said = True


def _server_result(draft: Draft, part: Mapping[str, Any]) -> None:
    for key in ("content", "output", "outputs", "results"):
        read_leaves(draft, part.get(key))
    draft.said = True


def read_hosted(draft: Draft, part: Mapping[str, Any]) -> None:
    """Read a call of a tool that OpenAI runs, with its result."""
    draft.spell(part.get("name"), part.get("arguments"))
    for key in ("action", "queries", "code", "output", "outputs", "results", "result", "error"):
        read_leaves(draft, part.get(key))
    draft.said = True


def _search_result(draft: Draft, part: Mapping[str, Any]) -> None:
    draft.text(part.get("title"))
    draft.text(part.get("source"))
    read_content(draft, part.get("content"))


def _nothing(draft: Draft, part: Mapping[str, Any]) -> None:
    pass


def _wrapped(draft: Draft, part: Mapping[str, Any]) -> None:
    """Read a part inside LangChain's ``non_standard`` block."""
    read_parts(draft, [part.get("value")])


def _tool_reference(draft: Draft, part: Mapping[str, Any]) -> None:
    draft.text(part.get("tool_name"))


def read_leaves(draft: Draft, value: Any) -> None:
    """Read all texts and encrypted data in a value, at any depth, except metadata.

    This is for the results of tools that the provider runs, because their structure differs from tool to tool.
    """
    if isinstance(value, str):
        draft.text(value)
    elif isinstance(value, (list, tuple)):
        for element in value:
            read_leaves(draft, element)
    elif isinstance(value, dict):
        kind = value.get("type")
        row = _NESTED.get(kind) if isinstance(kind, str) else None
        if row is not None:
            row(draft, value)
            return
        for key, element in value.items():
            if key in _ENCRYPTED:
                draft.encrypted(element)
            elif key not in _MARKS:
                read_leaves(draft, element)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        draft.text(str(value))


#: The reader of each type of part.
PARTS: Final[dict[str, Callable[[Draft, Mapping[str, Any]], None]]] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_MEDIA, _media),
    "document": _document,
    "reasoning": _reasoning,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    **dict.fromkeys(("tool_use", "tool_call", "function_call", "custom_tool_call", "invalid_tool_call"), _call),
    **dict.fromkeys(("tool_result", "tool_call_response"), _result),
    **dict.fromkeys(("server_tool_use", "server_tool_call", "mcp_tool_use"), _server_call),
    **dict.fromkeys(
        (
            "advisor_tool_result",
            "bash_code_execution_tool_result",
            "code_execution_tool_result",
            "mcp_tool_result",
            "server_tool_result",
            "text_editor_code_execution_tool_result",
            "tool_search_tool_result",
            "web_fetch_tool_result",
            "web_search_tool_result",
        ),
        _server_result,
    ),
    **dict.fromkeys(HOSTED, read_hosted),
    "image_generation_call": _media,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
    "non_standard": _wrapped,
    # Fragments of streams and instructions to the provider, which the model does not read.
    **dict.fromkeys(("cache_point", "fallback", "input_json_delta"), _nothing),
}
#: Readers of parts inside the result of a tool that the provider runs.
_NESTED: Final = {kind: PARTS[kind] for kind in (*_MEDIA, "document", "tool_reference")}
