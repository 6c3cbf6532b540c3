"""The request bodies and answers of the providers' clients, in one form for all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import chain, compress, repeat
from operator import is_
from typing import Any, Final, NamedTuple

_PROMPT_ROLES: Final = ("system", "developer")
#: The types of the values in messages without SDK objects: those of JSON, and bytes.
_PLAIN: Final = {dict, list, str, bytes, int, float, bool, type(None)}
#: SDK objects are looked for this deep, because a body may contain itself.
_OBJECT_DEPTH: Final = 8
_MODEL_IN_PATH: Final = re.compile(r"([^/:]+):(?:stream)?[gG]enerateContent")
#: The keys of the text in the bodies of `InvokeModel`: Llama, Mistral and Anthropic's older models; Titan.
_PROMPT_KEYS: Final = ("prompt", "inputText")


class ProviderRequest(NamedTuple):
    """A model call's request body.

    `messages` are the messages after the leading system prompts, plain dicts in the provider's form. `prompts` are the
    leading system prompts, `tools` the tools' schemas. `previous_response_id` names the answer that a stateful API
    continues, `conversation_id` the conversation that the provider stores. `edits` are the context edits that the
    request asks the provider for.
    """

    messages: list[Any]
    prompts: list[str]
    tools: list[Any]
    model: str | None
    previous_response_id: str | None = None
    conversation_id: str | None = None
    edits: tuple[str, ...] = ()


class ProviderAnswer(NamedTuple):
    """A provider's answer to a model call.

    `messages` are the assistant's messages in the form in which a program sends them back. If the request asked for
    several choices, they are the first choice's, and `alternatives` has the messages of each other choice. A program
    can send a stream of Gemini back joined or as it arrived, so the second form is an alternative too.
    `applied_edits` are the context edits that the provider made before the model saw the request, and the compacted
    messages that it returned. `input_tokens` include those that the provider read from its cache or wrote to it.
    """

    messages: list[Any]
    id: str | None = None
    applied_edits: tuple[Mapping[str, Any], ...] = ()
    input_tokens: int | None = None
    alternatives: tuple[list[Any], ...] = ()


def request_body(body: Any, extra: Any) -> Any:
    """Return the JSON body of a request of OpenAI's or Anthropic's client.

    Both clients merge `extra`, the argument ``extra_body`` of the resource's method, into the body later.
    """
    if not isinstance(extra, Mapping) or not extra:
        return body
    return {**body, **extra} if isinstance(body, Mapping) else extra


#: The packages whose objects have required fields, such as the role, as defaults: these fields count as unset.
_WITH_DEFAULTS: Final = ("litellm.", "mistralai.", "cohere.")


def plain(value: Any, depth: int = _OBJECT_DEPTH) -> Any:
    """Return a value with each SDK object in it as the dict that its SDK sends; the value itself if it has none.

    SDK objects can change, and to notice a change takes as long as to dump them again, so dumps are not cached.
    """
    if isinstance(value, (dict, list)) and not depth:
        return value
    if isinstance(value, dict):
        changed = {key: new for key, item in value.items() if (new := plain(item, depth - 1)) is not item}
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        items = [plain(item, depth - 1) for item in value]
        return value if all(map(is_, items, value)) else items
    cls = type(value)
    if not hasattr(cls, "model_dump"):
        return value
    if cls.__module__.startswith(_WITH_DEFAULTS):
        return value.model_dump(exclude_none=True, warnings=False)
    # Fields with the parsed form of a text. To look up a missing attribute of a model is slow, so the class is asked.
    excluded = value.__api_exclude__ if hasattr(cls, "__api_exclude__") else None
    # A field with the program's own type warns when it is dumped.
    return value.model_dump(mode="json", exclude_unset=True, by_alias=True, exclude=excluded, warnings=False)


def _is_plain(messages: list[Any] | tuple[Any, ...]) -> bool:
    """Return True if messages contain no SDK objects, as most requests; no Python code runs for each message."""
    values: list[Any] | tuple[Any, ...] = messages  # all values at one depth
    for _ in range(_OBJECT_DEPTH):
        if not values:
            return True
        kinds = set(map(type, values))
        if not kinds <= _PLAIN:
            return False
        lists = compress(values, map(isinstance, values, repeat(list)))
        dicts = compress(values, map(isinstance, values, repeat(dict)))
        values = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, dicts))]
    return True


def _messages(value: object) -> list[Any] | None:
    """Return a new list of messages without SDK objects; None for an iterator, which only the client may read."""
    if not isinstance(value, list | tuple):
        return None
    return list(value) if _is_plain(value) else [plain(message) for message in value]


def part_texts(content: object) -> list[str]:
    """Return the texts of a message's content, without its reasoning."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list | tuple):
        return []
    texts = []
    for part in map(plain, content):
        text, is_reasoning = part, False
        if isinstance(part, Mapping):
            text = part.get("text")
            is_reasoning = part.get("thought") is True or part.get("type") == "reasoning_text"
        if isinstance(text, str) and not is_reasoning:
            texts.append(text)
    return texts


def split_prompts(messages: list[Any]) -> tuple[list[str], list[Any]]:
    """Return the texts of the leading system prompts, and the messages after them."""
    prompts: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _PROMPT_ROLES:
            return prompts, messages[index:]
        prompts += part_texts(message.get("content"))
    return prompts, []


