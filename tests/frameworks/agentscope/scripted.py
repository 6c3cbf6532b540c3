"""AgentScope agents that need no network: their model says what it was told to say."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager

import agentscope.agent
from agentscope import __version__
from agentscope.agent import Agent, ContextConfig
from agentscope.credential import CredentialBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import TextBlock, ToolCallBlock, UserMsg
from agentscope.model import ChatModelBase, ChatResponse, ChatUsage
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, ToolChunk, Toolkit
from packaging.version import Version
from pydantic import BaseModel

from otel_assembly.instrumentation import instrument, uninstrument

#: Before it AgentScope limits no images, injects no state, and raises where a summary fails.
LIMITS_IMAGES = Version(__version__) >= Version("2.0.7")
FALLS_BACK = "compression_fallback_to_truncation" in ContextConfig.model_fields

SUMMARY = {
    "task_overview": "Book a flight for order 4711.",
    "current_state": "Nothing booked yet.",
    "important_discoveries": "The fare is refundable.",
    "next_steps": "Book it.",
    "context_to_preserve": "The user wants a window seat.",
}


class ScriptedModel(ChatModelBase):
    """Says its lines one after the other, then the last one again; a line is a text, or a tool's name.

    `summary` is what it answers to a summariser's prompt: a dict, an exception, or a function that returns one.
    """

    class Parameters(BaseModel):
        pass

    def __init__(self, lines=("Done.",), *, summary=None, stream=False, context_size=4_000, name="gpt-4o"):
        super().__init__(CredentialBase(), name, self.Parameters(), stream, 0, 0.0, context_size)
        self.formatter = OpenAIChatFormatter()
        self.lines = list(lines)
        self.summary = self._next_summary if summary is None else summary
        self.asked = []
        self.summaries = 0
        self.calls = 0

    async def _call_api(self, model_name, messages, tools=None, tool_choice=None, **kwargs):
        if tools and tools[0]["function"]["name"] == "generate_structured_output":
            return await self._summarise(messages)
        self.asked.append([message.model_copy(deep=True) for message in messages])
        line = self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]
        block = TextBlock(text=line)
        if line.startswith("call:"):
            self.calls += 1
            block = ToolCallBlock(id=f"call-{self.calls}", name=line.removeprefix("call:"), input="{}")
        return self._stream(block) if self.stream else ChatResponse(content=[block], is_last=True, usage=usage())

    async def _stream(self, block):
        yield ChatResponse(content=[block], is_last=False, usage=usage())

    def _next_summary(self):
        return {**SUMMARY, "current_state": f"{self.summaries} summaries so far."}

    async def _summarise(self, messages):
        self.summaries += 1
        answer = self.summary() if callable(self.summary) else self.summary
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        block = ToolCallBlock(id="summary", name="generate_structured_output", input=json.dumps(answer))
        response = ChatResponse(content=[block], is_last=True, usage=usage())
        if not self.stream:
            return response

        async def chunks():
            yield response

        return chunks()


def usage():
    return ChatUsage(input_tokens=10, output_tokens=2, time=0.0)


class _Allowed(FunctionTool):
    """A tool that may be called without asking anybody; older versions do not let one say so."""

    async def check_permissions(self, *args, **kwargs):
        return PermissionDecision(behavior=PermissionBehavior.ALLOW, message="always allowed")


def tool(function):
    """A function as a tool that may be called without asking anybody."""
    return _Allowed(function)


def interrupted(answer):
    """Whether a reply's last message says that the reply was interrupted; older versions say it by its text alone."""
    reason = getattr(answer, "finished_reason", "interrupted")
    return str(getattr(reason, "value", reason)) == "interrupted" and answer.get_text_content() != "Done."


def agent(
    model,
    *,
    name="Friday",
    prompt="You are a travel agent.",
    tools=(),
    middlewares=(),
    state=None,
    offloader=None,
    **config,
):
    """An agent with this model; settings of its context by their names."""
    injection = getattr(agentscope.agent, "InjectionConfig", None)
    return Agent(
        name=name,
        system_prompt=prompt,
        model=model,
        toolkit=Toolkit(tools=list(tools)),
        middlewares=list(middlewares),
        state=state,
        offloader=offloader,
        context_config=ContextConfig(**config),
        **({} if injection is None else {"injection_config": injection(inject_runtime_state=False)}),
    )


def words(count, word="fare"):
    """A text of about so many tokens of AgentScope's, which are four bytes each."""
    return " ".join([word[:3]] * count)


async def talk(someone, *texts):
    """Ask one thing after the other; the last answer is returned."""
    answer = None
    for text in texts:
        answer = await someone.reply(UserMsg("user", text))
    return answer


@contextmanager
def instrumented(telemetry):
    """AgentScope instrumented, and not any more."""
    with telemetry.as_default():
        instrument("agentscope")
        try:
            yield
        finally:
            uninstrument("agentscope")


__all__ = [
    "FALLS_BACK",
    "LIMITS_IMAGES",
    "SUMMARY",
    "ScriptedModel",
    "ToolChunk",
    "agent",
    "instrumented",
    "talk",
    "tool",
    "words",
]
