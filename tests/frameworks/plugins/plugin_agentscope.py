from __future__ import annotations

from typing import Any

from agentscope.message import ToolCallBlock, ToolResultBlock
from every_call import Listening, texts_of
from plugin_talks import SYSTEM_PROMPT, BaseTalk, Call, halted
from recount import Read
from scripted import agent, interrupted, talk, tool

from otel_assembly.instrumentation.agentscope import AssemblyMiddleware


class Talk(BaseTalk):
    plugin_type, turn_type = AssemblyMiddleware, "Agent"
    answers_when_halted = True
    observed = ("tool_call",)  # beside the billed tokens; AgentScope's plug-in shows no messages

    def start(self) -> None:
        self.model_client = Listening(self.lines, stream=self.way == "streamed", context_size=1_000_000)
        tools = [tool(function) for function in self.tools]
        self.agent = agent(self.model_client, name="bob", tools=tools, middlewares=[self.plugin], prompt=SYSTEM_PROMPT)

    async def ask(self, text: str) -> str:
        answer = await talk(self.agent, text)
        # Before 2.0.7 only the text of an answer tells that it was interrupted.
        if interrupted(answer) and answer.get_text_content() not in self.lines:
            raise halted(str(texts_of((await self.history())[-1])))
        return answer.get_text_content()

    @property
    def conversation_id(self) -> str:
        return self.agent.state.session_id

    @property
    def context(self) -> Any:
        return self.plugin.context_of(self.agent)

    @property
    def calls(self) -> list[Call]:
        calls = []
        for received in self.model_client.received:
            events: list[Read] = []
            for role, block, begins in received.blocks:
                if begins:
                    kind = "result" if isinstance(block, ToolResultBlock) else {"user": "request"}.get(role, "response")
                    events.append(Read(kind))
                events[-1].texts += texts_of(block)
                events[-1].opens += [block.id] if isinstance(block, ToolCallBlock) else []
                events[-1].closes += [block.id] if isinstance(block, ToolResultBlock) else []
            prompts = [
                block.text for message in received.messages if message.role == "system" for block in message.content
            ]
            calls.append(Call(prompts, events, received.tokens))
        return calls

    async def history(self) -> list[Any]:
        return [block for message in self.agent.state.context for block in message.content]
