"""How Pydantic AI's messages are read, and what stands for them; importing this module imports ``pydantic_ai``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.messages import InstructionPart, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.profiles import DEFAULT_PROMPTED_OUTPUT_TEMPLATE

from otel_assembly.instrumentation.prompts import PromptsInFront, as_prompts
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


#: `behind_prompts` gives the system prompts in front of everything else, and the messages behind them.
behind_prompts: Final = PromptsInFront(
    ModelRequest, "parts", lambda part: part.content if part.part_kind == "system-prompt" else None
).split


def completed(parameters: Any, model: Any) -> Any:
    """The parameters of a request as its model completes them, as far as that says how it is asked for an output."""
    profile: Mapping[str, Any] = {}
    with suppress(NotImplementedError):  # a model that falls back to others has none
        profile = model.profile
    parameters = parameters.with_default_output_mode(profile.get("default_structured_output_mode", "tool"))
    mode, template = parameters.output_mode, parameters.prompted_output_template
    described = mode == "native" and profile.get("native_output_requires_schema_in_instructions")
    if template is None and (mode == "prompted" or described):
        template = profile.get("prompted_output_template", DEFAULT_PROMPTED_OUTPUT_TEMPLATE)
    return replace(
        parameters,
        output_tools=parameters.output_tools if mode == "tool" else [],
        prompted_output_template=template if mode in {"prompted", "native"} else None,
    )


def instructions_of(messages: Sequence[Any], parameters: Any, model: Any) -> list[str]:
    """What a model is told beside the messages: the instructions, and how to write an output."""
    sent = getattr(parameters, "instruction_visibility", None) or {}
    asked = model._get_instruction_parts(messages, parameters) or ()  # noqa: SLF001  # as every model does
    parts = [one for one in asked if sent.get(str(getattr(one, "id", None)), "prefix") == "prefix"]
    output = completed(parameters, model).prompted_output_instructions
    if output:
        parts = InstructionPart.sorted([*parts, InstructionPart(content=output)])
    return as_prompts("\n\n".join(part.content for part in parts if part.content).strip())


def schemas_of(parameters: Any, model: Any) -> list[dict[str, Any]]:
    """The schemas of the tools that a request offers, those included that give its output."""
    declared = getattr(parameters, "declared_function_tools", None)  # what is withheld is not among them
    if declared is None:
        declared = [tool for tool in parameters.function_tools if not tool.defer_loading]
    offered = (*declared, *completed(parameters, model).output_tools)
    return [function_schema(tool.name, tool.description, tool.parameters_json_schema) for tool in offered]


def _what(part: Any) -> str:
    """What a part is: as it says, but for what is told to a tool's call, and what is asked for instead of nothing."""
    if part.part_kind == "retry-prompt" and part.tool_name:
        return "retry-return"
    if part.part_kind == "retry-feedback" and part.retry.cause == "no_output":
        return "no-output"
    return str(part.part_kind)


def _sealed(part: Any) -> Any:
    return None if part.content else (part.provider_details or {}).get("encrypted_content")


#: What stands in a prompt beside texts, by its ``kind``.
_ITEMS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(("image-url", "audio-url", "video-url", "document-url", "binary", "uploaded-file"), shows),
    **dict.fromkeys(("text-content", "structured-content"), says("content")),
    "cache-point": is_silent,
}
#: As the model reads them; what a provider answers itself, nobody owes a result.
_returned, _arguments = methodcaller("model_response_str"), methodcaller("args_as_json_str")
_retry: Final = methodcaller("model_response")
_ROWS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(("user-prompt", "system-prompt"), holds("content", _ITEMS, "kind")),
    **dict.fromkeys(("text", "instruction-delta"), says("content")),
    "thinking": thinks("content", sealed="signature"),
    "tool-call": asks("tool_call_id", "tool_name", _arguments),
    "tool-return": answers("tool_call_id", _returned, shown="files"),
    "builtin-tool-call": asks(None, "tool_name", _arguments),
    "builtin-tool-return": answers(None, _returned, shown="files"),
    "retry-return": answers("tool_call_id", _retry),
    **dict.fromkeys(("retry-prompt", "retry-feedback", "no-output"), says(_retry)),
    "compaction": says("content", sealed=_sealed),
    "speech": says("transcript", shown="audio"),
    "file": shows,
    # Records of what the framework did, which say nothing to a model in the place where they stand.
    **dict.fromkeys(("tool-availability-delta", "model-settings-delta", "instruction-baseline"), is_silent),
}
#: What a part makes of its request; of several the one that stands first here.
_KINDS: Final = {
    **dict.fromkeys(("user-prompt", "speech", "retry-prompt", "retry-feedback"), EventKind.REQUEST),
    "compaction": EventKind.SUMMARY,
    **dict.fromkeys(("tool-return", "retry-return"), EventKind.TOOL_RESULT),
    **dict.fromkeys(("system-prompt", "instruction-delta", "no-output"), EventKind.SYSTEM),
}


def _request(request: ModelRequest, _: Any) -> EventKind:
    if (request.metadata or {}).get(OUR_SUMMARY):
        return EventKind.SUMMARY
    kinds = {_KINDS.get(_what(part)) for part in request.parts}
    return next((kind for kind in _KINDS.values() if kind in kinds), EventKind.OTHER)


def _response(response: ModelResponse, _: Any) -> EventKind:
    return EventKind.SUMMARY if {part.part_kind for part in response.parts} == {"compaction"} else EventKind.RESPONSE


_USED: Final = {"billed_tokens": "usage.input_tokens", "output_tokens": "usage.output_tokens"}
register_parts(ModelRequest, "parts", _what, _ROWS, _request)
register_parts(ModelResponse, "parts", "part_kind", _ROWS, _response, _USED)
# A summary is a user's message, as where somebody says it: it means the same to every provider.
register_summaries(
    lambda said: ModelRequest(parts=[UserPromptPart(said)], metadata={OUR_SUMMARY: True}), ModelRequest, ModelResponse
)
register_results(ModelRequest, "parts", result_text("part_kind", "tool-return", "content"), "content")
