"""Find the conversations in a record, one JSON value of a transcript file. Its keys determine its format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly.cli.transcript_json import MalformedError, excerpt, kind_of, parse
from otel_assembly.cli.transcript_messages import AUTOGEN_TYPES, Converter, as_name, is_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["EXPECTED", "Conversation", "conversations", "is_conversation", "is_message"]

#: The supported formats, for the end of an error message.
EXPECTED = (
    "a conversation: a list of messages, or an object with 'messages', 'input', 'contents', 'traj', 'history' or "
    "'llm_context'"
)

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
_IDS = ("id", "conversation_id", "gen_ai.conversation.id", "session_id", "thread_id")
_HOLDERS = frozenset((*_LISTS, *_INPUTS, *_OUTPUTS, *_STATES))


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of a record.

    Attributes:
        id: The record's id; None if it has none.
        agent: The agent's name, if the record is the saved state of a team; else empty.
        messages: The messages, in a form that `otel_assembly.messages` reads.
        tools: The tool schemas of the record.
    """

    id: str | None
    agent: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


def is_message(value: Any) -> bool:
    """Return whether a value is one message, and not a record that contains messages."""
    return (
        isinstance(value, dict)
        and ("role" in value or value.get("type") in AUTOGEN_TYPES or is_item(value))
        and _HOLDERS.isdisjoint(value)
    )


def is_conversation(value: Any) -> bool:
    """Return whether a value looks like a conversation, although its messages may still be unreadable."""
    return isinstance(value, list) or (isinstance(value, dict) and bool(_holders(value)))


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
            yield Conversation(name, "", _convert(_labeled_messages(holder)), tools)
            return
    except MalformedError as error:
        yield error
        return
    for agent, messages in contexts:
        try:
            yield Conversation(name, agent, _convert(_messages(messages, "messages", "message")), tools)
        except MalformedError as error:
            yield MalformedError(f"agent {excerpt(agent)}: {error}" if agent else str(error))


def _holder(record: Any) -> dict[str, Any]:
    """Return the object that contains the messages: the record, or an object directly inside it.

    Raises:
        MalformedError: No object, or more than one, contains messages.
    """
    if not isinstance(record, dict):
        raise MalformedError(f"{kind_of(record)}, expected {EXPECTED}")
    match _holders(record):
        case []:
            keys = ", ".join(excerpt(key) for key in list(record)[:4]) or "no keys"
            raise MalformedError(f"an object with {keys}{', …' if len(record) > 4 else ''}, expected {EXPECTED}")
        case [holder]:
            return holder
    keys = " and ".join(excerpt(key) for key in [key for key, item in record.items() if _has_messages(item)][:2])
    raise MalformedError(f"messages under {keys}, expected them in one place")


def _holders(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [record] if _has_messages(record) else [item for item in record.values() if _has_messages(item)]


def _has_messages(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return not _HOLDERS.isdisjoint(value) or any(isinstance(value.get(key), list) for key in _REQUESTS)


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


def _convert(labeled: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    converter = Converter()
    messages: list[dict[str, Any]] = []
    for label, message in labeled:
        try:
            messages += converter.convert(message)
        except MalformedError as error:
            raise MalformedError(f"{label}: {error}") from None
    if not messages:
        raise MalformedError("a conversation without messages, expected at least one")
    return messages


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
