"""AgentScope's check whether to compress; what it compresses, it asks a model for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Peer
from benchmarks.workload import MODEL, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.peer import Driver, Message


def _agentscope() -> Driver:
    from agentscope.agent import Agent, ContextConfig
    from agentscope.credential import CredentialBase
    from agentscope.formatter import OpenAIChatFormatter
    from agentscope.message import AssistantMsg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
    from agentscope.model import ChatModelBase
    from agentscope.tool import Toolkit
    from pydantic import BaseModel

    class Model(ChatModelBase):
        """A model with so large a window that nothing is ever compressed: what is measured is the check."""

        class Parameters(BaseModel):
            """None."""

        def __init__(self) -> None:
            super().__init__(CredentialBase(), MODEL, self.Parameters(), False, 0, 0.0, 10**12)
            self.formatter = OpenAIChatFormatter()

        async def _call_api(self, *args: Any, **named: Any) -> Any:
            raise AssertionError("nothing is compressed here, so that no model is asked")

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return UserMsg("user", text)
        if message["role"] == "tool":
            block: Any = ToolResultBlock(id=message["tool_call_id"], name="lookup", output=text, state="success")
            return AssistantMsg("Friday", [block])
        calls: list[Any] = [
            ToolCallBlock(id=call["id"], name=call["function"]["name"], input=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return AssistantMsg("Friday", calls or [TextBlock(text=text)])

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        agent = Agent(
            name="Friday",
            system_prompt=SYSTEM,
            model=Model(),
            toolkit=Toolkit(tools=[]),
            context_config=ContextConfig(),
        )
        agent.state.context.extend(held)

        async def turn(new: list[Any]) -> Any:
            agent.state.context.extend(new)
            await agent.compress_context()

        return turn

    return lambda events: list(map(of, events)), start


PEERS = (Peer("AgentScope, the check alone", "agentscope", _agentscope, "characters"),)
