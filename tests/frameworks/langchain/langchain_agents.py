"""Agents of LangChain that need no network: scripted chat models, and a tool that looks something up."""

from __future__ import annotations

from itertools import chain, count
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

REQUEST = "Refund booking 4711, and nothing else."


class Scripted(GenericFakeChatModel):
    """Answers with one message after the other, and remembers what it was sent."""

    _sent: list[list[Any]] = PrivateAttr(default_factory=list)

    @property
    def sent(self) -> list[list[Any]]:
        return self._sent

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        self._sent.append(list(messages))
        return super()._generate(messages, *args, **kwargs)


def scripted(*answers: Any) -> Scripted:
    return Scripted(messages=iter([AIMessage(answer) if isinstance(answer, str) else answer for answer in answers]))


def call(number: int) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": f"call_{number}", "name": "look_up", "args": {"topic": f"topic {number}"}}])


@tool
def look_up(topic: str) -> str:
    """Look something up."""
    return f"What is known of {topic}: " + "much " * 20


def tool_loop(calls: int) -> list[Any]:
    """A request, and so many calls with their results."""
    messages: list[Any] = [HumanMessage(REQUEST, id="opening")]
    for number in range(calls):
        asks = call(number)
        asks.id = f"asks_{number}"
        result = ToolMessage("much " * 20, tool_call_id=f"call_{number}", id=f"result_{number}")
        messages += [asks, result]
    return messages


def chat(turns: int) -> list[Any]:
    """A request, and an exchange of so many turns after it; without ids, as a program makes them."""
    messages: list[Any] = [HumanMessage(REQUEST)]
    for number in range(turns):
        messages += [AIMessage(f"Answer {number}. " + "word " * 10), HumanMessage(f"Question {number}?")]
    return messages


def agent(calls: int, *middleware: Any, **settings: Any) -> tuple[Any, Scripted]:
    """An agent that looks up so many things before it is done, and its model."""
    model = scripted(*map(call, range(calls)), "Done.")
    return create_agent(model, [look_up], middleware=middleware, system_prompt="You help.", **settings), model


def summarizer(*summaries: Any, at: int = 8, keep: int = 4, **settings: Any) -> SummarizationMiddleware:
    """A summarising middleware, whatever its settings are called in the installed version."""
    if summaries and not isinstance(summaries[0], str):
        model = summaries[0]
    else:
        model = Scripted(messages=map(AIMessage, chain(summaries, (f"Summary {number}." for number in count()))))
    try:
        return SummarizationMiddleware(model, trigger=("messages", at), keep=("messages", keep), **settings)
    except TypeError:  # LangChain 1.0.0
        return SummarizationMiddleware(
            model, max_tokens_before_summary=at, messages_to_keep=keep, **{"token_counter": len, **settings}
        )


def run(graph: Any, messages: Any = REQUEST, **config: Any) -> Any:
    given = [HumanMessage(messages)] if isinstance(messages, str) else messages
    return graph.invoke({"messages": given}, {"recursion_limit": 100, **config})


async def arun(graph: Any, messages: Any = REQUEST, **config: Any) -> Any:
    given = [HumanMessage(messages)] if isinstance(messages, str) else messages
    return await graph.ainvoke({"messages": given}, {"recursion_limit": 100, **config})
