"""A chat client that answers from a script and writes down what it is sent, and an independent reading of that."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
)
from agent_framework.observability import ChatTelemetryLayer
from recount import Read, count, prompt_tokens

from otel_assembly.tokens import MessageFraming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODEL = "gpt-4o"


@dataclass
class Received:
    """One call, as the client got it."""

    messages: list[Message]
    instructions: str | None
    tools: list[dict[str, Any]]
    stream: bool

    @property
    def tokens(self) -> int:
        """What it costs, worked out anew."""
        tools = MessageFraming().tool_schemas(self.tools, count) if self.tools else 0
        prompts = [self.instructions] if self.instructions else []
        return prompt_tokens(prompts, list(map(read, self.messages)), tools)

    @property
    def said(self) -> list[str]:
        return list(map(said, self.messages))


def read(message: Message) -> Read:
    """A message as a person would read it."""
    texts, opens, closes = [], [], []
    for part in message.contents:
        if part.type == "function_call":
            opens.append(part.call_id)
            texts += [part.name, spelled(part.arguments)]
        elif part.type == "function_result":
            closes.append(part.call_id)
            texts.append(part.result)
        elif part.type == "text":
            texts.append(part.text)
        else:
            raise AssertionError(f"no test reads {part.type}")
    kind = {"system": "system", "user": "request", "tool": "result"}.get(message.role, "response")
    name = message.author_name or "" if message.role != "tool" else ""
    return Read(kind, texts, name=name, opens=opens, closes=closes)


def spelled(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def said(message: Message) -> str:
    """In short: its text, or what it calls and answers."""
    calls = [f"call {c.call_id}" for c in message.contents if c.type == "function_call"]
    results = [f"result {c.call_id}" for c in message.contents if c.type == "function_result"]
    return " ".join(filter(None, [message.text, *calls, *results]))


class Script:
    """What a model answers, one after the other, and what it was sent, which goes into a log that clients may share."""

    model = MODEL

    def __init__(self, *answers: Any, log: list[Received] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.answers = list(answers)
        self.received: list[Received] = [] if log is None else log

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        tools = [tool.to_json_schema_spec() for tool in options.get("tools") or ()]
        self.received.append(
            Received(copy.deepcopy(list(messages)), options.get("instructions"), copy.deepcopy(tools), stream)
        )
        answer = self.answers.pop(0) if self.answers else "understood"
        answer = answer if isinstance(answer, Message | BaseException) else Message("assistant", [answer])
        if stream:
            return self._build_response_stream(_streamed(answer), response_format=options.get("response_format"))
        return _answered(answer, options.get("response_format"))


async def _answered(answer: Message | BaseException, response_format: Any) -> ChatResponse:
    await asyncio.sleep(0)
    if isinstance(answer, BaseException):
        raise answer
    return ChatResponse(messages=[answer], model=MODEL, response_format=response_format)


async def _streamed(answer: Message | BaseException) -> AsyncIterator[ChatResponseUpdate]:
    await asyncio.sleep(0)
    if isinstance(answer, BaseException):
        raise answer
    for part in answer.contents:
        words = [Content.from_text(f"{word} ") for word in part.text.split()] if part.type == "text" else [part]
        for message in words:
            yield ChatResponseUpdate(contents=[message], role="assistant", message_id=answer.message_id)


class ScriptedClient(Script, FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):
    """With every layer, as the framework's own clients are."""


class BareClient(Script, BaseChatClient):
    """With none of them."""


def calling(*ids: str, name: str = "weather", **arguments: Any) -> Message:
    """An answer that calls a tool, once for each id."""
    given = json.dumps(arguments or {"city": "Bonn"})
    return Message("assistant", [Content.from_function_call(item_id, name, arguments=given) for item_id in ids])


def weather(city: str) -> str:
    """The weather in a city."""
    return f"it rains in {city}, and it will go on to rain in {city} for the whole of the week"


async def streamed(agent: Any, *given: Any, **settings: Any) -> str:
    """What a run says that is read as a stream."""
    parts = [update.text async for update in agent.run(*given, stream=True, **settings)]
    return "".join(parts)


def assert_told(telemetry: Any, received: list[Received]) -> list[Any]:
    """Every call has an assembly of its own, in their order, that says what was received.

    What was compacted when a run was over has one that no model is called with, and that has a name.
    """
    told = [span for span in telemetry.spans_named("assemble_context") if "assembly.name" not in span.attributes]
    told.sort(key=lambda span: span.end_ns)
    assert [span.attributes["assembly.events.out"] for span in told] == [len(request.messages) for request in received]
    assert [span.attributes["assembly.tokens.out"] for span in told] == [request.tokens for request in received]
    return told


def steps(assembly: Any) -> list[str]:
    """The names of its reductions."""
    return [child.attributes["assembly.policy.name"] for child in assembly.children if child.name.startswith("apply_")]
