"""A token budget for a LangChain agent: policies as middleware, on LangChain's messages. It needs no network.

    python examples/langchain_budget_policy.py

The agent of `langchain_agent.py` loses its request. This agent keeps the request, and as many of the newest invoices as
fit the budget, counted with the model's tokenizer. Each tool call keeps its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.langchain import AssemblyMiddleware

if TYPE_CHECKING:
    from langchain_core.outputs import ChatResult

REQUEST = "Check invoices 1 to 30. Pay none above 500 euros."


@tool
def read_invoice(number: int) -> str:
    """Read an invoice."""
    return f"Invoice {number}: {number * 37} euros. " + "One lamp, delivered in good order to the door. " * 30


class Clerk(GenericFakeChatModel):
    """Prints the messages that it receives."""

    model_name: str = "gpt-4o"  # whose tokenizer counts

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        asked = any(REQUEST in message.text for message in messages)
        results = [message.text.split(":")[0] for message in messages if message.type == "tool"]
        print(f"   model sees {len(messages)} messages: the request: {asked}; {', '.join(results) or 'no invoice'}")
        return super()._generate(messages, *args, **kwargs)


def calls() -> Any:
    for number in range(1, 31):
        yield AIMessage("", tool_calls=[{"id": f"call-{number}", "name": "read_invoice", "args": {"number": number}}])
    yield AIMessage("All 30 are checked; none above 500 euros is paid.")


def main() -> None:
    budget = BudgetPolicy(window=2_000, output_reserve=300, step_tokens=0)
    agent = create_agent(
        Clerk(messages=calls()),
        [read_invoice],
        system_prompt="You are a clerk.",
        middleware=[AssemblyMiddleware([budget])],
        name="clerk",
    )
    print("user: ", REQUEST)
    result = agent.invoke({"messages": [("user", REQUEST)]})
    print("clerk:", result["messages"][-1].text)
    print(f"The state holds all {len(result['messages'])} messages; no prompt was above {budget.max_tokens:,} tokens.")


if __name__ == "__main__":
    main()
