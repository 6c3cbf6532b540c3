"""Models that need no network: they say what they were told to say, and write down what they were given."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from agents import Model, ModelProvider, ModelResponse, Usage, generation_span
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from recount import Read, count, prompt_tokens

from otel_assembly.tokens import MessageFraming

ASSEMBLY = "assemble_context"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


#: What brings the SDK's own traces to OpenTelemetry, where it is installed.
BRIDGES = [name for name in ("openinference", "opentelemetry") if _is_there(f"{name}.instrumentation.openai_agents")]


@dataclass
class Received:
    """What one call of a model was given, as it was then."""

    instructions: str | None
    items: list[Any]
    schemas: list[dict[str, Any]]
    model: str
    #: Whether the provider holds what was said before.
    continued: bool = False

    @property
    def prompts(self) -> list[str]:
        return [self.instructions] if self.instructions else []

    @property
    def events(self) -> list[Read]:
        return [read(item) for item in self.items]

    @property
    def tokens(self) -> int:
        """What all of it takes, counted anew."""
        tools = MessageFraming().tool_schemas(self.schemas, count) if self.schemas else 0
        return prompt_tokens(self.prompts, self.events, tools)

    @property
    def said(self) -> Any:
        """What can be compared between two runs."""
        return self.model, self.instructions, self.items, self.schemas


def read(item: Any) -> Read:
    """An item as a person would read it: what of it the provider is sent, and nothing else."""
    item = item if isinstance(item, dict) else item.model_dump()
    kind = item.get("type", "message")
    if kind == "function_call":
        return Read("response", [item["name"], item["arguments"]], opens=[item["call_id"]])
    if kind == "function_call_output":
        output = item["output"]
        said = [output] if isinstance(output, str) else [part["text"] for part in output if "text" in part]
        return Read("result", said, closes=[item["call_id"]])
    if kind == "reasoning":
        return Read("response", [part["text"] for part in item["summary"]])
    if kind == "compaction":
        return Read("summary", ["x" * 0])
    content = item["content"]
    said = [content] if isinstance(content, str) else [part["text"] for part in content]
    return Read({"user": "request", "assistant": "response"}.get(item["role"], "system"), said)


def schema(tool: Any) -> dict[str, Any]:
    """A tool, or a handoff, as its provider is told of it."""
    if hasattr(tool, "tool_name"):
        name, description, parameters = tool.tool_name, tool.tool_description, tool.input_json_schema
    else:
        name, description, parameters = tool.name, tool.description, tool.params_json_schema
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


@dataclass
class Stage:
    """What the models of one program were given, in order; a summariser's calls apart."""

    received: list[Received] = field(default_factory=list)
    summaries: list[Received] = field(default_factory=list)
    #: How many runs of an agent are no part of another one.
    runs: int = 1


class ScriptedModel(Model):
    """Says its lines one after the other, then the last one again.

    A line is a text; a tool's name behind ``call:``, with its arguments; a list of tool calls, made at once; an
    exception, which is raised; or what makes one of these of the items.
    """

    def __init__(self, stage: Stage, *lines: Any, name: str = "gpt-4o", summarises: bool = False) -> None:
        self.stage, self.lines, self.model, self.summarises = stage, list(lines), name, summarises
        self.calls = 0

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any,  # noqa: A002  # as it is named
        output_schema: Any, handoffs: Any, tracing: Any, **held: Any,
    ) -> ModelResponse:  # fmt: skip
        with generation_span(model=self.model, disabled=tracing.is_disabled()):
            output = self._answer(system_instructions, input, [*tools, *handoffs], held)
        self.calls += 1
        return ModelResponse(output=output, usage=Usage(requests=1, input_tokens=10, output_tokens=2),
                             response_id=f"resp_{self.model}_{self.calls}")  # fmt: skip

    async def stream_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any,  # noqa: A002  # as it is named
        output_schema: Any, handoffs: Any, tracing: Any, **held: Any,
    ) -> Any:  # fmt: skip
        with generation_span(model=self.model, disabled=tracing.is_disabled()):
            output = self._answer(system_instructions, input, [*tools, *handoffs], held)
        self.calls += 1
        usage = ResponseUsage(
            input_tokens=10, output_tokens=2, total_tokens=12,
            input_tokens_details=InputTokensDetails.model_construct(cached_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )  # fmt: skip
        response = Response(
            id=f"resp_{self.model}_{self.calls}", created_at=0, model=self.model, object="response", output=output,
            tool_choice="auto", tools=[], parallel_tool_calls=True, usage=usage,
        )  # fmt: skip
        yield ResponseCompletedEvent(response=response, type="response.completed", sequence_number=0)

    def _answer(self, instructions: Any, given: Any, tools: list[Any], held: Any) -> list[Any]:
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        schemas = [schema(tool) for tool in tools]
        continued = bool(held.get("previous_response_id") or held.get("conversation_id"))
        written = self.stage.summaries if self.summarises else self.stage.received
        written.append(Received(instructions, deepcopy(items), deepcopy(schemas), self.model, continued))
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        if callable(line):
            line = line(items)
        if isinstance(line, Exception):
            raise line
        return [self._part(message) for message in (line if isinstance(line, list) else [line])]

    def _part(self, line: str) -> Any:
        place = len(self.stage.received) * 10 + self.calls
        if not line.startswith("call:"):
            text = ResponseOutputText(annotations=[], text=line, type="output_text", logprobs=[])
            return ResponseOutputMessage(id=f"msg_{self.model}_{place}", content=[text], role="assistant",
                                         status="completed", type="message")  # fmt: skip
        self.calls += 1
        name, _, arguments = line.removeprefix("call:").partition(" ")
        return ResponseFunctionToolCall(
            id=f"fc_{self.model}_{place}_{self.calls}", call_id=f"call_{self.model}_{place}_{self.calls}", name=name,
            arguments=arguments or "{}", type="function_call",
        )  # fmt: skip


class ScriptedProvider(ModelProvider):
    """Gives the models of a program by their names."""

    def __init__(self, **models: Model) -> None:
        self.models = models

    def get_model(self, model_name: str | None) -> Model:
        return self.models[model_name or "default"]


def words(count_of: int, word: str = "word") -> str:
    """A text of so many words."""
    return " ".join(f"{word}{number}" for number in range(count_of))


def history(turns: int) -> list[Any]:
    """What was said so far, as a program that keeps it itself has it."""
    found: list[Any] = []
    for turn in range(turns):
        found += [
            {"role": "user", "content": f"question {turn}: {words(5)}"},
            {"role": "assistant", "content": f"answer {turn}: {words(5)}"},
        ]
    return found


def arguments(**given: Any) -> str:
    return json.dumps(given)


def assert_told(telemetry: Any, received: list[Received]) -> list[Any]:
    """Each call has its assembly, in order, which says what the client was given; others were never sent."""
    assemblies = [span for span in telemetry.spans_named(ASSEMBLY) if span.attributes.get("error.type") is None]
    assemblies.sort(key=lambda span: span.end_ns)
    told = [(span.attributes["assembly.events.out"], span.attributes["assembly.tokens.out"]) for span in assemblies]
    assert told == [(len(message.events), message.tokens) for message in received]
    for span, request in zip(assemblies, received, strict=True):
        assert span.attributes["assembly.prompts.out"] == len(request.prompts)
        assert span.attributes["assembly.model"] == request.model
        assert span.attributes.get("assembly.input.unknown") is (True if request.continued else None)
    return assemblies
