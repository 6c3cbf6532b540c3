from __future__ import annotations

from typing import Any

from agent_framework import Agent, Content, Message
from plugin_talks import SYSTEM_PROMPT, BaseTalk, Call
from scripted_clients import ScriptedClient, read, streamed

from otel_assembly.instrumentation.agent_framework import AssemblyMiddleware


class Talk(BaseTalk):
    plugin_type, turn_type = AssemblyMiddleware, "ChatContext"

    def start(self) -> None:
        self.requested = 0
        self.client = ScriptedClient(*map(self._answer, self.lines), *[self._answer(self.lines[-1])] * 20)
        middleware = [self.plugin, self.plugin.tools]
        self.agent = Agent(self.client, SYSTEM_PROMPT, name="bob", tools=list(self.tools), middleware=middleware)
        self.session = self.agent.create_session(session_id=self.conversation)

    def _answer(self, line: Any) -> Any:
        lines = line if isinstance(line, list) else [line]
        if isinstance(line, BaseException) or not lines[0].startswith("call:"):
            return line
        self.requested += len(lines)
        calls = [
            Content.from_function_call(f"c{self.requested + at}", line.removeprefix("call:"), arguments="{}")
            for at, line in enumerate(lines)
        ]
        return Message("assistant", calls)

    async def ask(self, text: str) -> str:
        if self.way == "streamed":
            return (await streamed(self.agent, text, session=self.session)).strip()
        return (await self.agent.run(text, session=self.session)).text

    @property
    def calls(self) -> list[Call]:
        return [
            Call([received.instructions or ""], [*map(read, received.messages)], received.tokens)
            for received in self.client.received
        ]

    async def history(self) -> list[Any]:
        (state,) = self.session.state.values()
        return [message.to_dict() for message in state["messages"]]
