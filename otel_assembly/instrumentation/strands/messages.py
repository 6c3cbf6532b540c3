"""How an agent's messages, prompts and tools are read; the messages are Bedrock's dicts, whose rows are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.messages import function_schema
from otel_assembly.messages.content_snapshot import copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: What a model is sent of a message; what else stands there is for the framework.
_SENT: Final = ("role", "content")
#: The messages that each agent held when they were last read, as they were then, by the identity of its own.
_HELD: Final[IdentityWeakMap[dict[int, Any]]] = IdentityWeakMap()


def held_by(agent: Any) -> list[Any]:
    """What an agent holds, as a model would be sent it: copies, since it is changed in place.

    Of a message that has not changed since it is the same object.
    """
    held = as_sent(agent.messages, _HELD.get(agent) or {})
    _HELD.put(agent, dict(zip(map(id, agent.messages), held, strict=True)))
    return held


def as_sent(messages: Iterable[Any], known: Mapping[int, Any] = {}) -> list[Any]:  # never written to
    """Messages as a model is sent them, copied, but for those that are known."""
    found = []
    for message in messages:
        sent = {name: message[name] for name in _SENT if name in message}
        before = known.get(id(message))
        found.append(before if before == sent else copied(sent))
    return found


def prompts_of(system: Any, content: Sequence[Any] | None = None) -> list[str]:
    """The system prompts: the texts among these blocks, or one text where there are none."""
    blocks = system if isinstance(system, list) else content
    texts = [block.get("text") for block in blocks] if isinstance(blocks, list) else [system]
    return [prompt for text in texts for prompt in as_prompts(text)]


def schemas_of(specs: Any) -> tuple[Mapping[str, Any], ...]:
    """The schemas of the tools that a model is offered."""
    return tuple(map(_schema, specs or ()))


def _schema(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = spec["inputSchema"]
    return function_schema(spec["name"], spec.get("description"), parameters.get("json", parameters))


def output_schema(output: Any) -> Mapping[str, Any]:
    """The schema of what a model is asked for as its output, as one that has no way of its own is offered it."""
    from strands.tools import convert_pydantic_to_tool_spec  # imported by then

    return _schema(convert_pydantic_to_tool_spec(output))
