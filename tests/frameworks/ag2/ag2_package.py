"""AG2, by whichever name the installed release has: `ag2` since 1.0, `autogen.beta` before."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest

PACKAGE = "ag2" if importlib.util.find_spec("ag2") and importlib.util.find_spec("ag2.agent") else "autogen.beta"

ag2 = pytest.importorskip(PACKAGE)


def part(name: str) -> Any:
    """A module of AG2; the test is skipped where the release has none of that name."""
    return pytest.importorskip(f"{PACKAGE}.{name}")


events = part("events")
policies = part("policies")
testing = part("testing")
MemoryStream = part("stream").MemoryStream
AssemblerMiddleware = part("assembly").AssemblerMiddleware
BaseMiddleware = part("middleware.base").BaseMiddleware


class Model(testing.TestConfig):
    """AG2's test model: one script for a whole conversation, and what it was sent is kept."""

    def __init__(self, *turns: Any, model: str = "gpt-4o") -> None:
        super().__init__(*turns)
        self.name = model
        self.prompts: list[list[str]] = []
        self.sent: list[list[Any]] = []
        self._client: Any = None

    @property
    def model(self) -> str:
        return self.name

    def create(self) -> Any:
        if self._client is None:
            self._client = super().create()
        return self._recording

    async def _recording(self, messages: Any, context: Any, **rest: Any) -> Any:
        self.prompts.append(list(context.prompt))
        self.sent.append(list(messages))
        return await self._client(messages, context, **rest)


def ask(text: str) -> Any:
    return events.ModelRequest([events.TextInput(text)])


def answer(text: str) -> Any:
    return events.ModelResponse(events.ModelMessage(text))


def call(name: str, arguments: str = "{}", *, id: str = "c1") -> Any:  # noqa: A002  # AG2's own name
    return events.ToolCallEvent(name=name, arguments=arguments, id=id)


def alert(message: str, severity: str = "warning", source: str = "watch") -> Any:
    return events.ObserverAlert(source=source, severity=events.Severity(severity), message=message)


async def history_of(stream: Any, *given: Any) -> None:
    await stream.history.replace(list(given))


def said(sent: Any) -> list[str]:
    """What is in a prompt, in words."""
    words = []
    for event in sent:
        if isinstance(event, events.ModelRequest):
            words.append(" ".join(getattr(part, "content", "?") for part in event.parts))
        elif isinstance(event, events.ModelResponse):
            words.append(event.content or "calls " + " ".join(call.name for call in event.tool_calls.calls))
        else:
            words.append(type(event).__name__)
    return words
