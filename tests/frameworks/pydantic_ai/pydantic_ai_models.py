"""Models that need no network: they say what they were told to say, and write down what they were given."""

from __future__ import annotations

from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count as count_up
from typing import Any

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.usage import RequestUsage
from recount import Read, count, prompt_tokens

from otel_assembly.tokens import MessageFraming

#: The time of each streamed answer is another one.
TIMES = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second) for second in count_up())
ASSEMBLY = "assemble_context"


@dataclass
class Received:
    """What one call of a model was given, as it was then; its parameters as `Model.prepare_request` completes them."""

    messages: list[Any]
    parameters: Any
    model: str = ""

    @property
    def prompts(self) -> list[str]:
        """The system prompts in front, and the instructions."""
        found = []
        for message in self.messages:
            parts = list(message.parts)
            while parts and parts[0].part_kind == "system-prompt":
                found.append(parts.pop(0).content)
            if parts:
                break
        instructions = [part.content for part in self.parameters.instruction_parts or ()]
        return [*found, *(["\n\n".join(instructions).strip()] if instructions else [])]

    @property
    def events(self) -> list[Read]:
        """The messages behind the system prompts in front."""
        found, in_front = [], True
        for message in self.messages:
            parts = list(message.parts)
            while in_front and parts and parts[0].part_kind == "system-prompt":
                parts.pop(0)
            if parts or not in_front:
                in_front = False
                found.append(read(message, parts))
        return found

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the model may call, as its provider is told of it."""
        outputs = self.parameters.output_tools if self.parameters.output_mode == "tool" else []
        return [
            {
                "type": "function",
                "function": {
                    "name": t.name,
                    "description": t.description or "",
                    "parameters": t.parameters_json_schema,
                },
            }
            for t in (*self.parameters.function_tools, *outputs)
        ]

    @property
    def tokens(self) -> int:
        """What all of it takes, counted anew."""
        tools = MessageFraming().tool_schemas(self.tools, count) if self.tools else 0
        return prompt_tokens(self.prompts, self.events, tools)

    @property
    def said(self) -> Any:
        """What can be compared between two runs."""
        return self.model, self.prompts, [(event.kind, event.texts) for event in self.events], self.tools


def read(message: Any, parts: list[Any]) -> Read:
    """A message as a person would read it: what of it the provider is sent, and nothing else."""
    found = Read("response" if isinstance(message, ModelResponse) else "request")
    for part in parts:
        if part.part_kind == "tool-call":
            found.texts += [part.tool_name, part.args_as_json_str()]
            found.opens.append(part.tool_call_id)
        elif part.part_kind == "tool-return" or (part.part_kind == "retry-prompt" and part.tool_name):
            said = getattr(part, "model_response_str", None) or part.model_response
            found.texts.append(said())
            found.closes.append(part.tool_call_id)
        elif part.part_kind in {"retry-prompt", "retry-feedback"}:
            found.texts.append(part.model_response())
        elif isinstance(part.content, str):
            found.texts.append(part.content)
        else:
            found.texts += [message if isinstance(message, str) else message.content for message in part.content]
    return found


@dataclass
class Stage:
    """What the models of one program were given, in order; a summariser's calls apart."""

    received: list[Received] = field(default_factory=list)
    summaries: list[Received] = field(default_factory=list)
    #: How many runs of an agent are no part of another one.
    runs: int = 1


class ScriptedModel(Model):
    """Says its lines one after the other, then the last one again.

    A line is a text; a tool's name behind ``call:``; a list of tool calls, made at once; an exception, which is raised;
    or a response.
    """

    def __init__(self, stage: Stage, *lines: Any, name: str = "gpt-4o", summarises: bool = False) -> None:
        super().__init__()
        self.stage, self.lines, self.name, self.summarises = stage, list(lines), name, summarises
        self.calls = 0

    @property
    def model_name(self) -> str:
        return self.name

    @property
    def system(self) -> str:
        return "scripted"

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        return self._answer(messages, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> Any:
        yield ScriptedStream(model_request_parameters, self._answer(messages, model_request_parameters))

    def _answer(self, messages: Any, parameters: Any) -> ModelResponse:
        _, parameters = self.prepare_request(None, parameters)
        written = self.stage.summaries if self.summarises else self.stage.received
        written.append(Received(deepcopy(list(messages)), deepcopy(parameters), self.name))
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        if callable(line):
            line = line(messages)
        if isinstance(line, Exception):
            raise line
        if isinstance(line, ModelResponse):
            return line
        parts = [self._part(message) for message in (line if isinstance(line, list) else [line])]
        return ModelResponse(parts, usage=RequestUsage(input_tokens=10, output_tokens=2), model_name=self.name)

    def _part(self, line: str) -> Any:
        if not line.startswith("call:"):
            return TextPart(line)
        self.calls += 1
        name, _, arguments = line.removeprefix("call:").partition(" ")
        return ToolCallPart(name, arguments or "{}", f"{self.name}-{self.calls}")


class ScriptedStream(StreamedResponse):
    """The answer, part by part."""

    def __init__(self, parameters: Any, answer: ModelResponse) -> None:
        super().__init__(parameters)
        self.answer = answer
        self._usage = answer.usage
        self._timestamp = next(TIMES)

    async def _get_event_iterator(self) -> Any:
        for place, part in enumerate(self.answer.parts):
            yield self._parts_manager.handle_part(vendor_part_id=place, part=part)

    async def close_stream(self) -> None:
        pass

    @property
    def model_name(self) -> str:
        return self.answer.model_name or ""

    @property
    def provider_name(self) -> None:
        return None

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._timestamp


def words(count_of: int, word: str = "word") -> str:
    """A text of so many words."""
    return " ".join(f"{word}{number}" for number in range(count_of))


def history(turns: int) -> list[Any]:
    """What was said so far, as a program that keeps it itself has it."""
    found: list[Any] = []
    for turn in range(turns):
        found += [
            ModelRequest.user_text_prompt(f"question {turn}: {words(5)}"),
            ModelResponse([TextPart(f"answer {turn}: {words(5)}")], model_name="gpt-4o"),
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
