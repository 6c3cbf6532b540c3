"""The message classes that a model context uses: AutoGen's own, or the equivalents of otel-assembly."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

from otel_assembly.messages.context_messages import NOTE_SOURCE, skip_note
from otel_assembly.model_context import messages


@dataclass(frozen=True, slots=True)
class MessageTypes:
    """A set of message classes.

    Attributes:
        system: The class of system messages.
        user: The class of user messages.
        assistant: The class of the model's answers.
        results: The class of messages with tool results.
        result: The class of one tool result.
        call: The class of one tool call.
    """

    system: Any
    user: Any
    assistant: Any
    results: Any
    result: Any
    call: Any

    def note(self, skipped: int) -> Any:
        """Return a user message that states how many messages were skipped at its place."""
        return self.user(content=skip_note(skipped), source=NOTE_SOURCE)


#: The classes of `otel_assembly.model_context.messages`, which do not require AutoGen.
OURS: Final = MessageTypes(
    messages.SystemMessage,
    messages.UserMessage,
    messages.AssistantMessage,
    messages.FunctionExecutionResultMessage,
    messages.FunctionExecutionResult,
    messages.FunctionCall,
)


def types_of(client: Any) -> MessageTypes:
    """Return the message classes that a model client accepts: AutoGen's if its class derives from AutoGen's base."""
    if any(base.__module__.partition(".")[0] == "autogen_core" for base in type(client).__mro__):
        return autogens(sys.modules["autogen_core.models"], sys.modules["autogen_core"])
    return OURS


def autogens(models: Any, core: Any) -> MessageTypes:
    """Return AutoGen's message classes.

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
