"""How Gemini's contents are read, in which ADK holds the messages of every model; imported once ``google.genai`` is."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from google.genai.types import Content, Part

from otel_assembly.messages import ROLES, edited, function_schema, register_results, register_summaries
from otel_assembly.messages.event_facts import EventKind, spelled
from otel_assembly.messages.keyed_parts import response_text
from otel_assembly.messages.rows import answers, asks, is_silent, register_parts, says, shows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

#: What the ids begin with that ADK gives to calls itself; most models are sent none of them.
_OWN_ID: Final = "adk-"


class SummaryContent(Content):
    """A user's content that says what earlier ones said; like any other to whoever sends it."""


def _pair(half: str) -> Callable[[Part], Any]:
    """By what a call and its result know one another: the provider's id, else the tool's name, as Gemini does."""
    held = attrgetter(half)

    def known(part: Part) -> Any:
        own = held(part).id
        return held(part).name if not own or own.startswith(_OWN_ID) else own

    return known


def _sent_response(part: Part) -> str:
    """What a model reads of a result: the object that its text is in, too."""
    response = part.function_response.response
    return "" if response is None else spelled(response)


def _returned(part: Part) -> str:
    return response_text(part.function_response.response) if part.function_response else ""


def _saying(part: Part, text: str) -> Part:
    held: Any = part.function_response
    key = next(iter(held.response)) if len(held.response) == 1 else "result"
    return edited(part, function_response=edited(held, response={key: text}))


#: By the field that a part has; of several the first here says what it is.
_ROWS: Final[Mapping[str | None, Row]] = {
    "function_call": asks(_pair("function_call"), "function_call.name", "function_call.args"),
    "function_response": answers(
        _pair("function_response"), _sent_response, "function_response.name", shown="function_response.parts"
    ),
    **dict.fromkeys(("inline_data", "file_data"), shows),
    "executable_code": says("executable_code.code"),
    "code_execution_result": says("code_execution_result.output"),
    # What Gemini runs itself: nobody owes it a result.
    "tool_call": asks(None, "tool_call.tool_type.value", "tool_call.args"),
    "tool_response": answers(None, lambda part: response_text(part.tool_response.response)),
    "text": says("text"),
    None: is_silent,  # a thought's signature alone, a mark
}


def _what(part: Part) -> str | None:
    held = part.__dict__
    return next((name for name in _ROWS if name and held.get(name) is not None), None)


def _kind(content: Content, draft: Draft) -> EventKind:
    if isinstance(content, SummaryContent):
        return EventKind.SUMMARY
    if draft.results and not draft.said:
        return EventKind.TOOL_RESULT
    return ROLES.get(content.role or "user", EventKind.RESPONSE)


register_parts(Content, "parts", _what, _ROWS, _kind, read=lambda content: (content.role, type(content)))
register_summaries(lambda said: SummaryContent(role="user", parts=[Part(text=said)]), Content)
register_results(
    Content, lambda content: content.parts or (), _returned, _saying, lambda one, parts: edited(one, parts=parts)
)


def prompts_of(request: Any) -> list[str]:
    """What a model is told in front of the messages: a text, or the texts of a content or of a list."""
    told = request.config.system_instruction
    parts = getattr(told, "parts", told)
    texts = (getattr(part, "text", part) for part in (parts if isinstance(parts, list) else [parts]))
    return [text for text in texts if isinstance(text, str) and text]


def _schema(one: Any) -> dict[str, Any]:
    held = one.parameters_json_schema or (
        one.parameters.model_dump(mode="json", exclude_none=True) if one.parameters else {}
    )
    return function_schema(one.name, one.description, held)


def schemas_of(request: Any) -> list[dict[str, Any]]:
    """The schemas of the functions that a model is offered; of what a provider runs itself none is known."""
    offered = (getattr(tool, "function_declarations", None) for tool in (request.config.tools or ()))
    return [_schema(one) for declared in offered for one in declared or ()]
