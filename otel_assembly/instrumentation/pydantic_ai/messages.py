"""How Pydantic AI's messages are read, and what stands for them; importing this module imports ``pydantic_ai``."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.messages import ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.profiles import DEFAULT_PROMPTED_OUTPUT_TEMPLATE

from otel_assembly.instrumentation.conversation import ByIdentity
from otel_assembly.instrumentation.splicing import same_objects
from otel_assembly.messages import Draft, register_results, summary_like, summary_text
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.describe import EventFacts, EventKind, describe
from otel_assembly.messages.rows import is_silent, read_part, says, shows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_ai.messages import ModelMessage

    from otel_assembly.messages.rows import Row

#: Marks our own summaries, in a request's metadata, which is never sent to a model.
SUMMARY: Final = "otel_assembly_summary"

#: Of some requests, the same without the system prompts at its front, and the parts that it had when it was made.
_BEHIND: Final[ByIdentity[tuple[ModelRequest, list[Any]]]] = ByIdentity()

read_from(ModelRequest, "parts", "metadata")
read_from(ModelResponse, "parts", "usage")


@describe.register(ModelRequest)
def _(message: ModelRequest) -> EventFacts:
    return _read(message).facts(_kind_of(message), {})


@describe.register(ModelResponse)
def _(message: ModelResponse) -> EventFacts:
    only_summary = bool(message.parts) and all(part.part_kind == "compaction" for part in message.parts)
    return _read(message).facts(
        EventKind.SUMMARY if only_summary else EventKind.RESPONSE,
        {},
        billed_tokens=message.usage.input_tokens or None,
        output_tokens=message.usage.output_tokens or None,
    )


def _read(message: ModelMessage) -> Draft:
    draft = Draft()
    for part in message.parts:
        read_part(draft, _ROWS, part.part_kind, part)
    return draft


def behind_prompts(messages: Sequence[ModelMessage]) -> tuple[list[str], list[ModelMessage]]:
    """The system prompts in front of everything else, and the messages behind them.

    A request that begins with system prompts and goes on is, behind them, the same without: one object of it for as
    long as it is not changed.
    """
    prompts: list[str] = []
    for place, message in enumerate(messages):
        parts: Sequence[Any] = message.parts if isinstance(message, ModelRequest) else ()
        system = list(takewhile(_is_system, parts))
        prompts += [part.content for part in system]
        if not isinstance(message, ModelRequest) or len(system) < len(parts):
            return prompts, [_without(message, len(system)) if system else message, *messages[place + 1 :]]
    return prompts, []


def _is_system(part: Any) -> bool:
    return bool(part.part_kind == "system-prompt")


def _without(message: Any, leading: int) -> ModelRequest:
    known, rest = _BEHIND.get(message), list(message.parts[leading:])
    if known is not None and same_objects(known[1], rest):
        return known[0]
    return _BEHIND.put(message, (replace(message, parts=list(rest)), rest))[0]


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
    outputs = parameters.output_tools if parameters.output_mode in {"tool", "auto"} else ()
    return [*map(_schema, declared), *map(_schema, outputs)]


def _schema(tool: Any) -> dict[str, Any]:
    said = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    return {"type": "function", "function": said}


def _prompt(draft: Draft, part: Any) -> None:
    """What a person says: a text, or texts and files; marks of a cache say nothing."""
    for item in (part.content,) if isinstance(part.content, str) else part.content:
        if isinstance(item, str):
            draft.text(item)
        else:
            read_part(draft, _ITEMS, getattr(item, "kind", None), item)


def _result(draft: Draft, part: Any) -> None:
    """What a tool has returned, as the model reads it; files are sent beside it."""
    _provided(draft, part)
    draft.result(part.tool_call_id)


def _provided(draft: Draft, part: Any) -> None:
    text = part.model_response_str()
    if text:
        draft.texts.append(text)  # not said by anybody
    for _ in part.files:
        draft.file()


def _retry(draft: Draft, part: Any) -> None:
    if not getattr(part, "tool_name", None):
        draft.text(part.model_response())
        return
    draft.texts.append(part.model_response())
    draft.result(part.tool_call_id)


def _call(draft: Draft, part: Any) -> None:
    draft.call(part.tool_call_id, part.tool_name, part.args_as_json_str())


def _provider_call(draft: Draft, part: Any) -> None:
    """A tool that the provider runs itself: nobody owes it a result."""
    draft.spell(part.tool_name, part.args_as_json_str())


def _compaction(draft: Draft, part: Any) -> None:
    draft.text(part.content)
    if not part.content:
        draft.encrypted((part.provider_details or {}).get("encrypted_content"))


def _speech(draft: Draft, part: Any) -> None:
    draft.text(part.transcript)
    if part.audio is not None:
        draft.file()


_ROWS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(("user-prompt", "system-prompt"), _prompt),
    **dict.fromkeys(("text", "instruction-delta"), says("content")),
    "thinking": says("content", sealed="signature"),
    "tool-call": _call,
    "tool-return": _result,
    "builtin-tool-call": _provider_call,
    "builtin-tool-return": _provided,
    **dict.fromkeys(("retry-prompt", "retry-feedback"), _retry),
    "compaction": _compaction,
    "speech": _speech,
    "file": shows,
    # Records of what the framework did, which say nothing to a model in the place where they stand.
    **dict.fromkeys(("tool-availability-delta", "model-settings-delta", "instruction-baseline"), is_silent),
}
#: What stands in a prompt beside texts, by its ``kind``.
_ITEMS: Final[Mapping[str, Row]] = {
    **dict.fromkeys(("image-url", "audio-url", "video-url", "document-url", "binary", "uploaded-file"), shows),
    **dict.fromkeys(("text-content", "structured-content"), says("content")),
    "cache-point": is_silent,
}
#: What a part makes of its request; of several the one that stands first here.
_KINDS: Final = {
    **dict.fromkeys(("user-prompt", "speech", "retry-prompt", "retry-feedback"), EventKind.REQUEST),
    "compaction": EventKind.SUMMARY,
    "tool-return": EventKind.TOOL_RESULT,
    **dict.fromkeys(("system-prompt", "instruction-delta"), EventKind.SYSTEM),
}


def _kind_of(request: ModelRequest) -> EventKind:
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


@summary_like.register(ModelRequest)
@summary_like.register(ModelResponse)
def _(_: Any, text: str, events: Sequence[Any]) -> ModelRequest:
    """A user's message, as where somebody says it: it means the same to every provider."""
    return ModelRequest(parts=[UserPromptPart(summary_text(text))], metadata={SUMMARY: True})


def _text_of(part: Any) -> str:
    return part.content if isinstance(part, ToolReturnPart) and isinstance(part.content, str) else ""


register_results(
    ModelRequest,
    attrgetter("parts"),
    _text_of,
    lambda part, text: replace(part, content=text),
    lambda request, parts: replace(request, parts=parts),
)
