"""Readers for `google.genai.types.Content`, the type of ADK's messages for all models.

Importing this module registers them. It imports `google.genai`, so it is imported only after ADK's own modules.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from google.genai.types import Content, Part

from otel_assembly.messages import ROLES, edited, function_schema, register_results, register_summaries
from otel_assembly.messages.event_facts import EventKind, spelled
from otel_assembly.messages.keyed_parts import response_text
from otel_assembly.messages.rows import answers, asks, is_silent, register_parts, says, shows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.messages import Draft
    from otel_assembly.messages.rows import Row

#: The prefix of the call ids that ADK generates itself; it removes them from the requests to most models.
_ADK_ID_PREFIX: Final = "adk-"


class SummaryContent(Content):
    """A user content that summarizes earlier ones; models treat it as a plain `Content`."""


def _pair_key(field: str) -> Callable[[Part], Any]:
    """Return a function that returns the key that a tool call and its result, in this field of a part, have in common.

    The key is the provider's id of the call. Without an id, it is the tool's name, by which Gemini matches results.
    """
    value_of = attrgetter(field)

    def key(part: Part) -> Any:
        call_id = value_of(part).id
        return value_of(part).name if not call_id or call_id.startswith(_ADK_ID_PREFIX) else call_id

    return key


def _sent_result(part: Part) -> str:
    """Return a tool result as a model reads it: the whole object as JSON, not only the text in it."""
    response = part.function_response.response
    return "" if response is None else spelled(response)


def _with_result_text(part: Part, text: str) -> Part:
    """Return a copy of a part whose tool result is this text, under the result's only key if it has one key."""
    result: Any = part.function_response
    key = next(iter(result.response)) if len(result.response) == 1 else "result"
    return edited(part, function_response=edited(result, response={key: text}))


#: The reader of a part, by the field that is set in it; if several are set, the first one here counts.
_ROWS: Final[Mapping[str | None, Row]] = {
    "function_call": asks(_pair_key("function_call"), "function_call.name", "function_call.args"),
    "function_response": answers(
        _pair_key("function_response"), _sent_result, "function_response.name", shown="function_response.parts"
    ),
    **dict.fromkeys(("inline_data", "file_data"), shows),
    "executable_code": says("executable_code.code"),
    "code_execution_result": says("code_execution_result.output"),
    # Tools that Gemini runs itself: no result is expected for these calls.
    "tool_call": asks(None, "tool_call.tool_type.value", "tool_call.args"),
    "tool_response": answers(None, lambda part: response_text(part.tool_response.response)),
    "text": says("text"),
    None: is_silent,  # such as a part with only a thought's signature
}
#: The fields with a reader, the one that counts last; older releases have fewer fields.
_FIELDS: Final = [name for name in reversed(tuple(_ROWS)) if name in Part.model_fields]


def _fields(parts: Sequence[Part]) -> list[str | None]:
    """Return the name of the field that is set in each part; None if `_ROWS` has no reader for it.

    All parts are compared by their fields several times for each model call, so no Python function is called per part.
    """
    names: list[str | None] = [None] * len(parts)
    for name in _FIELDS:
        is_set = [value is not None for value in map(attrgetter(str(name)), parts)]
        if True in is_set:
            names = [name if here else other for here, other in zip(is_set, names, strict=True)]
    return names


def _kind(content: Content, draft: Draft) -> EventKind:
    if isinstance(content, SummaryContent):
        return EventKind.SUMMARY
    if draft.results and not draft.said:
        return EventKind.TOOL_RESULT
    return ROLES.get(content.role or "user", EventKind.RESPONSE)


register_parts(
    Content,
    "parts",
    lambda part: _fields([part])[0],
    _ROWS,
    _kind,
    read_all=lambda contents: zip(map(attrgetter("role"), contents), map(type, contents), strict=True),
    types_of=_fields,
)
register_summaries(lambda text: SummaryContent(role="user", parts=[Part(text=text)]), Content)
register_results(
    Content,
    lambda content: content.parts or (),
    lambda part: response_text(part.function_response.response) if part.function_response else "",
    _with_result_text,
    lambda content, parts: edited(content, parts=parts),
)


def prompts_of(request: Any) -> list[str]:
    """Return the texts of a request's system instruction, which is a text, a content, or a list of parts or texts."""
    instruction = request.config.system_instruction
    parts = getattr(instruction, "parts", instruction)
    texts = (getattr(part, "text", part) for part in (parts if isinstance(parts, list) else [parts]))
    return [text for text in texts if isinstance(text, str) and text]


def _schema(function: Any) -> dict[str, Any]:
    parameters = function.parameters_json_schema or (
        function.parameters.model_dump(mode="json", exclude_none=True) if function.parameters else {}
    )
    return function_schema(function.name, function.description, parameters)


def schemas_of(request: Any) -> list[dict[str, Any]]:
    """Return the schemas of a request's functions; tools that the provider runs itself have none."""
    declarations = (getattr(tool, "function_declarations", None) for tool in (request.config.tools or ()))
    return [_schema(function) for functions in declarations for function in functions or ()]
