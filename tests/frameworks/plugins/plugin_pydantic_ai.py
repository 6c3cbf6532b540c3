from __future__ import annotations

from typing import Any

from plugin_talks import SYSTEM_PROMPT, BaseTalk
from pydantic_ai import Agent
from pydantic_ai_models import ScriptedModel, Stage

from otel_assembly.instrumentation.pydantic_ai import AssemblyCapability


class Talk(BaseTalk):
    plugin_type, turn_type = AssemblyCapability, "RunContext"

    def start(self) -> None:
        self.stage, self.messages = Stage(), []
        model = ScriptedModel(self.stage, *self.lines)
        self.agent: Any = Agent(
            model, name="bob", tools=self.tools, capabilities=[self.plugin], instructions=SYSTEM_PROMPT
        )

    async def ask(self, text: str) -> str:
        settings = {"message_history": self.messages or None, "conversation_id": self.conversation}
        if self.way == "streamed":
            async with self.agent.run_stream(text, **settings) as result:
                answer = await result.get_output()
        else:
            result = await self.agent.run(text, **settings)
            answer = result.output
        self.messages = result.all_messages()
        return answer

    async def history(self) -> list[Any]:
        return self.messages
