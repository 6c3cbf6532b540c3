"""`StructuredAnswer`: the answer that an ask owes in a form of its own, and the tool by which the model gives it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from otel_assembly.errors import ConfigurationError, StructuredOutputError, ToolError
from otel_assembly.events import ModelResponse
from otel_assembly.runtime.tools import Tool, said_of

if TYPE_CHECKING:
    from collections.abc import Collection

#: The tool's name, as AgentScope calls it.
TOOL_NAME: Final = "GenerateStructuredOutput"
#: The content of each fenced code block of a Markdown text; the last may lack its end. JSON has no line breaks within
#: strings, so a fence in a value never stands at the start of a line.
_FENCED: Final = re.compile(
    r"^[ \t]*(?:```|~~~)[^\n`]*\n(.*?)(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_DESCRIPTION: Final = (
    "Give your final answer in the form that is asked for. You must end with a call of this tool: once it is accepted, "
    "you are done. Call it when you have all that the answer needs."
)


class StructuredAnswer:
    """What an ask with a ``structured_schema`` owes.

    The model gives it by calling a tool whose arguments are the answer. So it works with every model that calls tools,
    what the schema takes of the prompt is counted with those of the other tools, and what does not fit is read by the
    model as any tool's error is. A text that is the answer as JSON, or has it in a Markdown fence, is taken too.

    Args:
        schema: A pydantic model, a dataclass or a ``TypedDict``: a type whose JSON schema is an object.
        taken: The names of the agent's own tools.

    Raises:
        ConfigurationError: The schema is no such type, or a tool has the name that this one needs.

    Attributes:
        tool: The tool.
        value: The answer as JSON values, once it was given.
        problem: What was wrong with the newest that did not fit.
    """

    def __init__(self, schema: Any, taken: Collection[str]) -> None:
        self._name = str(getattr(schema, "__name__", schema))
        if TOOL_NAME in taken:
            raise ConfigurationError(f"a structured answer needs the name {TOOL_NAME!r}, and a tool has it; rename it")
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(schema)
            parameters = _at_the_top(self._adapter.json_schema())
        except Exception as error:
            raise ConfigurationError(f"structured_schema {self._name!r} has no JSON schema: {error}") from error
        if parameters.get("type") != "object":
            raise ConfigurationError(
                f"structured_schema {self._name!r} is no object in JSON; "
                "give a pydantic model, a dataclass or a TypedDict"
            )
        self.tool = Tool(self._give, name=TOOL_NAME, description=_DESCRIPTION, parameters=parameters)
        self.value: dict[str, Any] | None = None
        self.problem = "the model did not give it"

    def take_text(self, response: ModelResponse) -> ModelResponse:
        """The response with the answer that its text is.

        Raises:
            StructuredOutputError: It is none.
        """
        misfit = "the model wrote a text that does not fit"
        try:
            self._take(response.content, misfit)
        except StructuredOutputError:
            for block in _FENCED.findall(response.content):
                with suppress(StructuredOutputError):
                    self._take(block, misfit)
                    break
            else:
                raise
        return response.model_copy(update={"structured_output": self.value})

    def answer(self) -> ModelResponse:
        """The answer that was given by the tool; its text is that of the tool's call.

        Raises:
            StructuredOutputError: None that fits was given.
        """
        if self.value is None:
            raise StructuredOutputError(self._name, self.problem)
        return ModelResponse(content=json.dumps(self.value, ensure_ascii=False), structured_output=self.value)

    def cut_off(self, response: ModelResponse) -> StructuredOutputError:
        """The error that an ask ends with if the response that should be the answer was cut off."""
        return StructuredOutputError(
            self._name,
            f"the model's answer was cut off ({response.finish_reason}); allow more output tokens, or ask for less",
        )

    async def _give(self, **fields: Any) -> str:
        try:
            self._take(json.dumps(fields), "what the model gave does not fit")
        except StructuredOutputError as error:
            self.problem = error.problem
            raise ToolError(TOOL_NAME, f"is not content: {error.problem}") from error
        return "Accepted."

    def _take(self, text: str, misfit: str) -> None:
        try:
            self.value = self._adapter.dump_python(self._adapter.validate_json(text), mode="json")
        except ValidationError as error:
            raise StructuredOutputError(self._name, f"{misfit}: {said_of(error)}") from error
        except Exception as error:  # a validator of the type's own may raise anything
            raise StructuredOutputError(self._name, f"{misfit}: {type(error).__name__}") from error


def _at_the_top(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type that contains itself, with its own keys at the top, where providers look for them."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema
