"""Reads the parts (texts, images, calls, results) of any provider's message dicts, to convert them to another form.

The supported forms are those of `describe`: OpenAI's Chat Completions and Responses, Anthropic, Bedrock, Gemini, and
OpenTelemetry's GenAI conventions. A part that only one provider supports is converted to its texts.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_assembly.messages.draft import Draft
from otel_assembly.messages.event_facts import describe, spelled
from otel_assembly.messages.keyed_parts import BEDROCK, GEMINI, response_text
from otel_assembly.messages.parts import PARTS, read_parts
from otel_assembly.messages.responses import ITEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Types of parts in Chat Completions and compatible APIs.
CHAT_PARTS: Final = frozenset({"text", "refusal", "image_url", "input_audio", "file", "audio", "video", "video_url"})
#: Types of blocks that only Anthropic's API has.
ANTHROPIC_BLOCKS: Final = frozenset(
    {
        *(kind for kind in PARTS if kind.endswith("_tool_result")),
        *("container_upload", "document", "image", "mcp_tool_use", "redacted_thinking", "search_result"),
        *("server_tool_use", "thinking", "tool_reference", "tool_result", "tool_use"),
    }
)
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"})
_CALLS: Final = frozenset({"tool_use", "tool_call", "function_call", "custom_tool_call"})
_RESULTS: Final = frozenset({"tool_result", "tool_call_response"})
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
_PDF: Final = "application/pdf"


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a message.

    Attributes:
        text: The text.
        raw: The original part of the provider's message; None if the text was not a part.
    """

    text: str
    raw: Any = None


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of a message.

    Attributes:
        url: The image's URL; empty if `data` is set.
        media_type: The type of `data`, such as ``image/png``.
        data: The image's bytes in base64; empty if `url` is set.
        raw: The original part.
    """

    url: str = ""
    media_type: str = ""
    data: str = ""
    raw: Any = None


@dataclass(frozen=True, slots=True)
class File:
    """A file of a message.

    Attributes:
        url: The file's URL; empty if `data` is set.
        media_type: The type of `data`, such as ``application/pdf``.
        data: The file's bytes in base64; empty if `url` is set.
        name: The file's name; empty if unknown.
        raw: The original part.
    """

    url: str = ""
    media_type: str = ""
    data: str = ""
    name: str = ""
    raw: Any = None


@dataclass(frozen=True, slots=True)
class Thought:
    """The model's thinking, which is not sent to another provider.

    Attributes:
        raw: The original part.
    """

    raw: Any = None


@dataclass(frozen=True, slots=True)
class CallPart:
    """A tool call of a message.

    Attributes:
        id: The call's id.
        name: The tool's name.
        arguments: The arguments as text, usually JSON.
        raw: The original part.
    """

    id: str
    name: str
    arguments: str
    raw: Any = None


@dataclass(frozen=True, slots=True)
class ResultPart:
    """The result of a tool call.

    Attributes:
        call_id: The id of the call.
        content: The parts of the result.
        is_error: True if the tool failed.
        raw: The original part.
    """

    call_id: str
    content: Sequence[Part]
    is_error: bool = False
    raw: Any = None


@dataclass(frozen=True, slots=True)
class ProviderPart:
    """A part that only one provider supports, such as a result of a search that the provider runs.

    Attributes:
        kind: The type of the part, or the key that identifies it.
        raw: The original part.
    """

    kind: str
    raw: Any = None


Part: TypeAlias = Text | Picture | File | Thought | CallPart | ResultPart | ProviderPart


def is_chat_message(message: Mapping[str, Any]) -> bool:
    """Return True if no part of a message contradicts the form of Chat Completions.

    Args:
        message: A message dict with a ``role``.
    """
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return message.get("parts") is None and message.get("type") not in ITEMS
    return all(map(_is_chat_part, content))


def _is_chat_part(part: Any) -> bool:
    if isinstance(part, str):
        return True
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and (kind in CHAT_PARTS or kind not in PARTS)


def has_anthropic_blocks(message: Any) -> bool:
    """Return True if the message contains a block of a type that only Anthropic's API has."""
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, (list, tuple)) and any(
        isinstance(part, dict) and part.get("type") in ANTHROPIC_BLOCKS for part in content
    )


