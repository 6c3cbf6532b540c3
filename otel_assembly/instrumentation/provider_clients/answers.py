"""Reads the answers of the providers' clients: whole ones, and streamed ones chunk by chunk."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_assembly.instrumentation.provider_clients.requests import ProviderAnswer, json_object, part_texts, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The fields with the input tokens, which a provider's `usage` counts separately.
_CHAT_TOKENS: Final = ("prompt_tokens",)
_RESPONSES_TOKENS: Final = ("input_tokens",)
_MESSAGES_TOKENS: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_OLLAMA_TOKENS: Final = ("prompt_eval_count",)
_GEMINI_TOKENS: Final = ("promptTokenCount",)
_CONVERSE_TOKENS: Final = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
#: The keys of the text in the answers of `InvokeModel`: Llama; Titan's stream; Anthropic's older models.
_TEXT_KEYS: Final = ("generation", "outputText", "completion")
#: Fields of a streamed chat message that come whole; the other texts come in pieces.
_WHOLE: Final = frozenset({"id", "role", "type", "index"})
#: The place of each text of a streamed response: the item's field, and for a list of parts, the key of the part's
#: index, the part's type and its field.
_RESPONSE_DELTAS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "response.output_text.delta": ("content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
    "response.function_call_arguments.delta": ("arguments", "", "", ""),
    "response.mcp_call_arguments.delta": ("arguments", "", "", ""),
    "response.custom_tool_call_input.delta": ("input", "", "", ""),
    "response.code_interpreter_call_code.delta": ("code", "", "", ""),
}
#: Deltas of a Converse stream that are not read: only whole answers have the texts of citations, and an older botocore
#: has only the name of a part that it does not know.
_UNREAD_DELTAS: Final = ("citation", "SDK_UNKNOWN_MEMBER")
#: The type of an entry in Anthropic's list of edits that removes nothing.
_NO_EDIT: Final = "thinking_mismatch_allowed"
_RESPONSE_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
#: The field of a content block for each type of delta of Anthropic's stream.
_BLOCK_TEXTS: Final[Mapping[str, str]] = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


class AnswerCollector(Protocol):
    """Collects a streamed answer. A stream that the program abandons has the part that it received."""

    def add(self, chunk: Any) -> None:
        """Add one chunk or event of the stream, as the client returns it."""

    def answer(self) -> ProviderAnswer | None:
        """Return the answer so far; None if nothing of it arrived."""


def answer_text(answer: ProviderAnswer | None) -> str | None:
    """Return the text of an answer without its reasoning and tool calls; None if it has no text."""
    texts: list[str] = []
    for message in answer.messages if answer is not None else ():
        if isinstance(message, dict) and message.get("type") in (None, "message"):
            content = message.get("content")
            texts += part_texts(message.get("parts") if content is None else content)  # Gemini's messages have parts
    return "".join(texts) if texts else None


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _list(value: Any, name: str) -> list[Any]:
    found = _get(value, name)
    return found if isinstance(found, list) else []


def _str(value: Any, name: str) -> str | None:
    found = _get(value, name)
    return found if isinstance(found, str) else None


def _tokens(usage: Any, names: Iterable[str]) -> int | None:
    """Return the sum of the token counts with these names; None if there are none."""
    counts = [count for name in names if isinstance(count := _get(usage, name), int)]
    return sum(counts) if counts else None


def _body(answer: Any) -> Any:
    """Return an answer, or a raw response's body; None if that is a stream, which only the program may read."""
    response = getattr(answer, "http_response", None)
    if response is None:
        return answer
    try:
        return json_object(response.content)
    except RuntimeError:  # httpx.ResponseNotRead
        return None


def _assistant_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


# Whole answers


def read_chat_answer(answer: Any) -> ProviderAnswer | None:
    """Read an answer of OpenAI's Chat Completions API or of one that completes a text."""
    answer = _body(answer)
    choices: list[list[Any]] = []  # the messages of each choice
    for choice in _list(answer, "choices"):
        message, text = plain(_get(choice, "message")), _get(choice, "text")
        if not isinstance(message, dict):
            message = _assistant_message(text) if isinstance(text, str) else None
        choices.append([message] if message else [])
    if not choices:
        text = _str(answer, "completion")  # Anthropic's older API
        return None if text is None else ProviderAnswer([_assistant_message(text)], _str(answer, "id"))
    tokens = _tokens(_get(answer, "usage"), _CHAT_TOKENS)
    return ProviderAnswer(choices[0], _str(answer, "id"), input_tokens=tokens, alternatives=tuple(choices[1:]))


