"""Models that need no network: they say what they were told to say, and write down what they were given."""

from __future__ import annotations

import itertools
import json
import re
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from pydantic import PrivateAttr
from recount import Read, count, prompt_tokens

from otel_assembly.messages import MEDIA_TOKENS
from otel_assembly.tokens import MessageFraming

ASSEMBLY = "assemble_context"


@dataclass
class Received:
    """What one call of a model was given, as it was then."""

    contents: list[Any]
    config: Any
    model: str = ""

    @property
    def prompts(self) -> list[str]:
        told = self.config.system_instruction
        if isinstance(told, types.Content):
            return [part.text for part in told.parts or () if part.text]
        return [told] if told else []

    @property
    def events(self) -> list[Read]:
        return [read(content) for content in self.contents]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the model may call, as its provider is told of it."""
        found = []
        for tool in self.config.tools or ():
            for declaration in tool.function_declarations or ():
                parameters = declaration.parameters_json_schema
                if not parameters:
                    parameters = (
                        declaration.parameters.model_dump(mode="json", exclude_none=True)
                        if declaration.parameters
                        else {}
                    )
                function = {
                    "name": declaration.name,
                    "description": declaration.description or "",
                    "parameters": parameters,
                }
                found.append({"type": "function", "function": function})
        return found

    @property
    def tokens(self) -> int:
        """What all of it takes, counted anew."""
        tools = MessageFraming().tool_schemas(self.tools, count) if self.tools else 0
        shown = sum(
            bool(part.inline_data or part.file_data) for content in self.contents for part in content.parts or ()
        )
        return prompt_tokens(self.prompts, self.events, tools) + shown * MEDIA_TOKENS

    @property
    def said(self) -> Any:
        """What can be compared between two runs."""
        return (
            self.model,
            [_TIME.sub("", prompt) for prompt in self.prompts],
            [(event.kind, [_TIME.sub("", text) for text in event.texts]) for event in self.events],
            self.tools,
        )


def read(content: Any) -> Read:
    """A content as a person would read it."""
    found = Read("response" if content.role == "model" else "request")
    for part in content.parts or ():
        if part.function_call:
            found.texts += [
                part.function_call.name,
                json.dumps(part.function_call.args, ensure_ascii=False, default=str),
            ]
            found.opens.append(part.function_call.name)
        elif part.function_response:
            answer = part.function_response
            found.texts += [
                answer.name,
                "" if answer.response is None else json.dumps(answer.response, ensure_ascii=False, default=str),
            ]
            found.closes.append(part.function_response.name)
        elif part.executable_code:
            found.texts.append(part.executable_code.code)
        elif part.code_execution_result:
            found.texts.append(part.code_execution_result.output)
        elif part.text:
            found.texts.append(part.text)
    return found


@dataclass
class Stage:
    """What the models of one program were given, in order; a summariser's calls apart."""

    received: list[Received] = field(default_factory=list)
    summaries: list[Received] = field(default_factory=list)
    #: How many runs of a runner are no part of another one.
    runs: int = 1
    #: Which of the assemblies, as they end, no model was called with.
    unsent: tuple[int, ...] = ()


class ScriptedLlm(BaseLlm):
    """Says its lines one after the other, then the last one again.

    A line is a text; a tool's name behind ``call:``; a list of tool calls, made at once; an exception, which is raised;
    or a content.
    """

    model: str = "gpt-4o"
    _stage: Any = PrivateAttr()
    _lines: list[Any] = PrivateAttr()
    _summarises: bool = PrivateAttr()

    def __init__(self, stage: Stage, *lines: Any, name: str = "gpt-4o", summarises: bool = False) -> None:
        super().__init__(model=name)
        self._stage, self._lines, self._summarises = stage, list(lines), summarises

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        content = self._answer(llm_request)
        if stream:
            for part in content.parts:
                for chunk in part.text.split() if part.text else ():
                    said = types.Content(role="model", parts=[types.Part(text=chunk + " ")])
                    yield LlmResponse(content=said, partial=True)
        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=self._stage.received[-1].tokens if self._stage.received else 10, candidates_token_count=2
        )
        yield LlmResponse(content=content, partial=False if stream else None, usage_metadata=used)

    def _answer(self, request: Any) -> Any:
        written = self._stage.summaries if self._summarises else self._stage.received
        written.append(Received(deepcopy(request.contents), deepcopy(request.config), request.model or self.model))
        line = self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]
        if callable(line):
            line = line(request)
        if isinstance(line, Exception):
            raise line
        if isinstance(line, types.Content):
            return line
        parts = [part_of(message) for message in (line if isinstance(line, list) else [line])]
        return types.Content(role="model", parts=parts)


def part_of(line: str) -> Any:
    if not line.startswith("call:"):
        return types.Part(text=line)
    name, _, arguments = line.removeprefix("call:").partition(" ")
    return types.Part(function_call=types.FunctionCall(name=name, args=json.loads(arguments or "{}")))


def words(count_of: int, word: str = "word") -> str:
    """A text of so many words."""
    return " ".join(f"{word}{number}" for number in range(count_of))


#: When something was said, which a memory says.
_TIME = re.compile("Time: .*")
_SESSIONS = itertools.count()


class Talk:
    """A conversation of a user with an app or an agent, in one session."""

    def __init__(self, agent: Any, *, session: str | None = None, service: Any = None, **app: Any) -> None:
        made = agent if isinstance(agent, App) else App(name="talk", root_agent=agent, **app)
        self.session = session or f"s-{next(_SESSIONS)}"
        self.runner = Runner(
            app=made,
            session_service=service or InMemorySessionService(),
            auto_create_session=True,
            artifact_service=InMemoryArtifactService(),
        )

    async def say(self, message: Any, **how: Any) -> list[str]:
        """What comes back, said by whom."""
        content = types.Content(role="user", parts=[types.Part(text=message)]) if isinstance(message, str) else message
        found = []
        async for event in self.runner.run_async(user_id="guest", session_id=self.session, new_message=content, **how):
            for part in (event.content.parts or ()) if event.content and not event.partial else ():
                half = part.function_call or part.function_response
                found.append(f"{event.author}: {part.text if half is None else half.name}")
        return found

    async def events(self) -> list[Any]:
        """What the session holds."""
        held = await self.runner.session_service.get_session(app_name="talk", user_id="guest", session_id=self.session)
        return held.events


def assert_told(telemetry: Any, received: list[Received], unsent: Any = ()) -> list[Any]:
    """Each call has its assembly, in order, which says what the client was given; others were never sent."""
    sent = {None, "context_overflow"}  # a limit that did not hold stops no call
    assemblies = [
        span
        for span in telemetry.spans_named(ASSEMBLY)
        # A compaction between runs is in an assembly that no model is called with, and that has a name.
        if span.attributes.get("error.type") in sent and "assembly.name" not in span.attributes
    ]
    assemblies.sort(key=lambda span: span.end_ns)
    assemblies = [span for place, span in enumerate(assemblies) if place not in unsent]
    told = [(span.attributes["assembly.events.out"], span.attributes["assembly.tokens.out"]) for span in assemblies]
    assert told == [(len(message.events), message.tokens) for message in received]
    for span, request in zip(assemblies, received, strict=True):
        assert span.attributes["assembly.prompts.out"] == len(request.prompts)
        assert span.attributes["assembly.model"] == request.model
        assert not span.attributes.get("assembly.input.unknown")
    return assemblies
