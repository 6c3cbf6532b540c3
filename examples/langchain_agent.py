"""An agent on LangChain with tools and a summarization middleware, without any code for otel-assembly.

    opentelemetry-instrument python examples/langchain_agent.py

LangChain's fake model replaces the provider. It checks invoices one by one while the prompt contains the request. After
forty messages the middleware summarizes all but the last six. It trims the summarizer's input to the newest 4,000
tokens, and the input must start with a user message. The only user message is older, so the input is empty. The
summarizer is never called, and a fixed sentence replaces the history.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

REQUEST = "Check invoices 1 to 30. Pay none above 500 euros."


@tool
def read_invoice(number: int) -> str:
    """Read an invoice."""
    return f"Invoice {number}: {number * 37} euros. " + "One lamp, delivered in good order to the door. " * 30


class Clerk(GenericFakeChatModel):
    """Calls the tool for the next invoice while the prompt contains the request."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if not any(REQUEST in message.text for message in messages):
            answer = AIMessage("I see some invoices here. What would you like me to do with them?")
            return ChatResult(generations=[ChatGeneration(message=answer)])
        return super()._generate(messages, *args, **kwargs)


def calls() -> Any:
    for number in range(1, 31):
        yield AIMessage("", tool_calls=[{"id": f"call-{number}", "name": "read_invoice", "args": {"number": number}}])
    yield AIMessage("All 30 are checked; none above 500 euros is paid.")


def main() -> None:
    model = Clerk(messages=calls())
    agent = create_agent(
        model,
        [read_invoice],
        system_prompt="You are a clerk.",
        middleware=[SummarizationMiddleware(model, trigger=("messages", 40), keep=("messages", 6))],
        name="clerk",
    )
    print("user: ", REQUEST)
    for step in agent.stream({"messages": [("user", REQUEST)]}, stream_mode="updates"):
        for node, update in step.items():
            for message in (update or {}).get("messages", ()):
                if isinstance(message, AIMessage) and node == "model":
                    asked = "".join(f"reads invoice {call['args']['number']}" for call in message.tool_calls)
                    print("clerk:", message.text or asked)


if __name__ == "__main__":
    main()
