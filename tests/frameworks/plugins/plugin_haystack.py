from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when Haystack is imported

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack_models import AwaitedGenerator, ScriptedGenerator, Stage
from plugin_talks import SYSTEM_PROMPT, BaseTalk, blocking

from otel_assembly.instrumentation.haystack import AssemblyChatGenerator, AssemblyHook


class Talk(BaseTalk):
    turn_type = "State"
    agent_name, run_span = "Agent", "invoke_agent Agent"
    model = None
    observed = ("system", "request", "response", "tool_result", "response", "request")

    def start(self) -> None:
        self.messages: list[ChatMessage] = []
        tools = [create_tool_from_function(blocking(function)) for function in self.tools]
        self.stage, hooks = Stage(), None
        generator: Any = (AwaitedGenerator if self.way == "awaited" else ScriptedGenerator)(self.stage, *self.lines)
        if self.way == "generator":
            self.plugin.chat_generator.stage, self.plugin.chat_generator.lines = self.stage, self.lines
            generator = self.plugin
        else:
            hooks = {"before_llm": [self.plugin], "before_tool": [self.plugin.tools]}
        self.agent = Agent(chat_generator=generator, tools=tools, system_prompt=SYSTEM_PROMPT, hooks=hooks)

    @classmethod
    def plugin_of(cls, policies: Any, way: str, **settings: Any) -> Any:
        if way == "generator":
            return AssemblyChatGenerator(ScriptedGenerator(Stage()), policies, **settings)
        return AssemblyHook(policies, **settings)

    @property
    def conversation_id(self) -> str | None:
        return None if self.way == "generator" else self.conversation

    async def ask(self, text: str) -> str:
        messages = [*self.messages, ChatMessage.from_user(text)]
        settings: Any = {"hook_context": {"conversation_id": self.conversation}}
        if self.way == "awaited":
            result = await self.agent.run_async(messages, **settings)
        else:
            result = await asyncio.to_thread(self.agent.run, messages, **settings)
        self.messages = [message for message in result["messages"] if not message.is_from("system")]
        return str(result["last_message"].text)

    async def history(self) -> list[Any]:
        return self.messages
