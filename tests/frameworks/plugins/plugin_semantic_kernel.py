from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from plugin_talks import SYSTEM_PROMPT, BaseTalk
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.filters import FilterTypes
from semantic_kernel.functions import kernel_function
from semantic_kernel_models import ScriptedService, Stage

from otel_assembly.instrumentation.semantic_kernel import AssemblyChatCompletion

#: The talk that asks: talks with one plug-in also share its service.
ASKING: ContextVar[Talk] = ContextVar("asking")


class SharedService(ScriptedService):
    def _next(self, history: Any, settings: Any) -> Any:
        talk = ASKING.get()
        self.stage, self.lines = talk.stage, talk.script
        try:
            return super()._next(history, settings)
        finally:
            talk.script = self.lines  # the service's own copy, without the line


class Talk(BaseTalk):
    turn_type = "ChatHistory"
    summary = BaseTalk.summary[0], "user"

    def start(self) -> None:
        self.thread = ChatHistoryAgentThread(thread_id=self.conversation)
        self.stage, self.script = Stage(), [self._line(line) for line in self.lines]
        kernel = Kernel()
        kernel.add_functions("Tools", [kernel_function(name=tool.__name__)(tool) for tool in self.tools])
        kernel.add_filter(FilterTypes.AUTO_FUNCTION_INVOCATION, self.plugin.tools)
        self.agent = ChatCompletionAgent(
            service=self.plugin,
            kernel=kernel,
            name="bob",
            instructions=SYSTEM_PROMPT,
            function_choice_behavior=FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=10),
        )

    def _line(self, line: Any) -> Any:
        if isinstance(line, BaseException):
            return line
        lines = [text.replace("call:", "call:Tools-") for text in (line if isinstance(line, list) else [line])]
        return lines if isinstance(line, list) else lines[0]

    @classmethod
    def plugin_of(cls, policies: Any, way: str, **settings: Any) -> Any:
        return AssemblyChatCompletion(SharedService(Stage()), policies, **settings)

    async def ask(self, text: str) -> str:
        ASKING.set(self)
        run = self.agent.invoke_stream if self.way == "streamed" else self.agent.invoke
        return "".join([str(message) async for message in run(text, thread=self.thread)])

    @property
    def context(self) -> Any:
        return self.plugin.context_of(self.thread)

    async def history(self) -> list[Any]:
        return [message async for message in self.thread.get_messages()]
