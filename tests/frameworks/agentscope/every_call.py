"""Models that write down what they receive, and what must be told of each call that they received."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from agentscope.message import (
    DataBlock,
    HintBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentscope.model import ChatResponse
from recount import count
from scripted import ScriptedModel, usage

from otel_assembly.messages import MEDIA_TOKENS
from otel_assembly.tokens import MessageFraming

ASSEMBLY = "assemble_context"
#: Blocks that a provider is sent as messages of their own.
_ALONE = (ToolResultBlock, HintBlock)


@dataclass
class Received:
    """What a model's client was given in one call."""

    model: str
    messages: list[Msg]
    tools: list[dict[str, Any]]
    at_ns: int
    window: int

    @property
    def prompts(self) -> list[str]:
        """The system messages in front."""
        return [message.get_text_content() for message in self.messages[: self._leading]]

    @property
    def blocks(self) -> list[tuple[str, Any, bool]]:
        """Each block behind them, its message's role, and whether a provider is sent a message that it begins."""
        found = []
        for message in self.messages[self._leading :]:
            before: Any = None
            for block in message.content:
                begins = before is None or isinstance(block, _ALONE) or isinstance(before, _ALONE)
                found.append((message.role, block, begins))
                before = block
        return found

    @property
    def names(self) -> int:
        """The names that OpenAI's formatter sends, with a token of framing each; a hint is sent without one."""
        names = ["system" for _ in self.prompts]
        for message in self.messages[self._leading :]:
            before: Any = None
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    names.append(block.name)
                elif not isinstance(block, HintBlock) and (before is None or isinstance(before, _ALONE)):
                    names.append(message.name)
                before = block
        return sum(1 + count(name) for name in names)

    @property
    def _leading(self) -> int:
        return next((n for n, message in enumerate(self.messages) if message.role != "system"), len(self.messages))

    @property
    def tokens(self) -> int:
        """The whole prompt: 4 a message, its name, 3 a call, every text alone, tools, and 3 for the reply."""
        said = sum(4 + count(prompt) for prompt in self.prompts) + self.names
        for _, block, begins in self.blocks:
            said += 4 * begins + 3 * isinstance(block, ToolCallBlock) + sum(map(_tokens, texts_of(block)))
        return said + MessageFraming().tool_schemas(self.tools, count) + 3


def texts_of(block: Any) -> list[Any]:
    """The texts of a block, and the images and other data in it."""
    if isinstance(block, TextBlock):
        return [block.text]
    if isinstance(block, ThinkingBlock):
        return [block.thinking]
    if isinstance(block, ToolCallBlock):
        return [block.name, block.input]
    if isinstance(block, DataBlock):
        return [block]
    held = block.output if isinstance(block, ToolResultBlock) else block.hint
    return [held] if isinstance(held, str) else [part for message in held for part in texts_of(message)]


def _tokens(part: Any) -> int:
    return count(part) if isinstance(part, str) else MEDIA_TOKENS


class Listening(ScriptedModel):
    """Writes down each call as its client receives it; a line may name several tools, or be an exception to raise.

    `calls` is shared by the models of a program, so that it holds all their calls in order; those of AgentScope's own
    summariser are not among them.
    """

    def __init__(self, lines=("Done.",), *, calls=None, **settings):
        super().__init__(lines, **settings)
        self.received = [] if calls is None else calls

    async def _call_api(self, model_name, messages, tools=None, tool_choice=None, **kwargs):
        if "task_overview" not in str(tools):
            held = deepcopy(list(messages)), deepcopy(list(tools or ()))
            self.received.append(Received(model_name, *held, time.time_ns(), self.context_size))
        elif tools:
            return await super()._call_api(model_name, messages, tools, tool_choice, **kwargs)
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        if isinstance(line, BaseException):
            raise line
        blocks = list(self._blocks([line] if isinstance(line, str) else line))
        if self.stream:
            return self._streamed(blocks)
        return ChatResponse(content=blocks, is_last=True, usage=usage())

    def _blocks(self, said):
        for text in said:
            if text.startswith("call:"):
                self.calls += 1
                name, _, given = text.removeprefix("call:").partition(" ")
                yield ToolCallBlock(id=f"{self.model}-{self.calls}", name=name, input=given or "{}")
            else:
                yield TextBlock(text=text)

    async def _streamed(self, blocks):
        for block in blocks:
            yield ChatResponse(content=[block], is_last=False, usage=usage())


def assert_every_call_is_told(telemetry, received, *, traces=None):
    """Every call has an assembly of its own, in order, before it; what is said to be sent is what was received."""
    spans = sorted(telemetry.spans_named(ASSEMBLY), key=lambda span: span.end_ns)
    said = [(span.attributes["assembly.model"], span.attributes["assembly.events.out"]) for span in spans]
    assert said == [(call.model, len(call.blocks)) for call in received]
    for span, call in zip(spans, received, strict=True):
        held = span.attributes
        assert held["assembly.tokens.out"] == call.tokens
        assert held["assembly.prompts.out"] == len(call.prompts)
        assert held["assembly.framework"] == "agentscope"
        assert held.get("assembly.model.window") == call.window
        assert span.start_ns <= span.end_ns <= call.at_ns
        assert "assembly.input.unknown" not in held
    if traces is not None:
        assert len({span.trace_id for span in telemetry.spans}) == traces
    assert telemetry.violations() == []
    assert "assembly.telemetry.errors" not in telemetry.metrics
    return spans


def plainly(received):
    """What was received, without ids and times that are made anew in each run."""
    return [
        (call.model, [(message.role, [texts_of(block) for block in message.content]) for message in call.messages])
        for call in received
    ]
