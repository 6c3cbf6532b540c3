"""Reads the messages, prompts and tools of Strands agents.

The messages are dicts in the format of Amazon Bedrock, for which `otel_assembly.messages` has readers.
"""

from __future__ import annotations

from itertools import compress, repeat
from operator import itemgetter, ne
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.messages import function_schema
from otel_assembly.messages.content_snapshot import copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The keys of a message that are sent to a model; Strands uses the others itself.
_MODEL_KEYS: Final = ("role", "content")
#: See `known_copies`.
_COPIES: Final[IdentityWeakMap[dict[int, Any]]] = IdentityWeakMap()


def agent_messages(agent: Any) -> list[Any]:
    """Return copies of an agent's messages as a model receives them; Strands changes the originals in place."""
    copies = model_messages(agent.messages, known_copies(agent))
    _COPIES.put(agent, dict(zip(map(id, agent.messages), copies, strict=True)))
    return copies


def known_copies(agent: Any) -> Mapping[int, Any]:
    """Return the copies of an agent's messages when they were last read, by the `id` of the agent's own message."""
    return _COPIES.get(agent) or {}


def model_messages(messages: Iterable[Any], known: Mapping[int, Any] = {}) -> list[Any]:  # never written to
    """Return messages as a model receives them: the `known` copy, by the message's `id`, or a new one if it changed."""
    messages = list(messages)
    # Histories are long, so no Python code runs for a message that has both keys and has not changed.
    try:
        contents = list(map(dict, map(zip, repeat(_MODEL_KEYS), map(itemgetter(*_MODEL_KEYS), messages))))
    except KeyError:  # the same for messages without one of the keys
        contents = [{key: message[key] for key in _MODEL_KEYS if key in message} for message in messages]
    copies: list[Any] = list(map(known.get, map(id, messages)))
    changed_positions = list(compress(range(len(messages)), map(ne, copies, contents)))
    for position in changed_positions:
        copies[position] = copied(contents[position])
    return copies


def prompts_of(system: Any, content: Sequence[Any] | None = None) -> list[str]:
    """Return the system prompts: the texts of the content blocks if there are any, else the text of the prompt."""
    blocks = system if isinstance(system, list) else content  # Strands passes blocks instead of the text, or with it
    texts = [block.get("text") for block in blocks] if isinstance(blocks, list) else [system]
    return [prompt for text in texts for prompt in as_prompts(text)]


def with_prompts(system_prompt: Any, prompts: list[str], new_prompts: list[str]) -> Any:
    """Return the system prompt to send, whose texts were `prompts` before the policies and are `new_prompts` now."""
    if new_prompts == prompts:
        return system_prompt
    blocks = system_prompt if isinstance(system_prompt, list) else [{"text": text} for text in prompts]
    if new_prompts[: len(prompts)] == prompts:  # the original blocks, which can include cache points, are kept
        return [*blocks, *({"text": text} for text in new_prompts[len(prompts) :])]
    return [{"text": text} for text in new_prompts]


def schemas_of(specs: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple(map(_schema, specs or ()))


def _schema(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = spec["inputSchema"]
    return function_schema(spec["name"], spec.get("description"), parameters.get("json", parameters))


def output_schema(output: Any) -> Mapping[str, Any]:
    """Return the schema of a structured output, as the tool that Strands makes of it for most models."""
    from strands.tools import convert_pydantic_to_tool_spec  # already imported if an agent asks for an output

    return _schema(convert_pydantic_to_tool_spec(output))


class AlternatingRoles:
    """A policy that joins neighboring messages of one role, because Bedrock requires alternating roles."""

    name = "alternating_roles"
    kind = "reduction"

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        """Return the prompts, and the events with neighboring messages of one role joined, also across alerts."""
        joined: list[Any] = []
        last_index = -1
        for event in events:
            if not isinstance(event, dict):
                joined.append(event)
            elif last_index >= 0 and joined[last_index]["role"] == event["role"]:
                last = joined[last_index]
                joined[last_index] = {**last, "content": [*last["content"], *event["content"]]}
            else:
                last_index = len(joined)
                joined.append(event)
        return prompts, joined
