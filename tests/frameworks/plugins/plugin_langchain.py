from __future__ import annotations

import asyncio
import sys
from inspect import getsource
from typing import Any

from langchain.agents import create_agent
from langchain_calls import as_read, client
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from plugin_talks import SYSTEM_PROMPT, BaseTalk, Call, blocking, halted

from otel_assembly.instrumentation.langchain import AssemblyMiddleware


class Talk(BaseTalk):
    plugin_type, turn_type = AssemblyMiddleware, "Runtime"
    answers_when_halted = True
    #: Earlier releases do not write the agent's name to the run's metadata.
    policies_get_agent_name = "lc_agent_name" in getsource(sys.modules[create_agent.__module__])

    def start(self) -> None:
        self.log, self.requested = [], 0
        tools = [tool(function if self.way == "awaited" else blocking(function)) for function in self.tools]
        self.graph = create_agent(
            client(self.log, *map(self._answer, self.lines)),
            tools,
            middleware=[self.plugin],
            system_prompt=SYSTEM_PROMPT,
            name="bob",
            checkpointer=InMemorySaver(),
        )
        self.config = {"configurable": {"thread_id": self.conversation}, "recursion_limit": 100}

    def _answer(self, line: Any) -> Any:
        if isinstance(line, BaseException):
            return line
        lines = line if isinstance(line, list) else [line]
        names = [line.removeprefix("call:") for line in lines if line.startswith("call:")]
        calls = [{"id": f"call_{self.requested + at}", "name": name, "args": {}} for at, name in enumerate(names)]
        self.requested += len(calls)
        return AIMessage("" if calls else lines[0], tool_calls=calls)

    async def ask(self, text: str) -> str:
        given = {"messages": [("user", text)]}
        if self.way == "blocking":
            result = await asyncio.to_thread(self.graph.invoke, given, self.config)
        else:
            result = await self.graph.ainvoke(given, self.config)
        answer: str = result["messages"][-1].text
        if answer.startswith("Halted: "):
            raise halted(answer)
        return answer

    @property
    def calls(self) -> list[Call]:
        return [
            Call(
                [message.text for message in received.messages[: received.leading]],
                [as_read(message) for message in received.messages[received.leading :]],
                received.tokens,
            )
            for received in self.log
        ]

    async def history(self) -> list[Any]:
        state = await self.graph.aget_state(self.config)
        return list(state.values["messages"])
