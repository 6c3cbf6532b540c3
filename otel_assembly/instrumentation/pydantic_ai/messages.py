"""How Pydantic AI's messages are read, and what stands for them; importing this module imports ``pydantic_ai``."""

from __future__ import annotations

from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.messages import ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.profiles import DEFAULT_PROMPTED_OUTPUT_TEMPLATE

from otel_assembly.instrumentation.prompts import PromptsInFront
from otel_assembly.messages import function_schema, register_results, summary_like, summary_text
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.describe import EventKind
from otel_assembly.messages.rows import answers, asks, holds, is_silent, register_parts, says, shows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

#: Marks our own summaries, in a request's metadata, which is never sent to a model.
SUMMARY: Final = "otel_assembly_summary"

read_from(ModelRequest, "parts", "metadata")
read_from(ModelResponse, "parts", "usage")


#: `behind_prompts` gives the system prompts in front of everything else, and the messages behind them.
behind_prompts: Final = PromptsInFront(
    ModelRequest, "parts", lambda part: part.content if part.part_kind == "system-prompt" else None
).split


def instructions_of(parameters: Any, model: Any = None) -> list[str]:
    """What a model is told beside the messages: the instructions, and how to write an output it is prompted for.

    Args:
        parameters: The `ModelRequestParameters` of a request.
        model: The model, whose profile may say how it is asked for that output.
    """
    sent = getattr(parameters, "instruction_visibility", None) or {}
    asked = parameters.instruction_parts or ()
    parts = [one for one in asked if sent.get(str(getattr(one, "id", None)), "prefix") == "prefix"]
    texts = [part.content for part in parts]
    if parameters.output_mode == "prompted" and parameters.output_object is not None:
        if parameters.prompted_output_template is None and model is not None:
            profile = model.profile if isinstance(model.profile, dict) else {}
            template = profile.get("prompted_output_template") or DEFAULT_PROMPTED_OUTPUT_TEMPLATE
            parameters = replace(parameters, prompted_output_template=template)
        fixed = sum(not part.dynamic for part in parts)
        texts.insert(fixed, parameters.prompted_output_instructions or "")
    text = "\n\n".join(text for text in texts if text).strip()
    return [text] if text else []


def schemas_of(parameters: Any) -> list[dict[str, Any]]:
    """The schemas of the tools that a request offers, those included that give its output."""
    declared = getattr(parameters, "declared_function_tools", None)  # what is withheld is not among them
    if declared is None:
        declared = [tool for tool in parameters.function_tools if not getattr(tool, "defer_loading", False)]
    offered = (*declared, *(parameters.output_tools if parameters.output_mode in {"tool", "auto"} else ()))
    return [function_schema(tool.name, tool.description, tool.parameters_json_schema) for tool in offered]


def _retry(draft: Draft, part: Any) -> None:
    if getattr(part, "tool_name", None):
        _failure(draft, part)
    else:
        draft.text(part.model_response())


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
_failure: Final = answers("tool_call_id", methodcaller("model_response"))
_ROWS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(("user-prompt", "system-prompt"), holds("content", _ITEMS, "kind")),
    **dict.fromkeys(("text", "instruction-delta"), says("content")),
    "thinking": says("content", sealed="signature"),
    "tool-call": asks("tool_call_id", "tool_name", _arguments),
    "tool-return": answers("tool_call_id", _returned, shown="files"),
    "builtin-tool-call": asks(None, "tool_name", _arguments),
    "builtin-tool-return": answers(None, _returned, shown="files"),
    **dict.fromkeys(("retry-prompt", "retry-feedback"), _retry),
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
    "tool-return": EventKind.TOOL_RESULT,
    **dict.fromkeys(("system-prompt", "instruction-delta"), EventKind.SYSTEM),
}


def _request(request: ModelRequest, _: Any) -> EventKind:
    if (request.metadata or {}).get(SUMMARY):
        return EventKind.SUMMARY
    kinds = set(map(_makes, request.parts))
    return next((kind for kind in _KINDS.values() if kind in kinds), EventKind.OTHER)


def _makes(part: Any) -> EventKind | None:
    if part.part_kind == "retry-prompt" and part.tool_name:
        return EventKind.TOOL_RESULT
    if part.part_kind == "retry-feedback" and part.retry.cause == "no_output":
        return EventKind.SYSTEM
    return _KINDS.get(part.part_kind)


def _response(response: ModelResponse, _: Any) -> EventKind:
    return EventKind.SUMMARY if {part.part_kind for part in response.parts} == {"compaction"} else EventKind.RESPONSE


def _used(response: ModelResponse) -> dict[str, Any]:
    usage = response.usage
    return {"billed_tokens": usage.input_tokens or None, "output_tokens": usage.output_tokens or None}


register_parts(ModelRequest, "parts", "part_kind", _ROWS, _request)
register_parts(ModelResponse, "parts", "part_kind", _ROWS, _response, _used)


@summary_like.register(ModelRequest)
@summary_like.register(ModelResponse)
def _(_: Any, text: str, events: Sequence[Any]) -> ModelRequest:
    """A user's message, as where somebody says it: it means the same to every provider."""
    return ModelRequest(parts=[UserPromptPart(summary_text(text))], metadata={SUMMARY: True})


def _text_of(part: Any) -> str:
    return part.content if isinstance(part, ToolReturnPart) and isinstance(part.content, str) else ""


register_results(ModelRequest, "parts", _text_of, "content")
