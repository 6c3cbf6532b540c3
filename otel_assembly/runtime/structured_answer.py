"""`StructuredAnswer`: a typed answer of an agent, and the tool through which the model returns the answer."""

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
    """The typed answer that `Agent.ask` returns if a ``structured_schema`` is given.

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
        problem: Why the latest answer was invalid.
    """

    def __init__(self, schema: Any, tool_names: Collection[str]) -> None:
        self._name = str(getattr(schema, "__name__", schema))
        if TOOL_NAME in tool_names:
            raise ConfigurationError(
                f"a structured answer needs the name {TOOL_NAME!r}, but a tool of the agent has it; rename this tool"
            )
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(schema)
            parameters = _with_object_at_top(self._adapter.json_schema())
        except Exception as error:
            raise ConfigurationError(f"structured_schema {self._name!r} has no JSON schema: {error}") from error
        if parameters.get("type") != "object":
            raise ConfigurationError(
                f"structured_schema {self._name!r} is not an object in JSON; "
                "give a pydantic model, a dataclass or a TypedDict"
            )
        self.tool = Tool(self._receive, name=TOOL_NAME, description=_DESCRIPTION, parameters=parameters)
        self.value: dict[str, Any] | None = None
        self.problem = "the model did not give it"

    def take_text(self, response: ModelResponse) -> ModelResponse:
        """Parse the answer in a response's text; return the response with the answer as `structured_output`.

        Raises:
            StructuredOutputError: The text contains no valid answer.
        """
        problem_prefix = "the model wrote a text that does not fit"
        try:
            self._validate(response.content, problem_prefix)
        except StructuredOutputError:
            for block in _FENCED.findall(response.content):
                with suppress(StructuredOutputError):
                    self._validate(block, problem_prefix)
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
        """Return the error to raise if the model's final response was truncated."""
        return StructuredOutputError(
            self._name,
            f"the model's answer was cut off ({response.finish_reason}); allow more output tokens, or ask for less",
        )

    async def _receive(self, **fields: Any) -> str:
        try:
            self._validate(json.dumps(fields), "what the model gave does not fit")
        except StructuredOutputError as error:
            self.problem = error.problem
            raise ToolError(TOOL_NAME, f"rejected the answer: {error.problem}") from error
        return "Accepted."

    def _validate(self, text: str, problem_prefix: str) -> None:
        try:
            self.value = self._adapter.dump_python(self._adapter.validate_json(text), mode="json")
        except ValidationError as error:
            raise StructuredOutputError(self._name, f"{problem_prefix}: {describe_validation_error(error)}") from error
        except Exception as error:  # validators of the user's type may raise any error
            raise StructuredOutputError(self._name, f"{problem_prefix}: {type(error).__name__}") from error


def _with_object_at_top(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace a ``$ref`` at the top of a schema by the object that it names, because providers require an object there.

    Pydantic writes such a ``$ref`` for recursive types.
    """
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema
