"""Names of speakers are counted if the model's formatter sends them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version

import pytest
from agentscope import formatter as formatters
from agentscope.agent import Agent
from agentscope.credential import AnthropicCredential, OpenAICredential
from agentscope.formatter import DeepSeekChatFormatter, OpenAIMultiAgentFormatter
from agentscope.message import AssistantMsg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentscope.model import AnthropicChatModel, OpenAIChatModel
from packaging.version import Version
from recount import count

from otel_assembly import BudgetPolicy, describe
from otel_assembly.instrumentation.agentscope import AssemblyMiddleware
from otel_assembly.messages.provider_rules import rules_of_client
from otel_assembly.tokens import MessageFraming, TiktokenCounter, TokenMeter

LONG = "Maria-Magdalena-Wolkenstein-Trostburg"


@pytest.fixture
def provider():
    """A server that answers each chat completion, and keeps what it was asked."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            message = {"role": "assistant", "content": f"ok {len(bodies)}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "c", "object": "chat.completion", "created": 0, "model": "gpt-4o", "choices": [choice]}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            data = json.dumps({**answer, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", bodies
    server.shutdown()
    server.server_close()
    thread.join()


def cookbook(body):
    """What a request takes by the OpenAI cookbook, names included."""
    tokens = 3
    for message in body["messages"]:
        texts = [part["text"] for part in message["content"]] if isinstance(message["content"], list) else []
        texts += [message["content"]] if isinstance(message["content"], str) else []
        tokens += 4 + sum(map(count, texts))
        tokens += 1 + count(message["name"]) if "name" in message else 0
    return tokens


async def test_the_names_that_a_formatter_sends_are_within_the_budget(provider):
    base, bodies = provider
    model = OpenAIChatModel(OpenAICredential(api_key="x", base_url=base), "gpt-4o", stream=False)
    budget = BudgetPolicy(window=350, output_reserve=50, step_tokens=0)
    agent = Agent(f"representative-of-{LONG}", "Be brief.", model, middlewares=[AssemblyMiddleware([budget])])
    for turn in range(20):
        await agent.reply(UserMsg(LONG, f"question {turn}"))

    sizes = [cookbook(body) for body in bodies]
    assert any("name" in message for message in bodies[-1]["messages"])
    assert max(sizes) <= 300
    assert max(sizes) > 240  # the budget is used


@pytest.mark.parametrize(
    ("formatter", "names"), [(None, True), (DeepSeekChatFormatter(), False), (OpenAIMultiAgentFormatter(), True)]
)
def test_the_formatter_decides(formatter, names):
    model = OpenAIChatModel(OpenAICredential(api_key="x"), "gpt-4o", formatter=formatter)
    assert rules_of_client(model).names is names


def test_anthropic_is_sent_no_names():
    assert not rules_of_client(AnthropicChatModel(AnthropicCredential(api_key="x"), "claude-sonnet-4-5")).names


NAMED = ("DashScope", "DeepSeek", "Moonshot", "Ollama", "OpenAI", "Volcengine")
FORMATTERS = [found for name in NAMED if (found := getattr(formatters, f"{name}ChatFormatter", None))]


@pytest.mark.parametrize("kind", FORMATTERS)
async def test_the_tools_names_that_a_formatter_sends_are_counted(kind):
    if kind.__name__ == "OllamaChatFormatter" and Version(version("agentscope")) < Version("2.0.10"):
        pytest.skip("this version of AgentScope sends no tool name with a result to Ollama")
    model = OpenAIChatModel(OpenAICredential(api_key="x"), "gpt-4o", formatter=kind())
    counter = TiktokenCounter("o200k_base")
    meter = TokenMeter(counter, MessageFraming().for_client(rules_of_client(model), counter.count))

    async def costs(tool):
        """What a tool's name costs in the formatter's own messages, and what is counted."""
        call = ToolCallBlock(id="c1", name=tool, input="{}")
        result = ToolResultBlock(id="c1", name=tool, output=[TextBlock(text="found")])
        said = [AssistantMsg("bob", [call]), AssistantMsg("bob", [result])]
        messages = await kind().format(said)
        sent = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()]
        results = [message for message in messages if message.get("role") == "tool"]
        sent += [message[key] for message in results for key in ("name", "tool_name") if key in message]
        return sum(map(count, sent)), sum(meter.event(describe(message)) for message in said)

    (sent, counted), (sent_short, counted_short) = await costs(LONG), await costs("x")
    assert counted - counted_short == sent - sent_short > 0
