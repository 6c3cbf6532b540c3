from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():  # older releases cause warnings of newer releases of pydantic
    warnings.simplefilter("ignore")
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.memory import ChatMemoryBuffer, Memory

from llama_index_models import Scripted, Stage, read
from plugin_talks import SYSTEM_PROMPT, BaseTalk, Call

from otel_assembly.instrumentation.llama_index import AssemblyMemory


class Talk(BaseTalk):
    turn_type = "AssemblyMemory"

    def start(self) -> None:
        self.stage = Stage()
        self.agent = FunctionAgent(
            name="bob",
            llm=self.plugin.llm(Scripted(self.stage, *self.lines)),
            tools=list(self.tools),
            system_prompt=SYSTEM_PROMPT,
            streaming=self.way == "streamed",
        )

    @classmethod
    def plugin_of(cls, policies: Any, way: str, **settings: Any) -> Any:
        memory = Memory.from_defaults(session_id="one") if way == "streamed" else ChatMemoryBuffer.from_defaults()
        return AssemblyMemory(policies, memory, **settings)

    async def ask(self, text: str) -> str:
        return str(await self.agent.run(text, memory=self.plugin))

    @property
    def calls(self) -> list[Call]:
        calls = []
        for received in self.stage.received:
            events = [read(message) for message in received.messages]
            prompts = next(at for at, event in enumerate(events) if event.kind != "system")
            texts = ["\n".join(event.texts) for event in events[:prompts]]
            calls.append(Call(texts, events[prompts:], received.tokens(prompts)))
        return calls

    @property
    def context(self) -> Any:
        return self.plugin.context

    @property
    def conversation_id(self) -> str | None:
        return self.conversation if self.way == "streamed" else None  # a buffer has no id

    async def history(self) -> list[Any]:
        return self.plugin.get_all()
