"""A token budget for an agent of the OpenAI Agents SDK, which keeps the newest request and complete tool calls.

A scripted model calls a tool ten times in one run, so the example needs no network. The run's result has all messages.

    python examples/openai_agents_budget_policy.py
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from otel_assembly import BudgetPolicy
from otel_assembly.instrumentation.openai_agents import AssemblyInputFilter

REQUEST = "I use a wheelchair. Which of the ten rooms can I visit?"


@function_tool
def room(number: int) -> str:
    """Look up a room."""
    return f"Room {number}: by the lift. " + "Do not touch the frames. " * 30


class Guide(Model):
    """A scripted model that prints how many messages it received, then calls the tool for the next room."""

    model = "gpt-4o"

    async def get_response(self, *_: Any, **given: Any) -> ModelResponse:
        """Return the scripted response."""
        items = given["input"]
        asked = [json.loads(item["arguments"])["number"] for item in items if item.get("type") == "function_call"]
        print(f"{len(items)} items; it knows of the wheelchair: {'wheelchair' in str(items)}")
        if asked and asked[-1] == 10:
            said = ResponseOutputText(text="All ten.", type="output_text", annotations=[], logprobs=[])
            message = ResponseOutputMessage(
                id="message", content=[said], role="assistant", status="completed", type="message"
            )
            return ModelResponse(output=[message], usage=Usage(), response_id=None)
        number = asked[-1] + 1 if asked else 1
        call = ResponseFunctionToolCall(
            name="room", arguments=json.dumps({"number": number}), call_id=f"room {number}", type="function_call"
        )
        return ModelResponse(output=[call], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Streaming is not supported."""
        raise NotImplementedError


agent = Agent("guide", instructions="You guide guests through a museum.", model=Guide(), tools=[room])
budget = AssemblyInputFilter([BudgetPolicy(window=1_000, output_reserve=200)])


async def main() -> None:
    """Ask the agent one question, and print its answer."""
    set_tracing_disabled(True)  # export no traces to OpenAI
    config = RunConfig(call_model_input_filter=budget)
    result = await Runner.run(agent, REQUEST, hooks=budget, run_config=config, max_turns=20)
    print(result.final_output, f"The run has {len(result.to_input_list())} items.")


if __name__ == "__main__":
    asyncio.run(main())
