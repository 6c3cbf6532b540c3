"""Generators that need no network: they say what they were told to say, and write down what they were given."""

from __future__ import annotations

import json
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from haystack import component
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.tracing import Span, Tracer
from haystack.tracing.utils import coerce_tag_value
from opentelemetry import trace
from recount import Read, count, prompt_tokens

from otel_assembly.tokens import MessageFraming

if TYPE_CHECKING:
    from collections.abc import Iterator

ASSEMBLY = "assemble_context"


@dataclass
class Received:
    """What one call of a generator was given, as it was then."""

    messages: list[Any]
    tools: list[dict[str, Any]]
    model: str = ""

    @property
    def _split(self) -> int:
        return next(
            (at for at, message in enumerate(self.messages) if message.role.value != "system"), len(self.messages)
        )

    @property
    def prompts(self) -> list[str]:
        """The system prompts in front."""
        return [message.text for message in self.messages[: self._split]]

    @property
    def events(self) -> list[Read]:
        """The messages behind them."""
        return [read(message) for message in self.messages[self._split :]]

    @property
    def tokens(self) -> int:
        """What all of it takes, counted anew."""
        tools = MessageFraming().tool_schemas(self.tools, count) if self.tools else 0
        return prompt_tokens(self.prompts, self.events, tools)

    @property
    def said(self) -> Any:
        """What can be compared between two runs."""
        return self.model, self.prompts, [(event.kind, event.texts) for event in self.events], self.tools


def read(message: ChatMessage) -> Read:
    """A message as a person would read it."""
    found = Read("response" if message.role.value == "assistant" else "request", name=message.name or "")
    for part in message._content:
        if hasattr(part, "tool_name"):
            found.texts += [part.tool_name, json.dumps(part.arguments, ensure_ascii=False)]
            if part.id is not None:
                found.opens.append(part.id)
        elif hasattr(part, "origin"):
            said = [part.result] if isinstance(part.result, str) else [message.text for message in part.result]
            found.texts += said
            if part.origin.id is not None:
                found.closes.append(part.origin.id)
        else:
            found.texts.append(part.text if hasattr(part, "text") else part.reasoning_text)
    return found


@dataclass
class Stage:
    """What the models of one program were given, in order; a summariser's calls apart."""

    received: list[Received] = field(default_factory=list)
    summaries: list[Received] = field(default_factory=list)
    #: How many runs, of an agent or a pipeline, are no part of another one.
    runs: int = 1

    def __deepcopy__(self, memo: Any) -> Stage:
        return self  # a pipeline copies what goes in to its components


@component
class ScriptedGenerator:
    """Says its lines one after the other, then the last one again.

    A line is a text; a tool's name behind ``call:``; a list of tool calls, made at once; an exception, which is raised;
    a message; or a function of the messages that returns one of these.
    """

    def __init__(self, stage: Stage, *lines: Any, model: str = "gpt-4o", summarises: bool = False, tools: Any = None):
        self.stage, self.lines, self.model, self.summarises = stage, list(lines), model, summarises
        self.tools = tools
        self.calls = 0

    @component.output_types(replies=list[ChatMessage])
    def run(
        self, messages: list[ChatMessage], streaming_callback: Any = None, generation_kwargs: Any = None, *,
        tools: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        reply = self._answer(messages, tools or self.tools)
        if streaming_callback is not None:
            for word in (reply.text or "").split():
                streaming_callback(StreamingChunk(content=word))
        return {"replies": [reply]}

    def _answer(self, messages: Any, tools: Any) -> ChatMessage:
        written = self.stage.summaries if self.summarises else self.stage.received
        offered = [tool for message in tools or () for tool in (message if hasattr(message, "tools") else [message])]
        written.append(Received(deepcopy(list(messages)), [described(tool) for tool in offered], self.model))
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        if callable(line):
            line = line(messages)
        if isinstance(line, BaseException):
            raise line
        if isinstance(line, ChatMessage):
            return line
        lines = line if isinstance(line, list) else [line]
        said = " ".join(line for line in lines if not line.startswith("call:"))
        calls = [self._call(line) for line in lines if line.startswith("call:")]
        meta = {"model": self.model, "finish_reason": "tool_calls" if calls else "stop"}
        return ChatMessage.from_assistant(said or None, tool_calls=calls, meta=meta)

    def _call(self, line: str) -> ToolCall:
        self.calls += 1
        name, _, arguments = line.removeprefix("call:").partition(" ")
        return ToolCall(name, json.loads(arguments or "{}"), f"{self.model}-{self.calls}")


@component
class AwaitedGenerator(ScriptedGenerator):
    """One that can be awaited as well."""

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self, messages: list[ChatMessage], streaming_callback: Any = None, generation_kwargs: Any = None, *,
        tools: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        reply = self._answer(messages, tools or self.tools)
        if streaming_callback is not None:
            for word in (reply.text or "").split():
                await streaming_callback(StreamingChunk(content=word))
        return {"replies": [reply]}


class OwnSpan(Span):
    """A span of Haystack's that is one of OpenTelemetry's."""

    def __init__(self, span: Any):
        self.span = span

    def set_tag(self, key: str, value: Any) -> None:
        self.span.set_attribute(key, coerce_tag_value(value))


class OwnTracer(Tracer):
    """Haystack's own telemetry, to OpenTelemetry, as its integration has it."""

    def __init__(self, telemetry: Any):
        self.tracer = telemetry.tracer_provider.get_tracer("haystack")

    @contextmanager
    def trace(self, operation_name: str, tags: Any = None, parent_span: Any = None) -> Iterator[Span]:
        with self.tracer.start_as_current_span(operation_name) as span:
            made = OwnSpan(span)
            made.set_tags(tags or {})
            yield made

    def current_span(self) -> Span | None:
        return OwnSpan(trace.get_current_span())


def described(tool: Any) -> dict[str, Any]:
    """A tool, as a provider is told of it."""
    held = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": held}


def words(count_of: int, word: str = "word") -> str:
    """A text of so many words."""
    return " ".join(f"{word}{number}" for number in range(count_of))


def history(turns: int) -> list[ChatMessage]:
    """What was said so far, as a program that keeps it itself has it."""
    found: list[ChatMessage] = []
    for turn in range(turns):
        found += [
            ChatMessage.from_user(f"question {turn}: {words(5)}"),
            ChatMessage.from_assistant(f"answer {turn}: {words(5)}"),
        ]
    return found


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
