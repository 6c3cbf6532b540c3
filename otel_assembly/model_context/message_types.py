"""The types that a context's messages have: ours, or AutoGen's own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

from otel_assembly.messages.context_messages import NOTE_SOURCE, skip_note
from otel_assembly.model_context import messages


@dataclass(frozen=True, slots=True)
class MessageTypes:
    """The classes of one family of messages.

    Attributes:
        system: Of system messages.
        user: Of user messages.
        assistant: Of the model's answers.
        results: Of messages with the results of tool calls.
        result: Of one result.
        call: Of one tool call.
    """

    system: Any
    user: Any
    assistant: Any
    results: Any
    result: Any
    call: Any

    def note(self, skipped: int) -> Any:
        """What stands in the place of messages that were skipped."""
        return self.user(content=skip_note(skipped), source=NOTE_SOURCE)


#: Ours, which need no AutoGen.
OURS: Final = MessageTypes(
    messages.SystemMessage,
    messages.UserMessage,
    messages.AssistantMessage,
    messages.FunctionExecutionResultMessage,
    messages.FunctionExecutionResult,
    messages.FunctionCall,
)


def types_of(client: Any) -> MessageTypes:
    """The messages that a model's client counts: AutoGen's where the client is one of AutoGen's, else ours."""
    if any(one.__module__.partition(".")[0] == "autogen_core" for one in type(client).__mro__):
        return autogens(sys.modules["autogen_core.models"], sys.modules["autogen_core"])
    return OURS


def autogens(models: Any, core: Any) -> MessageTypes:
    """AutoGen's own.

    Args:
        models: The module ``autogen_core.models``.
        core: The module ``autogen_core``.
    """
    return MessageTypes(
        models.SystemMessage,
        models.UserMessage,
        models.AssistantMessage,
        models.FunctionExecutionResultMessage,
        models.FunctionExecutionResult,
        core.FunctionCall,
    )
