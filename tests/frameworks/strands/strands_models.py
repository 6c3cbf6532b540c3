"""Models that need no network: they say what they were told to say, and write down what they were given."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from recount import Read, count, prompt_tokens
from strands.models.model import Model
from strands.tools import convert_pydantic_to_tool_spec

from otel_assembly.tokens import MessageFraming

ASSEMBLY = "assemble_context"


@dataclass
class Received:
    """What one call of a model was given, as it was then."""

    messages: list[Any]
    prompts: list[str]
    specs: list[Any]
    model: str

    @property
    def events(self) -> list[Read]:
        """The messages as a person would read them."""
        return [read(message) for message in self.messages]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the model may call, as a provider is told of it."""
        return [
            {
                "type": "function",
                "function": {
                    "name": spec["name"],
                    "description": spec["description"],
                    "parameters": spec["inputSchema"]["json"],
                },
            }
            for spec in self.specs
        ]

    @property
    def tokens(self) -> int:
        """What all of it takes, counted anew."""
        tools = MessageFraming().tool_schemas(self.tools, count) if self.tools else 0
        return prompt_tokens(self.prompts, self.events, tools)

    @property
    def said(self) -> Any:
        """What can be compared between two runs: the very bytes, but for ids that are made anew."""
        messages = [{name: message[name] for name in ("role", "content")} for message in self.messages]
        return self.model, self.prompts, messages, self.specs


def read(message: Any) -> Read:
    """A message as a person would read it."""
    found = Read("response" if message["role"] == "assistant" else "request")
    for block in message["content"]:
        if "text" in block:
            found.texts.append(block["text"])
        elif "toolUse" in block:
            call = block["toolUse"]
            found.texts += [call["name"], json.dumps(call["input"], ensure_ascii=False)]
            found.opens.append(call["toolUseId"])
        elif "toolResult" in block:
            result = block["toolResult"]
            for part in result["content"]:
                found.texts.append(part["text"] if "text" in part else json.dumps(part["json"]))
            found.closes.append(result["toolUseId"])
        elif "reasoningContent" in block:
            found.texts.append(block["reasoningContent"]["reasoningText"]["text"])
        else:
            raise AssertionError(f"a program sends a block that is not read here: {[*block]}")
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
    or a function of the messages that gives one of these. A model that is asked to summarise says its own line.
    """

    def __init__(self, stage: Stage, *lines: Any, name: str = "gpt-4o", summary: Any = None, **config: Any) -> None:
        self.stage, self.lines, self.summary = stage, list(lines), summary
        self.config: dict[str, Any] = {"model_id": name, **config}
        self.calls = 0

    def update_config(self, **model_config: Any) -> None:
        self.config.update(model_config)

    def get_config(self) -> Any:
        return self.config

    async def structured_output(self, output_model: Any, prompt: Any, system_prompt: Any = None, **kwargs: Any) -> Any:
        specs = [convert_pydantic_to_tool_spec(output_model)]
        line = self._hears(prompt, specs, [system_prompt] if system_prompt else [])
        yield {"output": output_model(**line)}

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **kwargs: Any) -> Any:
        content = kwargs.get("system_prompt_content")
        prompts = [system_prompt] if system_prompt else []
        if content is not None:
            prompts = [block["text"] for block in content if "text" in block]
        line = self._hears(messages, tool_specs or [], prompts)
        yield {"messageStart": {"role": "assistant"}}
        calls = [item for item in (line if isinstance(line, list) else [line]) if item.startswith("call:")]
        for message in line if isinstance(line, list) else [line]:
            if message.startswith("call:"):
                self.calls += 1
                name, _, arguments = message.removeprefix("call:").partition(" ")
                use = {"name": name, "toolUseId": f"{self.config['model_id']}-{self.calls}"}
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": arguments or "{}"}}}}
            else:
                for part in message.split(" ") if " " in message else [message]:
                    said = part if part == message.rpartition(" ")[2] and message.endswith(part) else part + " "
                    yield {"contentBlockDelta": {"delta": {"text": said}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}
        usage = {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}

    def _hears(self, messages: Any, specs: Any, prompts: list[str]) -> Any:
        received = Received(deepcopy(list(messages)), prompts, deepcopy(list(specs)), self.config["model_id"])
        summarises = self.summary is not None and any("summar" in prompt for prompt in prompts)
        (self.stage.summaries if summarises else self.stage.received).append(received)
        line = self.summary if summarises else self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        if callable(line):
            line = line(messages)
        if isinstance(line, Exception):
            raise line
        return line


def words(count_of: int, word: str = "word") -> str:
    """A text of so many words."""
    return " ".join(f"{word}{number}" for number in range(count_of))


def history(turns: int) -> list[Any]:
    """What was said so far, as a program that keeps it itself has it."""
    found: list[Any] = []
    for turn in range(turns):
        found += [
            {"role": "user", "content": [{"text": f"question {turn}: {words(5)}"}]},
            {"role": "assistant", "content": [{"text": f"answer {turn}: {words(5)}"}]},
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


def steps(assembly: Any) -> list[str]:
    """The names of an assembly's steps, in order."""
    found = [span for span in assembly.children if span.name.startswith("apply_policy")]
    return [span.attributes["assembly.policy.name"] for span in sorted(found, key=lambda span: span.start_ns)]
