"""Equivalents of AutoGen's message classes, with the same JSON. AutoGen is not required."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from otel_assembly.messages import MEDIA_TOKENS
from otel_assembly.messages.context_messages import register_messages


class Editable:
    """Base class of mutable messages; counts attribute assignments, so that contexts notice changed messages.

    Attributes:
        edits: The number of attribute assignments to all instances in this process. If it has changed, a context
            reads its messages again.
    """

    edits: ClassVar[int] = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:  # not during construction
            Editable.edits += 1
        super().__setattr__(name, value)


@dataclass
class FunctionCall(Editable):
    """A tool call that the model requests (as in AutoGen).

    Attributes:
        id: The call's id.
        arguments: The arguments, as JSON text.
        name: The tool's name.
    """

    id: str
    arguments: str
    name: str


class Image(BaseModel):
    """An image in a message, in the form of AutoGen's saved state. Unknown fields are preserved.

    Attributes:
        data: The image, in base64.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    data: str


class SystemMessage(Editable, BaseModel):
    """A message with instructions for the model.

    Attributes:
        content: The text.
        type: The type of message in JSON.
    """

    content: str
    type: Literal["SystemMessage"] = "SystemMessage"


class UserMessage(Editable, BaseModel):
    """A message of a user, another agent or the application.

    Attributes:
        content: The text, or a list of texts and images.
        source: The name of the sender.
        type: The type of message in JSON.
    """

    content: str | list[str | Image]
    source: str
    type: Literal["UserMessage"] = "UserMessage"


class AssistantMessage(Editable, BaseModel):
    """An answer of the model.

    Attributes:
        content: The text, or the tool calls.
        thought: The model's reasoning; None if there is none.
        source: The name of the agent.
        type: The type of message in JSON.
    """

    content: str | list[FunctionCall]
    thought: str | None = None
    source: str
    type: Literal["AssistantMessage"] = "AssistantMessage"


class FunctionExecutionResult(Editable, BaseModel):
    """The result of one tool call.

    Attributes:
        content: The result's text.
        name: The tool's name; empty in states that older AutoGen versions saved.
        call_id: The id of the `FunctionCall`.
        is_error: True if the tool failed; None if that is unknown.
    """

    content: str
    name: str = ""
    call_id: str
    is_error: bool | None = None


class FunctionExecutionResultMessage(Editable, BaseModel):
    """The results of the tool calls of one `AssistantMessage`, or of some of them.

    Attributes:
        content: The results.
        type: The type of message in JSON.
    """

    content: list[FunctionExecutionResult]
    type: Literal["FunctionExecutionResultMessage"] = "FunctionExecutionResultMessage"


#: Any message of a model context. ``type`` selects the class.
LLMMessage: TypeAlias = Annotated[
    SystemMessage | UserMessage | AssistantMessage | FunctionExecutionResultMessage, Field(discriminator="type")
]


class ChatCompletionContextState(BaseModel):
    """The saved state of a model context, as `save_state` returns it and `load_state` accepts it.

    Attributes:
        messages: All messages, the oldest first.
    """

    messages: list[LLMMessage] = Field(default_factory=list)


register_messages(SystemMessage, UserMessage, AssistantMessage, FunctionExecutionResultMessage, lambda _: MEDIA_TOKENS)
