"""Services that need no network: they say what they were told to say, and write down what they were given."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from recount import Read, count, prompt_tokens
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.completion_usage import CompletionUsage
from semantic_kernel.connectors.ai.function_calling_utils import update_settings_from_function_call_configuration
from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
from semantic_kernel.connectors.ai.text_completion_client_base import TextCompletionClientBase
from semantic_kernel.contents import (
    AuthorRole,
    ChatHistory,
    ChatMessageContent,
    FunctionCallContent,
    StreamingChatMessageContent,
    StreamingTextContent,
    TextContent,
)

from otel_assembly.tokens import MessageFraming

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

ASSEMBLY = "assemble_context"
SYSTEM = {AuthorRole.SYSTEM, AuthorRole.DEVELOPER}


class Settings(PromptExecutionSettings):
    """What a service is asked with, as those of the providers are."""

    ai_model_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | None = None
    response_format: Any = None


@dataclass
class Received:
    """What one call of a model was given, as it was then."""

    messages: list[ChatMessageContent]
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = "gpt-4o"

    @property
    def _in_front(self) -> int:
        found = 0
        for message in self.messages:
            if message.role not in SYSTEM or "__summary__" in message.metadata:
                break
            found += 1
        return found

    @property
    def prompts(self) -> list[str]:
        """The system prompts in front."""
        return [message.content for message in self.messages[: self._in_front]]

    @property
    def events(self) -> list[Read]:
        """The messages behind them."""
        return list(map(read, self.messages[self._in_front :]))

    @property
    def tokens(self) -> int:
        """What all of it takes, counted anew."""
        tools = MessageFraming().tool_schemas(self.tools, count) if self.tools else 0
        return prompt_tokens(self.prompts, self.events, tools)

    @property
    def said(self) -> Any:
        """What can be compared between two runs."""
        return self.model, self.prompts, [(event.kind, event.name, event.texts) for event in self.events], self.tools


def read(message: ChatMessageContent) -> Read:
    """A message as a person would read it."""
    found = Read(str(message.role.value), name=message.name or "" if message.role is not AuthorRole.TOOL else "")
    for item in message.items:
        if item.content_type == "function_call":
            given = item.arguments
            found.texts += [item.name, given if isinstance(given, str) else json.dumps(given or {})]
            found.opens.append(item.id)
        elif item.content_type == "function_result":
            found.texts.append(str(item.result))
            found.closes.append(item.id)
        else:
            found.texts.append(item.text)
    return found


@dataclass
class Stage:
    """What the models of one program were given, in order; a summariser's calls apart."""

    received: list[Received] = field(default_factory=list)
    summaries: list[Received] = field(default_factory=list)
    #: How many runs are no part of another one.
    runs: int = 1