def parts_of(message: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a message dict, or of an item of OpenAI's Responses, in order.

    Calls and results outside the content of a Chat Completions message are not included.
    """
    if isinstance(message.get("parts"), (list, tuple)):
        return [_gemini(part) if _is_keyed(part) else _typed(part) for part in message["parts"]]
    kind = message.get("type")
    if ("role" not in message and isinstance(kind, str)) or kind in ITEMS:
        return [_item(message, str(kind))]
    return content_parts(message.get("content"))


def content_parts(content: Any) -> list[Part]:
    """Return the parts of a message's ``content``: a text, a list of parts, or None."""
    if content is None or isinstance(content, str):
        return [Text(content)] if content else []
    if not isinstance(content, (list, tuple)):
        return [Text(spelled(content))]
    return [_bedrock(part) if _is_keyed(part) else _typed(part) for part in content]


def texts_of(part: ProviderPart) -> list[str] | None:
    """Return the texts of a part that only its provider supports; None if the part cannot be sent as texts."""
    if part.kind in _TEXT_TYPES:
        return None
    if part.kind in ITEMS and part.kind not in PARTS:
        facts = describe(part.raw)
        return None if facts.media_tokens or not facts.texts else list(facts.texts)
    draft = Draft()
    read_parts(draft, [part.raw], GEMINI if part.kind in GEMINI and part.kind not in BEDROCK else BEDROCK)
    return None if draft.media else [text for text in draft.texts if text]


def _is_keyed(part: Any) -> bool:
    return isinstance(part, dict) and not isinstance(part.get("type"), str)


def _typed(part: Any) -> Part:
    """Read a part with a ``type`` key, as in the forms of OpenAI, Anthropic and the GenAI conventions."""
    if isinstance(part, str):
        return Text(part, part)
    kind = part["type"] if isinstance(part, dict) else type(part).__name__
    if kind in _TEXT_TYPES:
        text = part.get("refusal") if kind == "refusal" else part.get("text", part.get("content"))
        return Text(text, part) if isinstance(text, str) else ProviderPart(kind, part)
    if kind in _CALLS:
        return _call(
            part.get("call_id", part.get("id")), part.get("name"), _first(part, "input", "args", "arguments"), part
        )
    if kind in _RESULTS:
        call_id = _first(part, "tool_use_id", "tool_call_id", "id")
        content = _first(part, "content", "response", "result")
        return ResultPart(str(call_id), content_parts(content), part.get("is_error") is True, part)
    if kind in _THOUGHTS:
        return Thought(part)
    read_media = _MEDIA.get(kind)
    return (read_media(part) if read_media is not None else None) or ProviderPart(kind, part)


def _first(part: Mapping[str, Any], *keys: str) -> Any:
    return next((part[key] for key in keys if part.get(key) is not None), None)


def _call(call_id: Any, name: Any, arguments: Any, raw: Any) -> CallPart:
    text = "" if arguments is None else arguments if isinstance(arguments, str) else spelled(arguments)
    return CallPart(str(call_id or ""), str(name or ""), text, raw)


def _data_url(url: Any, part: Any, *, name: str = "") -> Picture | File | None:
    """Return the image or file at a URL. The bytes in a ``data:`` URL are extracted.

    Args:
        url: The URL; None is returned if it is not a text.
        part: The original part.
        name: The file's name, if the part is a file.
    """
    if not isinstance(url, str) or not url:
        return None
    media_type, data = "", ""
    if url.startswith("data:"):
        head, _, data = url.removeprefix("data:").partition(",")
        media_type = head.split(";")[0]
    if name or (media_type and not media_type.startswith("image/")):
        return File("" if data else url, media_type, data, name, part)
    return Picture("" if data else url, media_type, data, part)


def _image_url(part: Mapping[str, Any]) -> Picture | File | None:
    image = part.get("image_url")
    return _data_url(image.get("url") if isinstance(image, dict) else image, part)


def _file(part: Mapping[str, Any]) -> Picture | File | None:
    file = part.get("file")
    file = file if isinstance(file, dict) else part
    name = file.get("filename") or "file"
    return _data_url(_first(file, "file_data", "file_url", "url"), part, name=str(name))


def _source(part: Mapping[str, Any]) -> Picture | File | Text | None:
    """Read an image or document block in Anthropic's form; None if the source is not supported."""
    source = part.get("source")
    if not isinstance(source, dict):
        return None
    kind, is_image = source.get("type"), part["type"] == "image"
    if kind == "text" and isinstance(source.get("data"), str):
        return Text("\n".join(filter(None, (part.get("title"), part.get("context"), source["data"]))), part)
    url = source.get("url") if kind == "url" else ""
    data = source.get("data") if kind == "base64" else ""
    if not isinstance(url, str) or not isinstance(data, str) or not (url or data):
        return None
    media_type = str(source.get("media_type") or "")
    if is_image:
        return Picture(url, media_type, data, part)
    return File(url, media_type or _PDF, data, str(part.get("title") or "document"), part)


def _blob(part: Mapping[str, Any]) -> Picture | File | None:
    """Read a ``blob`` or ``uri`` part of the GenAI conventions; None if the part is not supported."""
    data, url = part.get("content"), part.get("uri")
    media_type, is_image = str(part.get("mime_type") or ""), part.get("modality") == "image"
    if not isinstance(data, str) or not data:
        return None if not isinstance(url, str) or not is_image else Picture(url, media_type, "", part)
    if is_image or media_type.startswith("image/"):
        return Picture("", media_type, data, part)
    return File("", media_type, data, "file", part)


_MEDIA: Final[Mapping[str, Callable[[Mapping[str, Any]], Part | None]]] = {
    "image_url": _image_url,
    "input_image": _image_url,
    "file": _file,
    "input_file": _file,
    "image": _source,
    "document": _source,
    "blob": _blob,
    "uri": _blob,
}


def _key(part: Mapping[str, Any], keys: Mapping[str, Any]) -> str:
    known = (key for key, value in part.items() if value is not None and key in keys)
    return next(known, next(iter(part), ""))


def _bytes(value: Any) -> str:
    """Return media data in base64: Bedrock's client uses bytes, its JSON form uses base64 text."""
    return value if isinstance(value, str) else base64.b64encode(value).decode() if isinstance(value, bytes) else ""


def _bedrock(part: Mapping[str, Any]) -> Part:
    key = _key(part, BEDROCK)
    value = part.get(key)
    if key == "text" and isinstance(value, str):
        return Text(value, part)
    if not isinstance(value, dict):
        return Text(spelled(value), part) if key == "json" else ProviderPart(key, part)
    match key:
        case "toolUse" if value.get("type") != "server_tool_use":
            return _call(value.get("toolUseId"), value.get("name"), value.get("input"), part)
        case "toolResult" if not str(value.get("type") or "").endswith("_tool_result"):
            is_error = value.get("status") == "error"
            return ResultPart(str(value.get("toolUseId")), content_parts(value.get("content")), is_error, part)
        case "json":
            return Text(spelled(value), part)
        case "reasoningContent" | "cachePoint":
            return Thought(part)
        case "image" | "document":
            return _bedrock_file(key, value, part) or ProviderPart(key, part)
    return ProviderPart(key, part)


def _bedrock_file(key: str, value: Mapping[str, Any], part: Any) -> Part | None:
    source = value.get("source")
    data = _bytes(source.get("bytes")) if isinstance(source, dict) else ""
    if not data:
        return None
    kind = str(value.get("format") or "")
    if key == "image":
        return Picture("", f"image/{kind}", data, part)
    return File("", _PDF if kind == "pdf" else f"text/{kind}", data, str(value.get("name") or "document"), part)


def _gemini(part: Mapping[str, Any]) -> Part:
    if part.get("thought") is True:
        return Thought(part)
    key = _key(part, GEMINI)
    value = part.get(key)
    if key == "text" and isinstance(value, str):
        return Text(value, part)
    if not isinstance(value, dict):
        return Thought(part) if key in _SIGNATURES else ProviderPart(key, part)
    match key:
        case "functionCall" | "function_call":
            return _call(value.get("name"), value.get("name"), value.get("args"), part)
        case "functionResponse" | "function_response":
            text = response_text(value.get("response"))
            content: list[Part] = [Text(text)] if text else []
            content += [_gemini(inner) for inner in value.get("parts") or () if isinstance(inner, dict)]
            return ResultPart(str(value.get("name")), content, raw=part)
        case "inlineData" | "inline_data" | "fileData" | "file_data":
            return _gemini_file(value, part)
    return ProviderPart(key, part)


#: Gemini's keys for the signature of the model's thinking; the last signature of an answer is a separate part.
_SIGNATURES: Final = frozenset({"thoughtSignature", "thought_signature"})


def _gemini_file(value: Mapping[str, Any], part: Any) -> Part:
    media_type = str(_first(value, "mimeType", "mime_type") or "")
    data, url = _bytes(value.get("data")), str(_first(value, "fileUri", "file_uri") or "")
    if media_type.startswith("image/"):
        return Picture("" if data else url, media_type, data, part)
    return File(
        "" if data else url, media_type, data, str(_first(value, "displayName", "display_name") or "file"), part
    )


#: The keys that can contain the arguments, for the Responses items that are calls without a tool name.
_ARGUMENTS: Final = {
    "computer_call": ("actions", "action"),
    "local_shell_call": ("action",),
    "shell_call": ("action",),
    "apply_patch_call": ("operation",),
    "program": ("code",),
    "tool_search_call": ("arguments",),
}


def _item(item: Mapping[str, Any], kind: str) -> Part:
    """Read an item of OpenAI's Responses API that is not a message, such as ``function_call``.

    Args:
        item: The item.
        kind: The item's ``type``.
    """
    call_id = _first(item, "call_id", "id")
    if kind in ("function_call", "custom_tool_call"):
        return _call(call_id, item.get("name"), _first(item, "arguments", "input"), item)
    # These calls have no tool name, so the type is the name. A tool search that OpenAI runs itself is not a call.
    if kind in _ARGUMENTS and (kind != "tool_search_call" or item.get("execution") == "client"):
        return _call(call_id, kind, _first(item, *_ARGUMENTS[kind]), item)
    # A request for an approval is a call whose result is the user's decision, which refers to the request's id.
    if kind == "mcp_approval_request":
        return _call(item.get("id"), item.get("name"), item.get("arguments"), item)
    if kind == "mcp_approval_response":
        reason = item.get("reason") or ("approved" if item.get("approve") else "refused")
        return ResultPart(str(item.get("approval_request_id")), [Text(str(reason))], raw=item)
    if kind == "tool_search_output" and item.get("execution") == "client":
        return ResultPart(str(call_id), [Text(spelled(item.get("tools")))], raw=item)
    if kind.endswith("_output") and kind != "tool_search_output":
        output = _first(item, "output", "result")
        output = [output] if isinstance(output, dict) else output
        return ResultPart(str(call_id), _outputs(output), item.get("status") == "incomplete", item)
    # Like reasoning, the two kinds of instructions to the provider are not sent to another provider.
    return (
        Thought(item)
        if kind in ("reasoning", "compaction_trigger", "configuration_update")
        else ProviderPart(kind, item)
    )


def _outputs(output: Any) -> list[Part]:
    if isinstance(output, (list, tuple)) and not all(isinstance(part, dict) and "type" in part for part in output):
        return [Text(json.dumps(output, ensure_ascii=False, default=str))]
    return content_parts(output)
