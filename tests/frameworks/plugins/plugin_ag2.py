from __future__ import annotations

from importlib.metadata import version
from typing import Any

from ag2_package import PACKAGE, MemoryStream, ag2, call
from ag2_received import Log
from packaging.version import Version
from plugin_talks import SYSTEM_PROMPT, BaseTalk, Call, halted

from otel_assembly.instrumentation.ag2 import AssembledPolicy

VERSION = Version(version("ag2"))
#: Before 1.0, AG2 does not pass the agent's tools to policies.
PARAMETERS = {"type": "object", "properties": {}} if Version("0.14") <= VERSION else {"type": "null"}
LOOK = {"name": "look", "description": "Look something up.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": LOOK}]


class Talk(BaseTalk):
    turn_type = "ConversationContext"
    answers_when_halted = True
    keeps_equal_messages = Version("0.13") <= VERSION
    observed = ("request", "response", "tool_call", "tool_call", "tool_result", "tool_result", "response", "request")
    #: Observers see a response with the next assembly.
    tools_before_halt = 2
    summary = "[Summary of earlier conversation]", "summary"

    def start(self) -> None:
        self.stage, self.stream, self.requested = Log(), MemoryStream(), 0
        model = self.stage.model(*map(self._answer, self.lines), *[self.lines[-1]] * 20)
        self.agent = ag2.Agent("bob", SYSTEM_PROMPT, config=model, assembly=[self.plugin], tools=list(self.tools))

    def _answer(self, line: Any) -> Any:
        lines = line if isinstance(line, list) else [line]
        if isinstance(line, BaseException) or not lines[0].startswith("call:"):
            return line
        self.requested += len(lines)
        return [call(line.removeprefix("call:"), id=f"c{self.requested + at}") for at, line in enumerate(lines)]

    @classmethod
    def plugin_of(cls, policies: Any, way: str, **settings: Any) -> Any:
        return AssembledPolicy(policies, tools=None if PACKAGE == "ag2" else TOOLS, **settings)

    async def ask(self, text: str) -> str:
        reply = await self.agent.ask(text, stream=self.stream)
        if reply.body.startswith("HALTED: "):
            raise halted(reply.body)
        return reply.body

    @property
    def calls(self) -> list[Call]:
        return [Call(received.prompts, received.events, received.tokens) for received in self.stage.calls]

    @property
    def context(self) -> Any:
        return self.plugin.context_of(self.stream)

    @property
    def conversation_id(self) -> str | None:
        return str(self.stream.id)

    async def history(self) -> list[Any]:
        return list(await self.stream.history.get_events())
