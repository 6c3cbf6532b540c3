"""Registers how Pydantic AI's messages are read, and creates its summary messages.

Also reads the prompts and tool schemas of a request. Importing this module imports ``pydantic_ai``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.messages import InstructionPart, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.profiles import DEFAULT_PROMPTED_OUTPUT_TEMPLATE

from otel_assembly.instrumentation.prompts import as_prompts
from otel_assembly.instrumentation.pydantic_ai.prompts import PromptsInFront
from otel_assembly.messages import function_schema, register_results, register_summaries
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventKind
from otel_assembly.messages.replacements import OUR_SUMMARY
from otel_assembly.messages.rows import (
    answers,
    asks,
    holds,
    is_silent,
    register_parts,
    result_text,
    says,
    shows,
    thinks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.messages.rows import Row

read_from(ModelRequest, "parts", "metadata")
read_from(ModelResponse, "parts", "usage")


#: Splits a history into the texts of the system prompts at its start, and the remaining messages. A request that starts
#: with system prompts is replaced with a copy without them, always the same object.
split_prompts: Final = PromptsInFront(
    ModelRequest, "parts", lambda part: part.content if part.part_kind == "system-prompt" else None
).split


def _with_output_mode(parameters: Any, model: Any) -> Any:
    """Return a request's parameters with the output mode resolved, as Pydantic AI does later, in ``Model.request``."""
    profile: Mapping[str, Any] = {}
    with suppress(NotImplementedError):  # raised by `FallbackModel`
        profile = model.profile
    parameters = parameters.with_default_output_mode(profile.get("default_structured_output_mode", "tool"))
    mode, template = parameters.output_mode, parameters.prompted_output_template
    needs_schema_text = mode == "native" and profile.get("native_output_requires_schema_in_instructions")
    if template is None and (mode == "prompted" or needs_schema_text):
        template = profile.get("prompted_output_template", DEFAULT_PROMPTED_OUTPUT_TEMPLATE)
    return replace(
        parameters,
        output_tools=parameters.output_tools if mode == "tool" else [],
        prompted_output_template=template if mode in {"prompted", "native"} else None,
    )


def instructions_of(messages: Sequence[Any], parameters: Any, model: Any) -> list[str]:
    """Return the instructions of a request as at most one text, including how to write a prompted output.

    Instructions that Pydantic AI does not send in front of the messages are left out.
    """
    visibility = getattr(parameters, "instruction_visibility", None) or {}
    declared = model._get_instruction_parts(messages, parameters) or ()  # noqa: SLF001  # as every model does
    parts = [part for part in declared if visibility.get(str(getattr(part, "id", None)), "prefix") == "prefix"]
    output = _with_output_mode(parameters, model).prompted_output_instructions
    if output:
        parts = InstructionPart.sorted([*parts, InstructionPart(content=output)])
    return as_prompts("\n\n".join(part.content for part in parts if part.content).strip())


def schemas_of(parameters: Any, model: Any) -> list[dict[str, Any]]:
    """Return the schemas of the function tools and output tools that a request offers."""
    declared = getattr(parameters, "declared_function_tools", None)
    if declared is None:  # a release without this property
        declared = [tool for tool in parameters.function_tools if not tool.defer_loading]
    offered = (*declared, *_with_output_mode(parameters, model).output_tools)
    return [function_schema(tool.name, tool.description, tool.parameters_json_schema) for tool in offered]


def _part_type(part: Any) -> str:
    """Return a part's kind, with own kinds for a retry request that answers a tool call or a missing output."""
    if part.part_kind == "retry-prompt" and part.tool_name:
        return "retry-return"
    if part.part_kind == "retry-feedback" and part.retry.cause == "no_output":
        return "no-output"
    return str(part.part_kind)


def _encrypted_content(part: Any) -> Any:
    return None if part.content else (part.provider_details or {}).get("encrypted_content")