def read_responses_answer(answer: Any) -> ProviderAnswer | None:
    """Read an answer of OpenAI's Responses API. The messages are its output items."""
    answer = _body(answer)
    output = _get(answer, "output")
    if not isinstance(output, list):
        return None
    items = [plain(item) for item in output]
    tokens = _tokens(_get(answer, "usage"), _RESPONSES_TOKENS)
    edits = (*chain.from_iterable(_applied_edits(answer).values()), *_compactions(items))
    return ProviderAnswer(items, _str(answer, "id"), edits, tokens)


def _compactions(items: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the items, or content blocks, with which a provider replaces messages that it compacted."""
    return tuple(item for item in items if isinstance(item, dict) and item.get("type") == "compaction")


def _applied_edits(answer: Any) -> dict[str, list[Any]]:
    """Return the edits of the context that an answer, or an event, names, by the field that contains them."""
    context_management = _get(answer, "context_management")
    found = {
        "context_management": _get(context_management, "applied_edits"),
        "input_transformations": _get(answer, "input_transformations"),
    }
    return {
        name: [edit for edit in map(plain, edits) if isinstance(edit, dict) and edit.get("type") != _NO_EDIT]
        for name, edits in found.items()
        if isinstance(edits, list)
    }


def read_messages_answer(answer: Any) -> ProviderAnswer | None:
    answer = _body(answer)
    content = _get(answer, "content")
    if not isinstance(content, list):
        return None
    blocks = [plain(block) for block in content]
    edits = (*chain.from_iterable(_applied_edits(answer).values()), *_compactions(blocks))
    tokens = _tokens(_get(answer, "usage"), _MESSAGES_TOKENS)
    return ProviderAnswer([{"role": "assistant", "content": blocks}], _str(answer, "id"), edits, tokens)


def read_generate_content_answer(answer: Any) -> ProviderAnswer | None:
    """Read an answer of Gemini's API: an `HttpResponse` with the JSON as its `body`."""
    answer = answer if isinstance(answer, dict) else json_object(getattr(answer, "body", None))
    contents = [_get(candidate, "content") for candidate in _list(answer, "candidates")]
    choices = [[content] if isinstance(content, dict) else [] for content in contents]
    if not choices:
        return None
    tokens = _tokens(_get(answer, "usageMetadata"), _GEMINI_TOKENS)
    return ProviderAnswer(choices[0], _str(answer, "responseId"), input_tokens=tokens, alternatives=tuple(choices[1:]))


def read_converse_answer(answer: Any) -> ProviderAnswer | None:
    """Read an answer of Bedrock's `Converse`, or Nova's answer to `InvokeModel`."""
    message = _get(_get(answer, "output"), "message")
    if not isinstance(message, dict):
        return None
    return ProviderAnswer([message], input_tokens=_tokens(_get(answer, "usage"), _CONVERSE_TOKENS))


def read_invoke_model_answer(answer: Any) -> ProviderAnswer | None:
    """Read an answer of Bedrock's `InvokeModel`, whose body has the form of the model's vendor.

    botocore returns the body as a stream that can be read once, so this returns None for it.
    """
    body = _get(answer, "body") if isinstance(answer, dict) and "body" in answer else answer
    body = body if isinstance(body, dict) else json_object(body)
    for read in (read_messages_answer, read_converse_answer, read_chat_answer):
        found = read(body)
        if found is not None:
            return found
    results = _list(body, "outputs") or _list(body, "results") or [body]  # Mistral, Titan, Llama
    texts = [_str(result, key) for key in ("text", *_TEXT_KEYS) for result in results]
    choices = [[_assistant_message(text)] for text in texts if text is not None]
    if not choices:
        return None
    tokens = _tokens(body, ("prompt_token_count", "inputTextTokenCount"))
    return ProviderAnswer(choices[0], input_tokens=tokens, alternatives=tuple(choices[1:]))


def _ollama_message(answer: Any) -> dict[str, Any] | None:
    """Return the message of an answer or chunk of Ollama's `chat`, or one with the text of `generate`."""
    message, text = plain(_get(answer, "message")), _str(answer, "response")
    if isinstance(message, dict):
        return message
    return None if text is None else _assistant_message(text)


def read_ollama_answer(answer: Any) -> ProviderAnswer | None:
    message = _ollama_message(answer)
    return None if message is None else ProviderAnswer([message], input_tokens=_tokens(answer, _OLLAMA_TOKENS))


def read_cohere_answer(answer: Any) -> ProviderAnswer | None:
    message, tokens = plain(_get(answer, "message")), _get(_get(answer, "usage"), "tokens")
    if not isinstance(message, dict):
        return None
    return ProviderAnswer([message], _str(answer, "id"), input_tokens=_tokens(tokens, ("input_tokens",)))


# Streamed answers


class _Pieces(list[str]):
    """The pieces of a text. They are joined once at the end, because to append to a text copies it (`_joined`)."""


def _merge(total: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a delta to the part of a message that has arrived: texts are appended, dicts and lists merged."""
    for key, value in delta.items():
        old = total.get(key)
        if value is None:
            total.setdefault(key, None)
        elif isinstance(value, str):
            if key in _WHOLE:
                total[key] = value or old
            elif isinstance(old, _Pieces):
                old.append(value)
            else:
                total[key] = _Pieces((value,))
        elif isinstance(value, dict):
            if not isinstance(old, dict):
                old = total[key] = {}
            _merge(old, value)
        elif isinstance(value, list):
            if not isinstance(old, list):
                old = total[key] = []
            for item in value:
                _merge_item(old, item)
        else:
            total[key] = value


def _merge_item(items: list[Any], delta: Any) -> None:
    """Add a delta to the item with its index and id, or as a new item. Some servers omit or repeat an index."""
    if not isinstance(delta, dict):
        items.append(delta)
        return
    index, item_id = delta.get("index"), delta.get("id")
    can_continue = index is not None or item_id or "function" in delta
    for item in reversed(items) if can_continue else ():
        has_same_index = isinstance(item, dict) and item.get("index") == index
        if has_same_index and (not item_id or item.get("id") in (None, item_id)):
            _merge(item, delta)
            return
    items.append(new_item := dict[str, Any]())
    _merge(new_item, delta)


def _joined(value: Any) -> Any:
    """Return a merged value with its texts joined, and without the indexes that only streams have."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {key: _joined(item) for key, item in value.items() if key != "index"}
    return [_joined(item) for item in value] if isinstance(value, list) else value


class ChatCollector:
    """Collects a stream of OpenAI's Chat Completions API, or of one that completes a text."""

    def __init__(self) -> None:
        self._choices: dict[int, dict[str, Any]] = {}
        self._id: str | None = None
        self._input_tokens: int | None = None

    def add(self, chunk: Any) -> None:
        self._id = self._id or _str(chunk, "id")
        usage = _get(chunk, "usage")
        if usage is not None:
            self._input_tokens = _tokens(usage, _CHAT_TOKENS)
        choices = _get(chunk, "choices")
        if not isinstance(choices, list):
            choices = [{"text": _get(chunk, "completion")}]  # Anthropic's older API
        for choice in choices:
            delta = plain(_get(choice, "delta"))
            if not isinstance(delta, dict):
                text = _get(choice, "text")
                delta = {"content": text} if isinstance(text, str) else None
            if delta is not None:
                index = _get(choice, "index")
                _merge(self._choices.setdefault(index if isinstance(index, int) else 0, {}), delta)

    def answer(self) -> ProviderAnswer | None:
        if not any(self._choices.values()):
            return None
        choices = [[self._message(self._choices[index])] for index in sorted(self._choices)]
        alternatives = tuple(choices[1:])
        return ProviderAnswer(choices[0], self._id, input_tokens=self._input_tokens, alternatives=alternatives)

    @staticmethod
    def _message(draft: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, **_joined(draft)}
        message["role"] = message["role"] or "assistant"
        for call in _list(message, "tool_calls"):
            if isinstance(call, dict):
                call.setdefault("type", "function")
        return message


class MistralCollector(ChatCollector):
    """Collects a stream of Mistral's `chat`: the chunks of OpenAI's API, each in an event."""

    def add(self, chunk: Any) -> None:
        super().add(_get(chunk, "data"))


class CohereCollector:
    """Collects a stream of Cohere's `chat`: texts and the arguments of tool calls arrive in pieces."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._id: str | None = None
        self._input_tokens: int | None = None

    def add(self, chunk: Any) -> None:
        event = plain(chunk)
        self._id = self._id or _str(event, "id")
        delta = _get(event, "delta")
        self._input_tokens = _tokens(_get(_get(delta, "usage"), "tokens"), ("input_tokens",)) or self._input_tokens
        for key, value in (_get(delta, "message") or {}).items():
            if key == "content" and isinstance(value, dict):
                _merge(self._message, {key: value.get("text")})
            elif key == "tool_calls" and isinstance(value, dict):
                _merge(self._message, {key: [{**value, "index": _get(event, "index")}]})
            elif isinstance(value, str):
                _merge(self._message, {key: value})

    def answer(self) -> ProviderAnswer | None:
        if not self._message:
            return None
        return ProviderAnswer([_joined(self._message)], self._id, input_tokens=self._input_tokens)


class OllamaCollector:
    """Collects a stream of Ollama's `chat` or `generate`: texts arrive in pieces, tool calls whole and without ids."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._input_tokens: int | None = None

    def add(self, chunk: Any) -> None:
        self._input_tokens = _tokens(chunk, _OLLAMA_TOKENS) or self._input_tokens
        for key, value in (_ollama_message(chunk) or {}).items():
            if isinstance(value, list):
                self._message.setdefault(key, []).extend(value)
            elif value is not None:
                _merge(self._message, {key: value})

    def answer(self) -> ProviderAnswer | None:
        return ProviderAnswer([_joined(self._message)], input_tokens=self._input_tokens) if self._message else None


class ResponsesCollector:
    """Collects a stream of OpenAI's Responses API."""

    def __init__(self) -> None:
        self._whole: ProviderAnswer | None = None
        self._id: str | None = None
        self._items: dict[int, dict[str, Any]] = {}
        #: The indexes of the items that arrived whole.
        self._done: set[int] = set()
        #: The pieces of texts, by the item's index, the type of the event and the part's index.
        self._texts: dict[tuple[int, str, int], list[str]] = {}

    def add(self, chunk: Any) -> None:
        kind = _get(chunk, "type")
        kind = getattr(kind, "value", kind)  # litellm's types are those of an enumeration
        if not isinstance(kind, str):
            return
        index = _get(chunk, "output_index")
        if kind in _RESPONSE_DELTAS:
            _, part_index_key, _, _ = _RESPONSE_DELTAS[kind]
            part, text = _get(chunk, part_index_key) if part_index_key else 0, _get(chunk, "delta")
            if isinstance(index, int) and isinstance(part, int) and isinstance(text, str):
                self._texts.setdefault((index, kind, part), []).append(text)
        elif kind in {"response.output_item.added", "response.output_item.done"}:
            item = plain(_get(chunk, "item"))
            if isinstance(index, int) and isinstance(item, dict):
                self._items[index] = item
                if kind.endswith("done"):
                    self._done.add(index)
        elif kind in _RESPONSE_ENDS:
            self._whole = read_responses_answer(_get(chunk, "response"))
        elif self._id is None:
            self._id = _str(_get(chunk, "response"), "id")

    def answer(self) -> ProviderAnswer | None:
        if self._whole is not None and (self._whole.messages or not self._items):  # some servers end with no output
            return self._whole
        if self._id is None and not self._items:
            return None
        items = {index: item if index in self._done else dict(item) for index, item in self._items.items()}
        for (index, kind, part_index), pieces in sorted(self._texts.items()):
            if index in self._done:
                continue
            field, part_index_key, part_type, part_field = _RESPONSE_DELTAS[kind]
            item, text = items.setdefault(index, {"type": "message", "role": "assistant"}), "".join(pieces)
            if not part_index_key:
                item[field] = text
            elif item.get("type") != "message" or field == "content":  # a message has no summary
                parts = item[field] = list(_list(item, field))
                parts[part_index:] = [{"type": part_type, part_field: text}]
        messages = [items[index] for index in sorted(items)]
        tokens = self._whole.input_tokens if self._whole is not None else None
        return ProviderAnswer(messages, self._id, _compactions(messages), tokens)


class MessagesCollector:
    """Collects a stream of Anthropic's Messages API."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._usage: dict[str, int] = {}
        self._edits: dict[str, list[Any]] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        #: The pieces of texts, by the block's index and the field of the delta.
        self._texts: dict[tuple[int, str], list[str]] = {}

    def add(self, chunk: Any) -> None:
        kind, index = _get(chunk, "type"), _get(chunk, "index")
        if kind == "message_start":
            message = _get(chunk, "message")
            self._id = _str(message, "id")
            self._add_message(message)
        elif kind == "message_delta":
            self._add_message(chunk)
        elif not isinstance(index, int):
            return
        elif kind == "content_block_start":
            block = plain(_get(chunk, "content_block"))
            if isinstance(block, dict):
                self._blocks[index] = dict(block)
        elif kind == "content_block_delta":
            self._add_delta(index, _get(chunk, "delta"))

    def _add_message(self, message: Any) -> None:
        usage = _get(message, "usage")
        self._usage |= {name: count for name in _MESSAGES_TOKENS if isinstance(count := _get(usage, name), int)}
        self._edits |= _applied_edits(message)  # those of a later event replace the earlier ones

    def _add_delta(self, index: int, delta: Any) -> None:
        kind = _get(delta, "type")
        key = _BLOCK_TEXTS.get(kind) if isinstance(kind, str) else None
        if key is not None:
            text = _get(delta, key)
            if isinstance(text, str):
                self._texts.setdefault((index, key), []).append(text)
            return
        block, delta = self._blocks.setdefault(index, {}), plain(delta)
        if kind == "citations_delta":
            block["citations"] = [*_list(block, "citations"), _get(delta, "citation")]
        elif isinstance(delta, dict):  # a compaction, which comes whole
            block |= {key: value for key, value in delta.items() if key != "type"}

    def answer(self) -> ProviderAnswer | None:
        if self._id is None and not self._blocks:
            return None
        blocks = {index: dict(block) for index, block in self._blocks.items()}
        for (index, key), pieces in self._texts.items():
            block, text = blocks.setdefault(index, {"type": "text"}), "".join(pieces)
            if key == "partial_json":
                block["input"] = _tool_input(text)
            else:
                block[key] = (block.get(key) or "") + text
        content = [blocks[index] for index in sorted(blocks)]
        tokens = _tokens(self._usage, _MESSAGES_TOKENS)
        edits = (*chain.from_iterable(self._edits.values()), *_compactions(content))
        return ProviderAnswer([{"role": "assistant", "content": content}] if content else [], self._id, edits, tokens)


def _tool_input(text: str) -> Any:
    """Return the arguments of a tool call; the text itself if the stream ended before the arguments did."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return text


class GenerateContentCollector:
    """Collects a stream of Gemini's API. Successive texts become one part.

    The client's own chats send each chunk back as a message of its own, so these messages are an alternative answer.
    """

    def __init__(self) -> None:
        #: The first choice as it arrived, and all choices with their parts joined, by index.
        self._chunks: list[dict[str, Any]] = []
        self._contents: dict[int, dict[str, Any]] = {}
        self._id: str | None = None
        self._input_tokens: int | None = None

    def add(self, chunk: Any) -> None:
        body = chunk if isinstance(chunk, dict) else json_object(getattr(chunk, "body", None))
        self._id = self._id or _str(body, "responseId")
        tokens = _tokens(_get(body, "usageMetadata"), _GEMINI_TOKENS)
        self._input_tokens = self._input_tokens if tokens is None else tokens
        for position, candidate in enumerate(_list(body, "candidates")):
            content, index = _get(candidate, "content"), _get(candidate, "index")
            if not isinstance(content, dict):
                continue
            index = index if isinstance(index, int) else position
            if index == 0:
                self._chunks.append(content)
            joined = self._contents.setdefault(index, {"role": "model"})
            joined["role"] = content.get("role") or joined["role"]
            parts = joined.setdefault("parts", [])
            for part in _list(content, "parts"):
                if not isinstance(part, dict):
                    continue
                last = parts[-1] if parts else {}
                if _is_text(last) and _is_text(part) and last.get("thought") == part.get("thought"):
                    parts[-1] = {**last, "text": last["text"] + part["text"]}
                else:
                    parts.append(part)

    def answer(self) -> ProviderAnswer | None:
        choices = [[self._contents[index]] for index in sorted(self._contents)]
        if not choices:
            return None
        if len(self._chunks) > 1:
            choices.append(list(self._chunks))
        alternatives = tuple(choices[1:])
        return ProviderAnswer(choices[0], self._id, input_tokens=self._input_tokens, alternatives=alternatives)


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str) and part.keys() <= {"text", "thought"}


class ConverseCollector:
    """Collects the events of Bedrock's `ConverseStream`."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}
        self._input_tokens: int | None = None

    def add(self, chunk: Any) -> None:
        if not isinstance(chunk, dict):
            return
        usage = _get(chunk.get("metadata"), "usage")
        if usage is not None:
            self._input_tokens = _tokens(usage, _CONVERSE_TOKENS)
        for event, key in (("contentBlockStart", "start"), ("contentBlockDelta", "delta")):
            value = chunk.get(event)
            delta, index = _get(value, key), _get(value, "contentBlockIndex")
            if isinstance(delta, dict):
                self._add_delta(self._blocks.setdefault(index if isinstance(index, int) else 0, {}), delta)

    @staticmethod
    def _add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
        reasoning = delta.get("reasoningContent")
        if isinstance(reasoning, dict):  # in a whole message, `reasoningText` contains the text and the signature
            text = {key: reasoning[key] for key in ("text", "signature") if key in reasoning}
            other = {key: value for key, value in reasoning.items() if key not in text}
            delta = {**delta, "reasoningContent": other | ({"reasoningText": text} if text else {})}
        delta = {key: value for key, value in delta.items() if key not in _UNREAD_DELTAS}
        tool_use = delta.get("toolUse")
        if isinstance(tool_use, dict) and "toolUseId" in tool_use:  # the start of a call; its input comes in pieces
            block["toolUse"] = {"input": "", **tool_use}
            return
        _merge(block, delta)

    def answer(self) -> ProviderAnswer | None:
        content = [_joined(self._blocks[index]) for index in sorted(self._blocks)]
        for block in content:
            tool = block.get("toolUse")
            if isinstance(tool, dict) and isinstance(tool.get("input"), str):
                tool["input"] = _tool_input(tool["input"])
        if not content:
            return None
        return ProviderAnswer([{"role": "assistant", "content": content}], input_tokens=self._input_tokens)


class InvokeModelCollector:
    """Collects the events of Bedrock's `InvokeModelWithResponseStream`, or the bytes of the body of `InvokeModel`."""

    def __init__(self) -> None:
        self._bytes: list[bytes] = []
        self._collector: AnswerCollector | None = None
        self._input_tokens: int | None = None

    def add(self, chunk: Any) -> None:
        if isinstance(chunk, bytes):
            self._bytes.append(chunk)
            return
        event = json_object(_get(_get(chunk, "chunk"), "bytes"))
        if event is None:
            return
        metrics = _get(event, "amazon-bedrock-invocationMetrics")
        self._input_tokens = self._input_tokens or _tokens(metrics, ("inputTokenCount",))
        if self._collector is None:  # the first event shows the form
            if isinstance(event.get("type"), str):
                self._collector = MessagesCollector()
            elif any(key.startswith(("messageSt", "contentBlock")) for key in event):  # Nova
                self._collector = ConverseCollector()
            else:
                self._collector = ChatCollector()
        text = next((event[key] for key in _TEXT_KEYS if isinstance(event.get(key), str)), None)
        outputs = _list(event, "outputs")
        if outputs:  # Mistral
            text = _str(outputs[0], "text")
        self._collector.add(event if text is None else {"completion": text})  # a form that `ChatCollector` reads

    def answer(self) -> ProviderAnswer | None:
        if self._collector is None:
            return read_invoke_model_answer(b"".join(self._bytes))
        answer = self._collector.answer()
        if answer is None or answer.input_tokens is not None:
            return answer
        return answer._replace(input_tokens=self._input_tokens)