def _items(value: object) -> list[Any]:
    return [plain(item) for item in value] if isinstance(value, list | tuple) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def json_object(text: object) -> dict[str, Any] | None:
    """Return the JSON object in a text or in bytes; None for anything else, such as a stream."""
    if not isinstance(text, str | bytes | bytearray):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _request(
    body: Mapping[str, Any], messages: list[Any], prompts: list[str], tools: list[Any], **more: Any
) -> ProviderRequest:
    """Return the request. `prompts` are those that are not messages; `more` are further fields of the request."""
    leading, rest = split_prompts(messages)
    return ProviderRequest(rest, prompts + leading, tools, more.pop("model", None) or _text(body.get("model")), **more)


def read_chat(body: Any, path: str = "") -> ProviderRequest | None:
    """Read a request of OpenAI's Chat Completions API, or the arguments of litellm's `completion`."""
    messages = _messages(_mapping(body).get("messages"))
    if messages is None:
        return None
    functions = [{"type": "function", "function": function} for function in _items(body.get("functions"))]
    return _request(body, messages, [], _items(body.get("tools")) + functions)


def read_completion(body: Any, path: str = "") -> ProviderRequest | None:
    """Read a request of an API that completes a text: OpenAI's or Anthropic's older one, or Ollama's `generate`.

    A request with several texts makes a model call for each of them, and is not read.
    """
    prompt = _mapping(body).get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        return None
    return _request(body, [{"role": "user", "content": prompt}], part_texts(body.get("system")), [])


def read_responses(body: Any, path: str = "") -> ProviderRequest | None:
    """Read a request of OpenAI's Responses API, also one that compacts a conversation."""
    if not isinstance(body, Mapping):
        return None
    call_input, instructions = body.get("input"), body.get("instructions")
    messages = _messages([{"role": "user", "content": call_input}] if isinstance(call_input, str) else call_input or [])
    if messages is None:
        return None
    conversation = plain(body.get("conversation"))
    edits = ["truncation"] if body.get("truncation") == "auto" else []
    edits += ["compaction"] if path.rstrip("/").endswith("/compact") else []
    edits += _edit_types(body.get("context_management"))
    return _request(
        body,
        messages,
        [instructions] if isinstance(instructions, str) else [],
        _items(body.get("tools")),
        previous_response_id=_text(body.get("previous_response_id")),
        conversation_id=_text(conversation.get("id") if isinstance(conversation, dict) else conversation),
        edits=tuple(edits),
    )


def _edit_types(edits: object) -> list[str]:
    return [edit["type"] for edit in _items(edits) if isinstance(edit, Mapping) and isinstance(edit.get("type"), str)]


def read_messages(body: Any, path: str = "") -> ProviderRequest | None:
    messages = _messages(_mapping(body).get("messages"))
    if messages is None:
        return None
    edits = _edit_types(_mapping(body.get("context_management")).get("edits"))
    if isinstance(body.get("compaction"), Mapping):
        edits.append("compaction")
    return _request(
        body,
        messages,
        part_texts(body.get("system")),
        _items(body.get("tools")),
        previous_response_id=_text(_mapping(body.get("thread")).get("previous_message_id")),
        edits=tuple(edits),
    )


def read_generate_content(body: Any, path: str = "") -> ProviderRequest | None:
    messages = _messages(_mapping(body).get("contents"))
    if messages is None:
        return None
    tools: list[Any] = []
    for tool in _items(body.get("tools")):
        declarations = _mapping(tool).get("functionDeclarations")
        tools += declarations if isinstance(declarations, list) else [tool]
    model = _MODEL_IN_PATH.search(path)
    prompts = part_texts(_mapping(body.get("systemInstruction")).get("parts"))
    return _request(body, messages, prompts, tools, model=model[1] if model else None)


def _bedrock_tools(config: object) -> list[Any]:
    """Return the tools of a Bedrock tool configuration, without its marks of where the cache ends."""
    tools = [tool for tool in _items(_mapping(config).get("tools")) if isinstance(tool, Mapping)]
    return [tool.get("toolSpec", tool) for tool in tools if "cachePoint" not in tool]


def read_converse(params: Any, path: str = "") -> ProviderRequest | None:
    params = _mapping(params)
    messages = _messages(params.get("messages") or [])
    if messages is None:
        return None
    tools = _bedrock_tools(params.get("toolConfig"))
    return _request(params, messages, part_texts(params.get("system")), tools, model=_text(params.get("modelId")))


def read_invoke_model(params: Any, path: str = "") -> ProviderRequest | None:
    """Read the parameters of Bedrock's `InvokeModel`, whose body has the form of the model's vendor.

    The keys of the body identify its form, because the id of an inference profile does not name the vendor.
    """
    params = _mapping(params)
    body = json_object(params.get("body"))
    if body is None:
        return None
    model = _text(params.get("modelId"))
    messages = _messages(body.get("messages"))
    if messages is not None:
        tools = _items(body.get("tools")) or _bedrock_tools(body.get("toolConfig"))
        return _request(body, messages, part_texts(body.get("system")), tools, model=model)
    texts = [text for key in _PROMPT_KEYS if isinstance(text := body.get(key), str)]
    return _request(body, [{"role": "user", "content": texts[0]}], [], [], model=model) if texts else None
