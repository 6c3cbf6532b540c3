"""Five middlewares: timing, a rate limit, a dynamic system prompt, a fallback model, and one that provides tools.

They run unchanged in `otel_assembly.Agent` and in AgentScope 2.x.

python examples/middlewares.py
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from otel_assembly import Agent, MiddlewareBase, ModelResponse, Tool, ToolCallEvent
from otel_assembly.errors import ModelCallError
from otel_assembly.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TimingMiddleware(MiddlewareBase):
    """Print the duration of each model call."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self._say = say

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Any]) -> Any:
        start = time.perf_counter()
        result = await next_handler()
        elapsed = time.perf_counter() - start
        self._say(f"[timing] {agent.name}, {input_kwargs['current_model'].model}: {elapsed:.1f} s")
        return result


class RateLimitMiddleware(MiddlewareBase):
    """Enforce a minimum interval between model calls of all agents and sessions that share it."""

    def __init__(self, min_interval: float = 1.0) -> None:
        self._min_interval = min_interval
        self._next_call = 0.0

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Any]) -> Any:
        # Reserve the slot before waiting, so that concurrent calls queue up.
        now = time.monotonic()
        slot = max(now, self._next_call)
        self._next_call = slot + self._min_interval
        await asyncio.sleep(slot - now)
        return await next_handler()


class DynamicContextMiddleware(MiddlewareBase):
    """Append current information to the system prompt."""

    def __init__(self, context_fn: Callable[[], str]) -> None:
        self._context_fn = context_fn

    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        return f"{current_prompt}\n\n## Current Context\n{self._context_fn()}"


class ModelFallbackMiddleware(MiddlewareBase):
    """Call another model if the first one fails."""

    def __init__(self, fallback_model: Any) -> None:
        self._fallback = fallback_model

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Any]) -> Any:
        try:
            return await next_handler()
        except ModelCallError as error:
            print(f"[fallback] {error.model} did not answer, {self._fallback.model} is asked")
            return await next_handler(current_model=self._fallback)


class NotebookMiddleware(MiddlewareBase):
    """Provide a tool, which `list_tools` returns."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def list_tools(self) -> Sequence[Tool]:
        return [Tool(self.take_note)]

    async def take_note(self, text: str) -> str:
        """Write something down for later."""
        self.notes.append(text)
        return f"noted, {len(self.notes)} so far"


async def main() -> None:
    notebook = NotebookMiddleware()
    middlewares = [
        TimingMiddleware(),
        ModelFallbackMiddleware(ScriptedModel("Noted: buy milk.", model="small")),
        RateLimitMiddleware(min_interval=0.05),
        DynamicContextMiddleware(lambda: "Today is Tuesday."),
        notebook,
    ]
    model = ScriptedModel(
        ModelResponse(tool_calls=(ToolCallEvent(name="take_note", arguments='{"text": "buy milk"}'),)),
        ModelCallError("overloaded", provider="example", model="large", status=529),
        model="large",
    )
    tools = [tool for middleware in middlewares for tool in await middleware.list_tools()]
    agent = Agent("clerk", "Be brief.", model, tools, middlewares=middlewares)
    print((await agent.ask("Remind me of the milk.")).content)
    print("notes:", notebook.notes)
    print("the model was told:", model.received[0].prompts[0].splitlines()[-1])


if __name__ == "__main__":
    asyncio.run(main())
