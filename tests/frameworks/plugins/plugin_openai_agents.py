from __future__ import annotations

from typing import Any

from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool, set_tracing_disabled
from openai_agents_models import ScriptedModel, Stage
from plugin_talks import SYSTEM_PROMPT, BaseTalk

from otel_assembly.instrumentation.openai_agents import AssemblyInputFilter


class Talk(BaseTalk):
    turn_type = "CallModelData"
    observed = ("request", "tool_call", "tool_result", "response", "request", "response")

    def start(self) -> None:
        set_tracing_disabled(True)
        self.stage, self.session = Stage(), SQLiteSession(self.conversation)
        tools: Any = [function_tool(function) for function in self.tools]
        self.agent: Any = Agent(
            "bob", model=ScriptedModel(self.stage, *self.lines), tools=tools, instructions=SYSTEM_PROMPT
        )

    @classmethod
    def plugin_of(cls, policies: Any, way: str, **settings: Any) -> Any:
        return AssemblyInputFilter(policies, conversation=lambda context: context, **settings)

    async def ask(self, text: str) -> str:
        run: Any = Runner.run_streamed if self.way == "streamed" else Runner.run
        config = RunConfig(call_model_input_filter=self.plugin)
        result = run(
            self.agent, text, hooks=self.plugin, run_config=config, session=self.session, context=self.conversation
        )
        if self.way == "streamed":
            async for _ in result.stream_events():
                pass
        else:
            result = await result
        return str(result.final_output)

    async def history(self) -> list[Any]:
        return list(await self.session.get_items())

    def close(self) -> None:
        self.session.close()
