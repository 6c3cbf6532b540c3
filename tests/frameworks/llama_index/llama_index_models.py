"""Models that need no network: they say what they were told to say, and write down what they were given."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from recount import Read, count, prompt_tokens

from otel_assembly.tokens import MessageFraming

ASSEMBLY = "assemble_context"
SYSTEM = {MessageRole.SYSTEM, MessageRole.DEVELOPER}


@dataclass
class Received:
    """What one call of a model was given, as it was then."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""

    @property
    def texts(self) -> list[str]:
        return [text for message in self.messages for text in read(message).texts]

    def tokens(self, prompts: int) -> int:
        """What all of it takes, counted anew, where so many of the first messages are system prompts."""
        tools = MessageFraming().tool_schemas(self.tools, count) if self.tools else 0
        said = ["\n".join(read(message).texts) for message in self.messages[:prompts]]
        return prompt_tokens(said, [read(message) for message in self.messages[prompts:]], tools)

    @property
    def said(self) -> Any:
        """What can be compared between two runs."""
        return self.model, [(message.role.value, read(message).texts) for message in self.messages], self.tools


def read(message: ChatMessage) -> Read:
    """A message as a person would read it: what of it a provider is sent, and nothing else."""
    kinds = {"user": "request", "assistant": "response", "tool": "result", "system": "system", "developer": "system"}
    found = Read(kinds[message.role.value])
    for block in message.blocks:
        if isinstance(block, TextBlock) and block.text:
            found.texts.append(block.text)
        elif isinstance(block, ThinkingBlock) and block.content:
            found.texts.append(block.content)
        elif isinstance(block, ToolCallBlock):
            spelled = block.tool_kwargs if isinstance(block.tool_kwargs, str) else json.dumps(block.tool_kwargs)
            found.texts += [block.tool_name, spelled]
            found.opens += [block.tool_call_id] if block.tool_call_id else []
    if message.role is MessageRole.TOOL:
        found.closes.append(message.additional_kwargs["tool_call_id"])
    return found


@dataclass
class Stage:
    """What the models of one program were given, in order; a summariser's calls apart."""

    received: list[Received] = field(default_factory=list)
    summaries: list[Received] = field(default_factory=list)
    #: How many traces the program makes: of its runs, and of calls outside of any.
    runs: int = 1


class Scripted(FunctionCallingLLM):
    """Says its lines one after the other, then the last one again.

    A line is a text; a tool's name behind ``call:``; a list of tool calls, made at once; an exception, which is raised;
    or a function of the messages that returns one of them.
    """

    model: str = "gpt-4o"
    summarises: bool = False
    window: int = 128_000
    _stage: Stage = PrivateAttr()
    _lines: list[Any] = PrivateAttr()
    _calls: int = PrivateAttr(default=0)

    def __init__(self, stage: Stage, *lines: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self._stage, self._lines = stage, list(lines)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            model_name=self.model, is_chat_model=True, is_function_calling_model=True, context_window=self.window
        )

    def _line(self, messages: Any, tools: Any = ()) -> ChatMessage:
        written = self._stage.summaries if self.summarises else self._stage.received
        offered = [tool if isinstance(tool, dict) else tool.metadata.to_openai_tool() for tool in tools or ()]
        written.append(Received(deepcopy(list(messages)), offered, self.model))
        line = self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]
        if callable(line) and not isinstance(line, BaseException):
            line = line(messages)
        if isinstance(line, BaseException):
            raise line
        return ChatMessage(
            role="assistant", blocks=[self._block(message) for message in (line if isinstance(line, list) else [line])]
        )

    def _block(self, line: str) -> Any:
        if not line.startswith("call:"):
            return TextBlock(text=line)
        self._calls += 1
        name, _, arguments = line.removeprefix("call:").partition(" ")
        return ToolCallBlock(
            tool_call_id=f"{self.model}-{self._calls}", tool_name=name, tool_kwargs=json.loads(arguments or "{}")
        )

    @llm_chat_callback()
    def chat(self, messages: Any, tools: Any = (), **kwargs: Any) -> ChatResponse:
        return ChatResponse(message=self._line(messages, tools))

    @llm_chat_callback()
    async def achat(self, messages: Any, tools: Any = (), **kwargs: Any) -> ChatResponse:
        return ChatResponse(message=self._line(messages, tools))

    @llm_chat_callback()
    def stream_chat(self, messages: Any, tools: Any = (), **kwargs: Any) -> Any:
        answer = self._line(messages, tools)

        def stream() -> Any:
            yield ChatResponse(message=answer, delta=answer.content or "")

        return stream()

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, tools: Any = (), **kwargs: Any) -> Any:
        answer = self._line(messages, tools)

        async def stream() -> Any:
            yield ChatResponse(message=answer, delta=answer.content or "")

        return stream()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self._line([ChatMessage(role="user", content=prompt)]).content or "")

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self._line([ChatMessage(role="user", content=prompt)]).content or "")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        text = self._line([ChatMessage(role="user", content=prompt)]).content or ""

        def stream() -> Any:
            yield CompletionResponse(text=text, delta=text)

        return stream()

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        text = self._line([ChatMessage(role="user", content=prompt)]).content or ""

        async def stream() -> Any:
            yield CompletionResponse(text=text, delta=text)

        return stream()

    def _prepare_chat_with_tools(
        self, tools: Any, user_msg: Any = None, chat_history: Any = None, tool_required: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        messages = [*(chat_history or [])]
        if user_msg is not None:
            messages.append(ChatMessage(role="user", content=user_msg) if isinstance(user_msg, str) else user_msg)
        return {"messages": messages, "tools": [tool.metadata.to_openai_tool() for tool in tools or ()]}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        return [
            ToolSelection(tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock)
        ]


class Completing(CustomLLM):
    """A model that only completes a text; what it is given is what its class is asked with."""

    model: str = "gpt-4o"
    _stage: Stage = PrivateAttr()
    _lines: list[Any] = PrivateAttr()

    def __init__(self, stage: Stage, *lines: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self._stage, self._lines = stage, list(lines)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name=self.model)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._stage.received.append(Received([ChatMessage(role="user", content=prompt)], [], self.model))
        return CompletionResponse(text=self._lines.pop(0) if len(self._lines) > 1 else self._lines[0])

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        answer = self.complete(prompt, formatted=formatted).text

        def stream() -> Any:
            yield CompletionResponse(text=answer, delta=answer)

        return stream()


def words(count_of: int, word: str = "word") -> str:
    """A text of so many words."""
    return " ".join(f"{word}{number}" for number in range(count_of))


def history(turns: int) -> list[ChatMessage]:
    """What was said so far, as a program that keeps it itself has it."""
    return [
        ChatMessage(role=role, content=f"{said} {turn}: {words(5)}")
        for turn in range(turns)
        for role, said in (("user", "question"), ("assistant", "answer"))
    ]


def assert_told(telemetry: Any, received: list[Received]) -> list[Any]:
    """Each call has its assembly, in order, which says what the client was given; others were never sent."""
    sent = {None, "context_overflow"}  # a limit that did not hold stops no call
    assemblies = [
        span
        for span in telemetry.spans_named(ASSEMBLY)
        if span.attributes.get("error.type") in sent and "assembly.name" not in span.attributes
    ]
    assemblies.sort(key=lambda span: span.end_ns)
    assert len(assemblies) == len(received)
    for span, request in zip(assemblies, received, strict=True):
        told = span.attributes
        prompts = told["assembly.prompts.out"]
        assert told["assembly.events.out"] + prompts == len(request.messages)
        assert told["assembly.tokens.out"] == request.tokens(prompts)
        assert all(message.role in SYSTEM for message in request.messages[:prompts])
        assert told["assembly.model"] == request.model
        assert not told.get("assembly.input.unknown")
    return assemblies
