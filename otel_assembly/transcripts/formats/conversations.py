"""Conversations in general: lists of messages, messages under a common key, requests to providers, saved agents.

The keys of a record determine where its messages are. This format is used if no more specific format is recognized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_assembly.transcripts.conversation import Conversation
from otel_assembly.transcripts.json_values import MalformedError, excerpt, kind_of, parse
from otel_assembly.transcripts.messages import AUTOGEN_TYPES, Converter, as_name, is_item, unknown_role
from otel_assembly.transcripts.transcript_format import Check, TranscriptFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_assembly.transcripts.records import Record

__all__ = ["CONVERSATIONS", "conversation_of", "conversations", "convert", "is_message"]

_LISTS = ("messages", "traj", "history")
#: The keys of messages in requests to OpenAI's Responses API and to Gemini. Because these are common words, the value
#: has to be a list.
_REQUESTS = ("input", "contents")
_INPUTS = ("gen_ai.input.messages", "input_messages")
_OUTPUTS = ("gen_ai.output.messages", "output_messages")
_INSTRUCTIONS = ("gen_ai.system_instructions", "system_instructions")
#: The keys of a request's system prompt, by the key of its messages.
_SYSTEMS = {
    "messages": ("system",),
    "input": ("instructions",),
    "contents": ("systemInstruction", "system_instruction"),
}
_TOOLS = ("tools", "gen_ai.tool.definitions", "tool_definitions")
_TOOL_CONFIGS = ("toolConfig", "config")
_STATES = ("agent_states", "agent_state", "inner_team_state", "llm_context")
_IDS = ("id", "custom_id", "conversation_id", "gen_ai.conversation.id", "session_id", "thread_id")
_HOLDERS = frozenset((*_LISTS, *_INPUTS, *_OUTPUTS, *_STATES))
#: Keys of a request's settings, which identify a request: its messages were sent even if no answer is recorded.
_SETTINGS = frozenset(
    [
        "model",
        "modelId",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "temperature",
        "stream",
        "inferenceConfig",
        "toolConfig",
        "generationConfig",
        "systemInstruction",
        "config",
    ]
)


def is_message(value: Any) -> bool:
    """Return whether a value is one message, and not a record that contains messages."""
    return (
        isinstance(value, dict)
        and ("role" in value or value.get("type") in AUTOGEN_TYPES or is_item(value))
        and _HOLDERS.isdisjoint(value)
    )


def conversations(record: Any) -> Iterator[Conversation | MalformedError]:
    """Yield the conversations of a record, and an error in place of each unreadable one.

    Errors name a message by its index in its list, from 0.
    """
    no_tools: list[dict[str, Any]] = []
    try:
        holder = record if isinstance(record, list) else _holder(record)
        objects = [item for item in (record, holder) if isinstance(item, dict)]
        name = next(filter(None, map(_id, objects)), None)
        tools = next(filter(None, map(_tools, reversed(objects))), no_tools)
        contexts = [] if isinstance(holder, list) else list(_contexts(holder))
        if not contexts:
            conversation = convert(name, _labeled_messages(holder))
            conversation.tools = tools
            conversation.is_request = isinstance(holder, dict) and _is_request(record, holder)
            yield conversation
            return
    except MalformedError as error:
        yield error
        return
    for agent, messages in contexts:
        try:
            conversation = convert(name, _messages(messages, "messages", "message"))
            conversation.agent, conversation.tools = agent, tools
            yield conversation
        except MalformedError as error:
            yield MalformedError(f"agent {excerpt(agent)}: {error}" if agent else str(error))


def _holder(record: Any) -> dict[str, Any]:
    """Return the object that contains the messages: the record, or an object directly inside it.

    Raises:
        MalformedError: No object, or more than one, contains messages.
    """
    if not isinstance(record, dict):
        raise MalformedError(f"{kind_of(record)}, expected a conversation")
    match _holders(record):
        case [holder]:
            return holder
    keys = " and ".join(excerpt(key) for key in [key for key, item in record.items() if _has_messages(item)][:2])
    raise MalformedError(f"messages under {keys}, expected them in one place")


def _holders(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [record] if _has_messages(record) else [item for item in record.values() if _has_messages(item)]


def _has_messages(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if not _HOLDERS.isdisjoint(value) or any(isinstance(value.get(key), list) for key in _REQUESTS):
        return True
    # A text is an input only in a request, which has settings.
    return any(isinstance(value.get(key), str) for key in _REQUESTS) and not _SETTINGS.isdisjoint(value)


def _contexts(state: Any, agent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the messages of each agent in a saved AutoGen state, such as ``team/writer``.

    Members of a team without messages are skipped: its manager, and agents that never ran.
    """
    if not isinstance(state, dict):
        return
    if isinstance(team := state.get("agent_states"), dict):
        for name, member in team.items():
            path = f"{agent}/{name}" if agent else name
            yield from (entry for entry in _contexts(member, path) if entry[1] not in (None, []))
        return
    for key in ("agent_state", "inner_team_state"):
        if isinstance(inner := state.get(key), dict):
            yield from _contexts(inner, agent)
            return
    if isinstance(context := state.get("llm_context"), dict):
        yield agent, context.get("messages")


