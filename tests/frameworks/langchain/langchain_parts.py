"""What the programs of LangChain's users are made of: a tool, calls of it, a question, and what was said."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool

ONE = {"configurable": {"thread_id": "one"}}


@tool
def weather(city: str) -> str:
    """Say what the weather is.

    Args:
        city: Where.
    """
    return f"It rains in {city}."


def calls(*asked: tuple[str, dict[str, Any]], number: int = 0) -> AIMessage:
    """An answer that asks for tools, all at once."""
    made = [
        {"id": f"call_{number}_{at}", "name": name, "args": args, "type": "tool_call"}
        for at, (name, args) in enumerate(asked)
    ]
    return AIMessage("", tool_calls=made)


def asks(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def said(result: dict[str, Any]) -> list[str]:
    return [message.text for message in result["messages"]]
