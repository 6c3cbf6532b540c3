"""`StructuredAnswer`: a typed answer, and the tool by which the model returns it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from otel_assembly.errors import ConfigurationError, StructuredOutputError, ToolError
from otel_assembly.events import ModelResponse
from otel_assembly.runtime.tools import Tool, describe_validation_error

if TYPE_CHECKING:
    from collections.abc import Collection

#: The tool's name, the same as in AgentScope.
TOOL_NAME: Final = "GenerateStructuredOutput"
#: Matches the content of each fenced code block in a Markdown text; the last block may lack its end. JSON strings
#: contain no line breaks, so a fence inside a value never begins a line.
_FENCED: Final = re.compile(
    r"^[ \t]*(?:```|~~~)[^\n`]*\n(.*?)(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_DESCRIPTION: Final = (
    "Give your final answer in the form that is asked for. You must end with a call of this tool: once it is accepted, "
    "you are done. Call it when you have all that the answer needs."
)


class StructuredAnswer:
    """The typed answer of an ask with a ``structured_schema``.

    The model returns the answer by calling a tool whose arguments are the answer. This works with every model that
    supports tools. The tokens of the schema are counted with those of the other tools, and an invalid answer is
    returned to the model as a tool error. A text is also accepted if it is the answer as JSON, or contains it in a
    Markdown code block.

    Args:
        schema: A pydantic model, a dataclass or a ``TypedDict``: a type whose JSON schema is an object.
        tool_names: The names of the agent's own tools.

    Raises:
        ConfigurationError: The JSON schema is not an object, or an agent's tool has the name `TOOL_NAME`.

    Attributes:
        tool: The tool that accepts the answer.
        value: The answer as JSON values; None until a valid answer was given.
        problem: The problem of the latest invalid answer.
    """

    def __init__(self, schema: Any, tool_names: Collection[str]) -> None:
        self._name = str(getattr(schema, "__name__", schema))
        if TOOL_NAME in tool_names:
            raise ConfigurationError(f"a structured answer needs the name {TOOL_NAME!r}, and a tool has it; rename it")
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(schema)
            parameters = _at_the_top(self._adapter.json_schema())
        except Exception as error:
            raise ConfigurationError(f"structured_schema {self._name!r} has no JSON schema: {error}") from error
        if parameters.get("type") != "object":
            raise ConfigurationError(
                f"structured_schema {self._name!r} is not an object in JSON; "
                "give a pydantic model, a dataclass or a TypedDict"
            )
        self.tool = Tool(self._give, name=TOOL_NAME, description=_DESCRIPTION, parameters=parameters)
        self.value: dict[str, Any] | None = None
        self.problem = "the model did not give it"

    def take_text(self, response: ModelResponse) -> ModelResponse:
        """Return the response with the answer that its text contains.

        Raises:
            StructuredOutputError: The text contains no valid answer.
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
        """Return the answer that the tool accepted, as JSON text and as values.

        Raises:
            StructuredOutputError: No valid answer was given.
        """
        if self.value is None:
            raise StructuredOutputError(self._name, self.problem)
        return ModelResponse(content=json.dumps(self.value, ensure_ascii=False), structured_output=self.value)

    def cut_off(self, response: ModelResponse) -> StructuredOutputError:
        """Return the error of an ask whose final response was cut off."""
        return StructuredOutputError(
            self._name,
            f"the model's answer was cut off ({response.finish_reason}); allow more output tokens, or ask for less",
        )

    async def _give(self, **fields: Any) -> str:
        try:
            self._take(json.dumps(fields), "what the model gave does not fit")
        except StructuredOutputError as error:
            self.problem = error.problem
            raise ToolError(TOOL_NAME, f"rejected the answer: {error.problem}") from error
        return "Accepted."

    def _take(self, text: str, misfit: str) -> None:
        try:
            self.value = self._adapter.dump_python(self._adapter.validate_json(text), mode="json")
        except ValidationError as error:
            raise StructuredOutputError(self._name, f"{misfit}: {describe_validation_error(error)}") from error
        except Exception as error:  # validators of the user's type may raise any error
            raise StructuredOutputError(self._name, f"{misfit}: {type(error).__name__}") from error


def _at_the_top(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a recursive type's schema with the keys of the type at the top level, as providers require."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema
