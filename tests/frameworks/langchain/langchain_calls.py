"""Chat models that write down what their client receives, and what must be told of each call."""

from __future__ import annotations

import json
import time
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr
from recount import Read, prompt_tokens, read

from otel_assembly.tokens import MessageFraming

ASSEMBLY = "assemble_context"
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


@dataclass
class Received:
    """What a client was given in one call."""

    model: str
    messages: list[Any]
    tools: list[dict[str, Any]]
    at_ns: int

    @property
    def leading(self) -> int:
        """How many system messages stand in front."""
        return next((at for at, message in enumerate(self.messages) if message.type != "system"), len(self.messages))

    @property
    def tokens(self) -> int:
        """The whole prompt, counted anew from what was received."""
        names = sum(
            1 + prompt_tokens([message.name], []) - prompt_tokens([], []) - 4
            for message in self.messages
            if _named(message)
        )
        tools = MessageFraming().tool_schemas(self.tools, _count) if self.tools else 0
        return prompt_tokens([], [*map(_as_dict, self.messages)], tools) + names

    @property
    def plain(self) -> Any:
        """What was said, without ids that are made anew in each run."""
        return self.model, [
            (message.type, message.text, len(getattr(message, "tool_calls", ()))) for message in self.messages
        ]


def _count(text: str) -> int:
    return prompt_tokens([text], []) - prompt_tokens([""], [])


def _named(message: Any) -> bool:
    return bool(message.name) and message.type != "tool"


def as_read(message: Any) -> Read:
    """A message as a person would read it."""
    return read(_as_dict(message))


def _as_dict(message: Any) -> dict[str, Any]:
    held = {"role": _ROLES[message.type.removesuffix("MessageChunk").lower()], "content": message.text}
    if message.type == "tool":
        held["tool_call_id"] = message.tool_call_id
    calls = getattr(message, "tool_calls", None)
    if calls:
        held["tool_calls"] = [
            {"id": call["id"], "function": {"name": call["name"], "arguments": json.dumps(call["args"])}}
            for call in calls
        ]
    return held


class Client(BaseChatModel):
    """Answers with one message after the other; one that is an exception is raised. All calls stand in `log`."""

    model_name: str = "gpt-4o"
    _answers: list[Any] = PrivateAttr(default_factory=list)
    _log: list[Any] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **settings)

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **settings: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages, settings))])

    def _answer(self, messages: list[Any], settings: Any) -> AIMessage:
        held = deepcopy(messages), deepcopy(settings.get("tools") or [])
        self._log.append(Received(self.model_name, *held, time.time_ns()))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return AIMessage(answer) if isinstance(answer, str) else answer.model_copy()


class Streaming(Client):
    """The same, word by word."""

    def _stream(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **settings: Any) -> Any:
        answer = self._answer(messages, settings)
        calls = [{**call, "args": json.dumps(call["args"]), "index": 0} for call in answer.tool_calls]
        words = answer.text.split(" ") if answer.text else []
        for word in words:
            chunk = ChatGenerationChunk(message=AIMessageChunk(f"{word} "))
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
        if calls:
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls))


def client(log: list[Any], *answers: Any, of: type[Client] = Client, name: str = "gpt-4o", **settings: Any) -> Client:
    """A model whose calls stand in `log`; the last answer is given again and again."""
    model = of(model_name=name, **settings)
    model._answers, model._log = list(answers or ["Done."]), log
    return model


def assert_every_call_is_told(telemetry: Any, log: list[Received]) -> list[Any]:
    """Each call has an assembly of its own, in order and before it, and that says what the client received."""
    spans = sorted((span for span in telemetry.spans_named(ASSEMBLY)), key=lambda span: span.end_ns)
    sent = [span for span in spans if "assembly.model" in span.attributes]  # others are of reductions without a call
    assert [(span.attributes["assembly.model"], *_size(span)) for span in sent] == [
        (call.model, call.leading, len(call.messages) - call.leading) for call in log
    ], telemetry.tree()
    for span, call in zip(sent, log, strict=True):
        assert span.attributes["assembly.tokens.out"] == call.tokens
        assert span.start_ns <= span.end_ns <= call.at_ns
        assert "assembly.input.unknown" not in span.attributes

    return sent


def _size(span: Any) -> tuple[int, int]:
    return span.attributes["assembly.prompts.out"], span.attributes["assembly.events.out"]