def _labeled_messages(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the messages of a record, each with a label for error messages, such as ``message 3``."""
    if isinstance(holder, list):
        yield from _messages(holder, "", "message")
        return
    key = next((key for key in (*_LISTS, *_REQUESTS) if isinstance(holder.get(key), list)), None)
    key = key or next((key for key in _REQUESTS if isinstance(holder.get(key), str)), None)
    key = key or next((key for key in (*_LISTS, *_INPUTS) if key in holder), None)
    output = next((name for name in _OUTPUTS if name in holder), None) if key not in (*_LISTS, *_REQUESTS) else None
    if key is None and output is None:
        state = next(name for name in _STATES if name in holder)
        raise MalformedError(f"no agent's messages under '{state}', expected 'llm_context' with 'messages'")
    instructions = next((name for name in _INSTRUCTIONS if holder.get(name)), None)
    if instructions is not None:
        parts = _parse_nested(holder[instructions], instructions)
        yield f"'{instructions}'", {"role": "system", "parts": parts if isinstance(parts, list) else [parts]}
    if key is not None:
        if instructions is None:
            yield from _system_prompt(holder, key)
        yield from _messages(holder[key], key, "message")
    if output is not None:
        yield from _messages(holder[output], output, "output message")


def _system_prompt(holder: dict[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    """Yield a request's system prompt as a message, unless its messages already begin with a system message."""
    config = holder.get("config")  # Gemini's Python client has the system prompt here
    if key == "contents" and isinstance(config, dict) and not any(holder.get(name) for name in _SYSTEMS[key]):
        holder = {**config, key: holder[key]}
    name = next((name for name in _SYSTEMS.get(key, ()) if holder.get(name)), None)
    first = next(iter(holder[key]), None) if isinstance(holder[key], list) else None
    if name is None or (isinstance(first, dict) and first.get("role") in ("system", "developer")):
        return
    prompt = holder[name]
    if isinstance(prompt, dict):
        prompt = prompt.get("parts")
    if isinstance(prompt, (str, list)):
        yield f"'{name}'", {"role": "system", "content": prompt}


def _messages(value: Any, key: str, noun: str) -> Iterator[tuple[str, Any]]:
    # Span attributes cannot contain lists of objects, so exporters write them as a JSON string.
    messages = _parse_nested(value, key) if key in (*_INPUTS, *_OUTPUTS) else value
    if isinstance(messages, str) and key in _REQUESTS:
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        raise MalformedError(f"'{key}' is {kind_of(messages)}, expected a list of messages")
    for index, message in enumerate(messages):
        yield f"{noun} {index}", message


def _parse_nested(value: Any, key: str) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return parse(value)
    except MalformedError as error:
        raise MalformedError(f"'{key}': {error}") from None


def convert(name: str | None, labeled: Iterable[tuple[str, Any]]) -> Conversation:
    """Return the conversation of some recorded messages.

    Args:
        name: The conversation's id; None if it has none.
        labeled: The messages, each with a label for error messages.

    Raises:
        MalformedError: A message is malformed, or there is none.
    """
    converter = Converter()
    conversation = Conversation(name, [], skipped=converter.skipped)
    first: tuple[str, Any] | None = None
    for label, message in labeled:
        first = first or (label, message)
        try:
            conversation.messages += converter.convert(message)
        except MalformedError as error:
            raise MalformedError(f"{label}: {error}") from None
    if first is None:
        raise MalformedError("a conversation without messages, expected at least one")
    if converter.skipped.total() == len(conversation.messages):  # nothing in it is a message
        raise MalformedError(f"{first[0]}: {unknown_role(first[1])}")
    return conversation


def conversation_of(
    name: str | None,
    messages: Iterable[Any],
    *,
    place: str = "",
    agent: str = "",
    tools: list[dict[str, Any]] | None = None,
    is_request: bool = False,
    unknown: tuple[str, ...] = (),
) -> Conversation | MalformedError:
    """Return the conversation of some recorded messages, or an error that names the first malformed message.

    Args:
        name: The conversation's id; None if it has none.
        messages: The messages.
        place: The conversation's place in its record, for the error message; empty for the record itself.
        agent: As in `Conversation`; also `tools`, `is_request` and `unknown`.
        tools: The tool schemas; None for none.
        is_request: True if the messages are those of a request.
        unknown: The names of the parts of a prompt that the file does not contain.
    """
    try:
        conversation = convert(name, ((f"message {index}", message) for index, message in enumerate(messages)))
    except MalformedError as error:
        return MalformedError(f"{place}: {error}") if place else error
    conversation.agent, conversation.tools = agent, tools or []
    conversation.is_request, conversation.unknown = is_request, unknown
    return conversation


def _is_request(record: Any, holder: dict[str, Any]) -> bool:
    has_output = any(holder.get(name) or record.get(name) for name in (*_OUTPUTS, "output", "response"))
    is_body = not _SETTINGS.isdisjoint(holder) or "contents" in holder or "custom_id" in record
    return is_body and not has_output


def _id(record: dict[str, Any]) -> str | None:
    for key in _IDS:
        if (name := as_name(record.get(key))) is not None:
            return name
    task, trial = as_name(record.get("task_id")), as_name(record.get("trial"))
    return task if task is None or trial is None else f"{task}-{trial}"


def _tool_holders(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects that can contain tool schemas: the record, and a configuration of Bedrock or Gemini in it."""
    yield record
    yield from (config for key in _TOOL_CONFIGS if isinstance(config := record.get(key), dict))


def _tools(record: dict[str, Any]) -> list[dict[str, Any]]:
    holders = (holder for holder in _tool_holders(record) if any(holder.get(key) for key in _TOOLS))
    holder = next(holders, None)
    if holder is None:
        return []
    key = next(key for key in _TOOLS if holder.get(key))
    tools = _parse_nested(holder[key], key)
    if not isinstance(tools, list):
        raise MalformedError(f"'{key}' is {kind_of(tools)}, expected a list of tool schemas")
    for tool in tools:
        if not isinstance(tool, dict):
            raise MalformedError(f"'{key}' contains {kind_of(tool)}, expected objects")
    return tools


def _is_conversation(value: Any) -> bool:
    if isinstance(value, list):
        is_list_of_conversations = not is_message(value[0] if value else None) and any(map(_is_conversation, value))
        return not is_list_of_conversations
    return isinstance(value, dict) and bool(_holders(value))


def _read(records: Iterator[Record]) -> Iterator[Conversation | MalformedError]:
    for record in records:
        yield from conversations(record.value)


CONVERSATIONS = TranscriptFormat(
    "conversations",
    (
        Check(
            "a list of messages, or an object with 'messages', 'input', 'contents' or 'history'",
            lambda sample: all(map(_is_conversation, sample.values)),
        ),
    ),
    _read,
    is_general=True,
)