class ScriptedService(ChatCompletionClientBase):
    """Says its lines one after the other, then the last one again.

    A line is a text; a function's name behind ``call:``; a list of calls, made at once; an exception, which is raised;
    or a function of the messages that gives one of these.
    """

    SUPPORTS_FUNCTION_CALLING: ClassVar[bool] = True
    stage: Any = Field(default=None, exclude=True)
    lines: list[Any] = Field(default_factory=list, exclude=True)
    summarises: bool = False
    calls: int = 0

    def __init__(self, stage: Stage, *lines: Any, name: str = "gpt-4o", **more: Any) -> None:
        super().__init__(ai_model_id=name, lines=list(lines), **more)
        self.stage = stage

    def get_prompt_execution_settings_class(self) -> type[PromptExecutionSettings]:
        return Settings

    def _update_function_choice_settings_callback(self) -> Callable[..., None]:
        return update_settings_from_function_call_configuration

    def _reset_function_choice_settings(self, settings: Any) -> None:
        settings.tools = None

    async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> list[ChatMessageContent]:
        line = self._next(chat_history, settings)
        usage = CompletionUsage(prompt_tokens=10, completion_tokens=2)
        return [
            ChatMessageContent(
                role=AuthorRole.ASSISTANT,
                items=self._items(line),
                ai_model_id=self.ai_model_id,
                metadata={"usage": usage},
            )
        ]

    async def _inner_get_streaming_chat_message_contents(
        self, chat_history: Any, settings: Any, function_invoke_attempt: int = 0
    ) -> AsyncGenerator[list[StreamingChatMessageContent], Any]:
        for item in self._items(self._next(chat_history, settings)):
            parts = [item]
            if isinstance(item, TextContent):
                half = len(item.text) // 2
                parts = [
                    StreamingTextContent(choice_index=0, text=text) for text in (item.text[:half], item.text[half:])
                ]
            for part in parts:
                yield [
                    StreamingChatMessageContent(
                        role=AuthorRole.ASSISTANT,
                        choice_index=0,
                        items=[part],
                        ai_model_id=self.ai_model_id,
                        function_invoke_attempt=function_invoke_attempt,
                    )
                ]

    def _next(self, history: Any, settings: Any) -> Any:
        written = self.stage.summaries if self.summarises else self.stage.received
        model = getattr(settings, "ai_model_id", None) or self.ai_model_id
        written.append(Received(deepcopy(history.messages), deepcopy(settings.tools or []), model))
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        if callable(line):
            line = line(history.messages)
        if isinstance(line, Exception):
            raise line
        return line

    def _items(self, line: Any) -> list[Any]:
        return [self._item(message, at) for at, message in enumerate(line if isinstance(line, list) else [line])]

    def _item(self, line: Any, at: int) -> Any:
        if not isinstance(line, str) or not line.startswith("call:"):
            return TextContent(text=line) if isinstance(line, str) else line
        self.calls += 1
        name, _, arguments = line.removeprefix("call:").partition(" ")
        return FunctionCallContent(
            id=f"{self.ai_model_id}-{self.calls}", name=name, arguments=arguments or "{}", index=at
        )


class ScriptedTexts(TextCompletionClientBase):
    """A model that completes texts."""

    stage: Any = Field(default=None, exclude=True)

    def __init__(self, stage: Stage, name: str = "gpt-4o", **more: Any) -> None:
        super().__init__(ai_model_id=name, **more)
        self.stage = stage

    def _write(self, prompt: str) -> None:
        self.stage.received.append(Received([ChatMessageContent(role=AuthorRole.USER, content=prompt)]))

    async def _inner_get_text_contents(self, prompt: str, settings: Any) -> list[TextContent]:
        self._write(prompt)
        return [TextContent(text="And so on.")]

    async def _inner_get_streaming_text_contents(
        self, prompt: str, settings: Any
    ) -> AsyncGenerator[list[StreamingTextContent], Any]:
        self._write(prompt)
        for text in ("And ", "so on."):
            yield [StreamingTextContent(choice_index=0, text=text)]


def words(count_of: int, word: str = "word") -> str:
    """A text of so many words."""
    return " ".join(f"{word}{number}" for number in range(count_of))


def talk(history: ChatHistory, turns: int) -> ChatHistory:
    """What was said so far, put into a history."""
    for turn in range(turns):
        history.add_user_message(f"question {turn}: {words(5)}")
        history.add_assistant_message(f"answer {turn}: {words(5)}")
    return history


def assert_told(telemetry: Any, received: list[Received]) -> list[Any]:
    """Each call has its assembly, in order, which says what the client was given; others were never sent."""
    sent = {None, "context_overflow"}  # a limit that did not hold stops no call
    assemblies = [span for span in telemetry.spans_named(ASSEMBLY) if span.attributes.get("error.type") in sent]
    assemblies.sort(key=lambda span: span.end_ns)
    told = [(span.attributes["assembly.events.out"], span.attributes["assembly.tokens.out"]) for span in assemblies]
    assert told == [(len(message.events), message.tokens) for message in received]
    for span, request in zip(assemblies, received, strict=True):
        assert span.attributes["assembly.prompts.out"] == len(request.prompts)
        assert span.attributes["assembly.model"] == request.model
        assert not span.attributes.get("assembly.input.unknown")
    return assemblies
