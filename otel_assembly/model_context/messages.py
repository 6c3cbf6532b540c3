"""The messages of AutoGen's model contexts, their JSON, and how the engine reads them; AutoGen is not needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from otel_assembly.messages import MEDIA_TOKENS
from otel_assembly.messages.context_messages import register_messages


class Editable:
    """A message, or a part of one, whose attributes can be assigned, as those of AutoGen's can.

    Attributes:
        edits: How many assignments were made in this process. A context reads its messages again if it has changed.
    """

    edits: ClassVar[int] = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:  # not while the object is made
            Editable.edits += 1
        super().__setattr__(name, value)


@dataclass
class FunctionCall(Editable):
    """A tool call that the model asks for (as in AutoGen).

    Attributes:
        id: The call's id, which its result names.
        arguments: The arguments, as JSON text.
        name: The tool's name.
    """

    id: str
    arguments: str
    name: str


class Image(BaseModel):
    """An image as AutoGen's state holds it; what stands there is kept verbatim.

    Attributes:
        data: The image, in base64.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    data: str


class SystemMessage(Editable, BaseModel):
    """Instructions for the model.

    Attributes:
        content: The text.
        type: What tells it from other messages in JSON.
    """

    content: str
    type: Literal["SystemMessage"] = "SystemMessage"


class UserMessage(Editable, BaseModel):
    """What a user, another agent or the application says.

    Attributes:
        content: The text; or texts and images.
        source: Who says it.
        type: What tells it from other messages in JSON.
    """

    content: str | list[str | Image]
    source: str
    type: Literal["UserMessage"] = "UserMessage"


class AssistantMessage(Editable, BaseModel):
    """What the model answered.

    Attributes:
        content: The text, or the tool calls.
        thought: What it thought beside that.
        source: The agent that it answered for.
        type: What tells it from other messages in JSON.
    """

    content: str | list[FunctionCall]
    thought: str | None = None
    source: str
    type: Literal["AssistantMessage"] = "AssistantMessage"


class FunctionExecutionResult(Editable, BaseModel):
    """What one tool call gave.

    Attributes:
        content: The result's text.
        name: The tool's name; older states have none.
        call_id: The id of the `FunctionCall`.
        is_error: Whether the tool failed, where that is known.
    """

    content: str
    name: str = ""
    call_id: str
    is_error: bool | None = None


class FunctionExecutionResultMessage(Editable, BaseModel):
    """The results of the tool calls of one `AssistantMessage`, or of some of them.

    Attributes:
        content: The results; with none it answers nothing, and is an orphan.
        type: What tells it from other messages in JSON.
    """

    content: list[FunctionExecutionResult]
    type: Literal["FunctionExecutionResultMessage"] = "FunctionExecutionResultMessage"


#: Any message of a model context, told apart by its ``type``.
LLMMessage: TypeAlias = Annotated[
    SystemMessage | UserMessage | AssistantMessage | FunctionExecutionResultMessage, Field(discriminator="type")
]


class ChatCompletionContextState(BaseModel):
    """What `save_state` returns and `load_state` takes.

    Attributes:
        messages: All messages, the oldest first.
    """

    messages: list[LLMMessage] = Field(default_factory=list)


register_messages(SystemMessage, UserMessage, AssistantMessage, FunctionExecutionResultMessage, lambda _: MEDIA_TOKENS)
