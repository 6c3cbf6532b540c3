from __future__ import annotations

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_calls import Scripted, as_read, tokens_of, wants
from plugin_talks import SYSTEM_PROMPT, BaseTalk, Call

from otel_assembly.instrumentation.autogen import AssembledChatCompletionContext


class Talk(BaseTalk):
    plugin_type, turn_type = AssembledChatCompletionContext, "AssembledChatCompletionContext"
    conversation_id = None  # an AutoGen agent has no id of its conversation
    model = None

    def start(self) -> None:
        self.log: list[Any] = []
        answers = [*map(self._answer, self.lines), *[self._answer(self.lines[-1])] * 20]
        self.agent = AssistantAgent(
            "bob",
            Scripted(self.log, "bob", *answers),
            tools=list(self.tools),
            system_message=SYSTEM_PROMPT,
            model_context=self.plugin,
            max_tool_iterations=10,
            model_client_stream=self.way == "streamed",
        )

    def _answer(self, line: Any) -> Any:
        lines = line if isinstance(line, list) else [line]
        if isinstance(line, BaseException) or not lines[0].startswith("call:"):
            return line
        return wants(*((line.removeprefix("call:"), "{}") for line in lines))

    async def ask(self, text: str) -> str:
        if self.way == "streamed":
            parts = [part async for part in self.agent.run_stream(task=text)]
            return parts[-1].messages[-1].content
        return (await self.agent.run(task=text)).messages[-1].content

    @property
    def calls(self) -> list[Call]:
        calls = []
        for received in self.log:
            events = [*map(as_read, received.messages)]
            prompts = [event.texts[0] for event in events if event.kind == "system"]
            calls.append(Call(prompts, events[len(prompts) :], tokens_of(received)))
        return calls

    async def history(self) -> list[Any]:
        return (await self.plugin.save_state())["messages"]