#: Readers of the parts of a prompt's content that are not plain strings, by ``kind``.
_CONTENT_ROWS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(("image-url", "audio-url", "video-url", "document-url", "binary", "uploaded-file"), shows),
    **dict.fromkeys(("text-content", "structured-content"), says("content")),
    "cache-point": is_silent,
}
# Pydantic AI's own methods that return the texts as the model receives them.
_result_text, _arguments_text = methodcaller("model_response_str"), methodcaller("args_as_json_str")
_retry_text: Final = methodcaller("model_response")
#: Readers of the parts of requests and responses, by `_part_type`. Calls of builtin tools have no call id, because the
#: provider runs these tools, so no result has to follow.
_ROWS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(("user-prompt", "system-prompt"), holds("content", _CONTENT_ROWS, "kind")),
    **dict.fromkeys(("text", "instruction-delta"), says("content")),
    "thinking": thinks("content", sealed="signature"),
    "tool-call": asks("tool_call_id", "tool_name", _arguments_text),
    "tool-return": answers("tool_call_id", _result_text, shown="files"),
    "builtin-tool-call": asks(None, "tool_name", _arguments_text),
    "builtin-tool-return": answers(None, _result_text, shown="files"),
    "retry-return": answers("tool_call_id", _retry_text),
    **dict.fromkeys(("retry-prompt", "retry-feedback", "no-output"), says(_retry_text)),
    "compaction": says("content", sealed=_encrypted_content),
    "speech": says("transcript", shown="audio"),
    "file": shows,
    # Records of what the framework changed. The model receives no text at their place in the history.
    **dict.fromkeys(("tool-availability-delta", "model-settings-delta", "instruction-baseline"), is_silent),
}
#: The kind that a part gives its request. If the parts differ, the first kind in this table applies.
_KINDS: Final = {
    **dict.fromkeys(("user-prompt", "speech", "retry-prompt", "retry-feedback"), EventKind.REQUEST),
    "compaction": EventKind.SUMMARY,
    **dict.fromkeys(("tool-return", "retry-return"), EventKind.TOOL_RESULT),
    **dict.fromkeys(("system-prompt", "instruction-delta", "no-output"), EventKind.SYSTEM),
}


def _request_kind(request: ModelRequest, _: Any) -> EventKind:
    if (request.metadata or {}).get(OUR_SUMMARY):
        return EventKind.SUMMARY
    kinds = {_KINDS.get(_part_type(part)) for part in request.parts}
    return next((kind for kind in _KINDS.values() if kind in kinds), EventKind.OTHER)


def _response_kind(response: ModelResponse, _: Any) -> EventKind:
    return EventKind.SUMMARY if {part.part_kind for part in response.parts} == {"compaction"} else EventKind.RESPONSE


_USAGE_FIELDS: Final = {"billed_tokens": "usage.input_tokens", "output_tokens": "usage.output_tokens"}
register_parts(ModelRequest, "parts", _part_type, _ROWS, _request_kind)
register_parts(ModelResponse, "parts", "part_kind", _ROWS, _response_kind, _USAGE_FIELDS)
# A summary is a user message, because all providers treat user messages the same.
register_summaries(
    lambda text: ModelRequest(parts=[UserPromptPart(text)], metadata={OUR_SUMMARY: True}), ModelRequest, ModelResponse
)
register_results(ModelRequest, "parts", result_text("part_kind", "tool-return", "content"), "content")


def with_system_prompts(messages: Sequence[Any], history: Sequence[Any], events: list[Any]) -> list[Any]:
    """Return the leading system prompts of `messages`, followed by `events`, a policy chain's output.

    `history` is the chain's input: the messages without these prompts, from `split_prompts`.
    """
    first = len(messages) - len(history)  # the index of the first message that contains more than system prompts
    if history and events and events[0] is history[0]:  # a copy of that message without its prompts: send the original
        return [*messages[: first + 1], *events[1:]]
    parts: list[Any] = []
    for message in messages[: first + 1]:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if part.part_kind != "system-prompt":
                break
            parts.append(part)
    return [ModelRequest(parts=parts), *events]
