from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plugin_talks import SYSTEM_PROMPT, BaseTalk, Call
from strands import Agent, tool
from strands_models import ScriptedModel, Stage
from strands_programs import InvokeModelStage, said

if InvokeModelStage is None:
    pytest.skip("it works as middleware, which this release has not", allow_module_level=True)

from otel_assembly.instrumentation.strands import AssemblyConversationManager


class Talk(BaseTalk):
    plugin_type, turn_type = AssemblyConversationManager, "InvokeModelContext"
    own_steps = ("alternating_roles",)
    conversation_id = None  # an agent without a session has no id

    def start(self) -> None:
        self.stage = Stage()
        self.agent = Agent(
            model=ScriptedModel(self.stage, *self.lines),
            name="bob",
            tools=[tool(function) for function in self.tools],
            conversation_manager=self.plugin,
            callback_handler=None,
            system_prompt=SYSTEM_PROMPT,
        )

    async def ask(self, text: str) -> str:
        asked = asyncio.to_thread(self.agent, text) if self.way == "blocking" else self.agent.invoke_async(text)
        return said(await asked)

    @property
    def context(self) -> Any:
        return self.plugin.context_of(self.agent)

    def accepts(self, call: Call) -> bool:
        """Bedrock also requires that the user's messages and the model's alternate."""
        kinds = [event.kind for event in call.events]
        return super().accepts(call) and kinds == ["request", "response"] * (len(kinds) // 2) + ["request"]

    async def history(self) -> list[Any]:
        return list(self.agent.messages)
