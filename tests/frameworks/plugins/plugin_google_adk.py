from __future__ import annotations

from typing import Any

from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google_adk_models import ScriptedLlm, Stage
from google_adk_models import Talk as AppTalk
from plugin_talks import SYSTEM_PROMPT, BaseTalk, Call

from otel_assembly.instrumentation.google_adk import AssemblyPlugin

#: What ADK adds to each agent's instruction.
IDENTITY = '\n\nYou are an agent. Your internal name is "bob".'


class Talk(BaseTalk):
    plugin_type, turn_type = AssemblyPlugin, "Context"

    def start(self) -> None:
        self.stage, self.service = Stage(), InMemorySessionService()
        model = ScriptedLlm(self.stage, *self.lines)
        bob = Agent(name="bob", model=model, tools=list(self.tools), instruction=SYSTEM_PROMPT)
        self.app = AppTalk(bob, session=self.conversation, service=self.service, plugins=[self.plugin])
        self.session = self.service.create_session_sync(app_name="talk", user_id="guest", session_id=self.conversation)

    async def ask(self, text: str) -> str:
        mode = StreamingMode.SSE if self.way == "streamed" else StreamingMode.NONE
        answers = await self.app.say(text, run_config=RunConfig(streaming_mode=mode))
        return answers[-1].removeprefix("bob: ")

    @property
    def calls(self) -> list[Call]:
        return [
            Call([prompt.replace(IDENTITY, "") for prompt in received.prompts], received.events, received.tokens)
            for received in self.stage.received
        ]

    @property
    def context(self) -> Any:
        return self.plugin.context_of(self.session)

    async def history(self) -> list[Any]:
        return list(await self.app.events())
