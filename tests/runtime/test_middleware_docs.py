"""The page about middleware and its examples run as they stand, and the same classes run in AgentScope's agent."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_assembly import Agent, MiddlewareBase
from otel_assembly.errors import ModelCallError
from otel_assembly.telemetry import TracingMiddleware
from otel_assembly.testing import ScriptedModel

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-middleware.md").read_text(encoding="utf-8")


def printed_by(example):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def examples():
    spec = importlib.util.spec_from_file_location("example_middlewares", ROOT / "examples" / "middlewares.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_middlewares_time_limit_prompt_fall_back_and_bring_tools():
    lines = printed_by("middlewares.py")
    assert [re.sub(r"[\d.]+ s$", "… s", line) for line in lines] == [
        "[timing] clerk, large: … s",
        "[fallback] large did not answer, small is asked",
        "[timing] clerk, large: … s",
        "Noted: buy milk.",
        "notes: ['buy milk']",
        "the model was told: Today is Tuesday.",
    ]


def test_the_traced_agents_run_is_one_tree():
    assert printed_by("traced_agent.py") == [
        "It is sunny.",
        "invoke_agent clerk",
        *["  assemble_context", "    apply_policy conversation", "    apply_policy sliding_window", "  chat gpt-4o"],
        "  execute_tool weather",
        *["  assemble_context", "    apply_policy conversation", "    apply_policy sliding_window", "  chat gpt-4o"],
    ]


async def test_the_code_on_the_page_falls_back():
    found: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(block, found)  # our own page
    failing = ScriptedModel(ModelCallError("down", provider="example", model="large"))
    middlewares = [found["ModelFallbackMiddleware"](ScriptedModel("from the other"))]
    assert (await Agent("a", "", failing, middlewares=middlewares).ask("?")).content == "from the other"


def test_the_table_has_every_hook():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == {
        *(name for name in vars(MiddlewareBase) if name.startswith("on_")),
        "list_tools",
    }


async def test_model_calls_at_once_keep_their_distance(examples):
    import asyncio

    limit = examples.RateLimitMiddleware(min_interval=0.1)
    agents = [Agent("a", "", ScriptedModel("yes"), middlewares=[limit]) for _ in range(4)]
    began = time.monotonic()
    await asyncio.gather(*(agent.ask("?") for agent in agents))
    assert time.monotonic() - began >= 0.29


@pytest.fixture
def agentscope_agent():
    """Makes an agent of AgentScope; a model of it gives one answer, or raises it."""
    pytest.importorskip("agentscope")
    from agentscope.agent import Agent as AgentScopeAgent
    from agentscope.credential import CredentialBase
    from agentscope.formatter import OpenAIChatFormatter
    from agentscope.message import TextBlock
    from agentscope.model import ChatModelBase, ChatResponse, ChatUsage
    from agentscope.tool import Toolkit
    from pydantic import BaseModel

    class Model(ChatModelBase):
        class Parameters(BaseModel):
            pass

        def __init__(self, name, answer, *, stream=False):
            super().__init__(CredentialBase(), name, self.Parameters(), stream, 0, 0.0, 4_000)
            self.formatter, self.answer, self.asked = OpenAIChatFormatter(), answer, []

        async def _call_api(self, model_name, messages, tools=None, tool_choice=None, **kwargs):
            self.asked.append(messages)
            if isinstance(self.answer, Exception):
                raise self.answer
            usage = ChatUsage(input_tokens=10, output_tokens=2, time=0.0)
            whole = ChatResponse(content=[TextBlock(text=self.answer)], is_last=True, usage=usage)
            return self._pieces(whole) if self.stream else whole

        async def _pieces(self, whole):
            yield whole

    def make(model, middlewares):
        return AgentScopeAgent(
            name="clerk", system_prompt="Be brief.", model=model, toolkit=Toolkit(), middlewares=middlewares
        )

    make.Model = Model
    return make


async def test_the_same_classes_run_in_agentscopes_agent(examples, agentscope_agent):
    from agentscope.message import UserMsg

    said = []
    large = agentscope_agent.Model("large", ModelCallError("down", provider="example", model="large"))
    small = agentscope_agent.Model("small", "Noted.")
    middlewares = [
        examples.TimingMiddleware(said.append),
        examples.ModelFallbackMiddleware(small),
        examples.RateLimitMiddleware(0.01),
        examples.DynamicContextMiddleware(lambda: "Today is Tuesday."),
        examples.NotebookMiddleware(),
    ]
    answer = await agentscope_agent(large, middlewares).reply(UserMsg(name="user", content="Remind me."))
    assert answer.get_text_content() == "Noted."
    assert [line.split(":")[0] for line in said] == ["[timing] clerk, large"]
    assert "Today is Tuesday." in small.asked[0][0].get_text_content()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_of_agentscopes_agent_is_traced_too(agentscope_agent, assembly_telemetry, stream):
    from agentscope.message import UserMsg

    model = agentscope_agent.Model("large", "Noted.", stream=stream)
    with assembly_telemetry.as_default():
        agent = agentscope_agent(model, [TracingMiddleware()])
        answer = await agent.reply(UserMsg(name="user", content="Remind me."))
    assert answer.get_text_content() == "Noted."
    assert assembly_telemetry.tree() == "invoke_agent clerk\n  chat large"
    chat = assembly_telemetry.span("chat large").attributes
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (10, 2)
    assert ("gen_ai.response.time_to_first_chunk" in chat) == stream
    assert "Noted" not in repr(assembly_telemetry.spans)
