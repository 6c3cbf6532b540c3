"""What the programs of AutoGen's users are made of: tools and calls of them, a picture, and what was said."""

from __future__ import annotations

from autogen_agentchat.base import TaskResult
from autogen_core import Image
from PIL import Image as Picture


def weather(city: str) -> str:
    """The weather in a city."""
    return f"it rains in {city}"


def population(city: str, year: int) -> str:
    """How many people lived in a city in some year."""
    return f"{city} had many in {year}"


BONN = ("weather", '{"city": "Bonn"}')
MANY = ("population", '{"city": "Bonn", "year": 1999}')


def said(result: TaskResult):
    return [(type(message).__name__, message.source, message.to_text()) for message in result.messages]


async def streamed(stream):
    """All that a stream shows."""
    shown = []
    async for item in stream:
        shown += said(item) if isinstance(item, TaskResult) else [(type(item).__name__, item.to_text())]
    return shown


def picture():
    return Image(Picture.new("RGB", (64, 64)))
