"""Models that write down what they are sent, as it was then, and the comparison of that with what was told."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any, NamedTuple

from ag2_package import Model, events, part
from recount import Read, count, prompt_tokens

from otel_assembly.tokens import MessageFraming

ASSEMBLY = "assemble_context"
#: What an assembly that no model is called with is named by AG2's instrumentor.
UPKEEP = {"compaction", "aggregation"}
summary_type = part("compact").CompactionSummary
_MADE_UP = re.compile(r"\bagent_id: [0-9a-f]{32}\b")


def read(event: Any) -> Read:
    """An AG2 event as a person would read it; nothing in it is AG2's any more."""
    if isinstance(event, events.ModelRequest):
        return Read("request", _texts(event.parts))
    if isinstance(event, events.ModelResponse):
        calls = event.tool_calls.calls
        spoken = [event.message.content] if event.message is not None else []
        return Read("response", [*spoken, *_spelled(calls)], opens=[call.id for call in calls])
    if isinstance(event, events.ToolCallEvent):
        return Read("call", _spelled([event]), opens=[event.id], restates=True)
    if isinstance(event, events.ToolCallsEvent):
        return Read("call", _spelled(event.calls), opens=[call.id for call in event.calls], restates=True)
    if isinstance(event, events.ToolResultEvent):
        return Read("result", _texts(event.result.parts), closes=[event.parent_id], restates=True)
    if isinstance(event, events.ToolResultsEvent):
        said = [text for result in event.results for text in _texts(result.result.parts)]
        return Read("result", said, closes=[result.parent_id for result in event.results], restates=True)
    if isinstance(event, summary_type):
        return Read("summary", [f"[Summary of earlier conversation]\n{event.summary}"])
    return Read("aside")


def _spelled(calls: Any) -> list[str]:
    return [text for call in calls for text in (call.name, call.arguments)]


def _texts(parts: Any) -> list[str]:
    return [part.content if hasattr(part, "content") else json.dumps(part.data) for part in parts]


class Received(NamedTuple):
    """What a model's client was called with."""

    model: str
    prompts: list[str]
    events: list[Read]
    tools: list[dict[str, Any]]
    #: The span of the assembly that had ended last by then; None where nothing is told.
    assembly: str | None

    @property
    def tokens(self) -> int:
        return prompt_tokens(self.prompts, self.events, MessageFraming().tool_schemas(self.tools, count))

    @property
    def plain(self) -> str:
        """All of it, whatever the order in which tools that run at once are done, and whatever ids AG2 made up.

        Of networks 0.13 says in the prompt which agent it is, by an id that is another one in each run of a program.
        """
        said = (self.model, self.prompts, sorted((event.kind, event.texts) for event in self.events), self.tools)
        return _MADE_UP.sub("agent_id: …", str(said))


class Log:
    """What all models of a program were sent, in that order."""

    def __init__(self, telemetry=None) -> None:
        self.telemetry = telemetry
        self.calls: list[Received] = []
        #: How often a summariser was asked.
        self.summaries = 0

    def model(self, *turns: Any, name: str = "gpt-4o") -> Model:
        return _Scripted(self, *turns, model=name)

    def summariser(self, *turns: Any) -> Model:
        """A model of whose calls none has an assembly: each is an attempt to compact within another one."""
        return _Summariser(self, *turns)

    @property
    def assembled(self) -> str | None:
        spans = self.telemetry.spans_named(ASSEMBLY) if self.telemetry is not None else ()
        return max(spans, key=lambda span: span.end_ns).span_id if spans else None


class _Scripted(Model):
    """Each turn is an answer, calls of tools, what the call fails with, or pieces that are streamed before the answer.

    AG2's own test model knows neither failures nor pieces before 1.0.
    """

    def __init__(self, log: Log, *turns: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.log = log
        self.turns = iter(turns)

    def create(self) -> Any:
        return self._recording

    async def _recording(self, messages: Any, context: Any, **rest: Any) -> Any:
        self._receives(messages, context, rest["tools"])
        while isinstance(turn := next(self.turns), events.ModelMessageChunk):
            await context.send(turn)
        if isinstance(turn, BaseException):
            raise turn
        if not isinstance(turn, str):
            calls = [turn] if isinstance(turn, events.ToolCallEvent) else turn
            return events.ModelResponse(tool_calls=events.ToolCallsEvent(list(calls)))
        message = events.ModelMessage(turn)
        await context.send(message)
        return events.ModelResponse(message)

    def _receives(self, messages: Any, context: Any, tools: Any) -> None:
        schemas = [{"type": "function", "function": asdict(tool.function)} for tool in tools]
        # No mapper of AG2's converts a bare message: a provider never receives one.
        received = [read(event) for event in messages if not isinstance(event, events.ModelMessage)]
        self.log.calls.append(Received(self.name, list(context.prompt), received, schemas, self.log.assembled))


class _Summariser(_Scripted):
    def _receives(self, messages: Any, context: Any, tools: Any) -> None:
        self.log.summaries += 1


def assert_every_call_is_told(log: Log) -> None:
    """Each call has the assembly that ended right before it, and that says what the client was given."""
    spans = {span.span_id: span for span in log.telemetry.spans_named(ASSEMBLY)}
    for received in log.calls:
        told = spans[received.assembly].attributes
        assert told["assembly.events.out"] == len(received.events)
        assert told.get("assembly.prompts.out", 0) == len(received.prompts)
        assert told["assembly.tokens.out"] == received.tokens
        assert told["assembly.model"] == received.model
        assert "assembly.name" not in told
    assert len({received.assembly for received in log.calls}) == len(log.calls)
    ids = {received.assembly for received in log.calls}
    others = [span for span in spans.values() if span.span_id not in ids]
    assert all(span.attributes.get("assembly.name") in UPKEEP or span.status == "ERROR" for span in others), others
    assert len(log.telemetry.spans_named("compact_block summary")) == log.summaries
