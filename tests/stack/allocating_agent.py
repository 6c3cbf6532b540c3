"""An agent on our own assembler: the allocator fills its prompts, and a call of a model follows each, but for the last.

The model call's span is what an instrumented client would make; no model is asked.
"""

from __future__ import annotations

import asyncio

from opentelemetry import trace

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    Context,
    ContextOverflowError,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
)

NAME = {"gen_ai.agent.name": "planner"}
TRACER = trace.get_tracer("planner")


async def main() -> None:
    chain = [ConversationPolicy(), BudgetPolicy(window=500, output_reserve=100, step_tokens=0)]
    assembler = Assembler(chain, name="planner", model="gpt-4o")
    history, context = History(), Context(conversation_id="trip-7", agent_name="planner")
    for words in (10, 60, 120, 900):
        history.append(ModelRequest(content="where to " * words))
        with TRACER.start_as_current_span(
            "invoke_agent planner", attributes={"gen_ai.operation.name": "invoke_agent", **NAME}
        ):
            try:
                assembly = await assembler.assemble(["You plan journeys."], history, context)
            except ContextOverflowError as error:
                print(f"not sent: {error}")
                return
            with TRACER.start_as_current_span(
                "chat gpt-4o",
                kind=trace.SpanKind.CLIENT,
                attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o", **NAME},
            ):
                print(f"sent {assembly.totals.tokens_out} tokens")
        history.append(ModelResponse(content="There. " * words))


if __name__ == "__main__":
    asyncio.run(main())
