"""What peers take for the same turn, as they are on the package index, each in a process of its own beside the floor.

Every peer is driven at its reducer, with messages of its own that are ready before the clock starts, and with a counter
that counts as the floor does where it takes one. None of them is run where a turn would take more than a few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.everything import HOME
from benchmarks.harness import Cell, Size, Table, Timing, race
from benchmarks.turns import Engine
from benchmarks.workload import BUDGET, MODEL, SYSTEM, Floor, messages, pairs
from otel_assembly import History
from otel_assembly.recorder import NullRecorder
from otel_assembly.tokens.vocabulary import shared_encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    Message = dict[str, Any]
    #: Makes a peer's messages of ours, and what runs a turn: it is given the new ones.
    Driver = tuple[Callable[[list[Message]], list[Any]], Callable[[list[Any]], Callable[[list[Any]], Any]]]

ROOT = Path(__file__).parents[1]

#: Lengths, and rounds at most.
SIZES: dict[Size, tuple[tuple[int, ...], int]] = {
    "full": ((1_000, 10_000, 100_000), 20),
    "quick": ((1_000, 10_000), 10),
    "tiny": ((60,), 2),
}
WARM_UP = 4
PATIENCE = 3.0
#: Whoever needs more seconds than this for a turn, or twice as many for a first one, is not asked for ten times as long
#: a conversation.
SLOW = 0.3

FLOOR = "floor: tokenise two, scan back"
OURS = "otel-assembly, TokenBudgetPolicy"


# LangChain


def langchain_messages(events: list[Message]) -> list[Any]:
    """LangChain's messages of ours."""
    from langchain_core.messages import convert_to_messages

    return convert_to_messages(events)


def _langchain(counter: Callable[[Any], Any]) -> Driver:
    from langchain_core.messages import trim_messages

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        def turn(new: list[Any]) -> Any:
            held.extend(new)
            return trim_messages(held, max_tokens=BUDGET, token_counter=counter, strategy="last", start_on="human")

        return turn

    return langchain_messages, start


def _langchain_approximate() -> Driver:
    from langchain_core.messages.utils import count_tokens_approximately

    return _langchain(count_tokens_approximately)


def _of_langchain() -> Callable[[Any], int]:
    encode = shared_encoding("o200k_base").encode_ordinary

    def count(message: Any) -> int:
        calls = getattr(message, "tool_calls", ())
        spelled = [text for call in calls for text in (call["name"], json.dumps(call["args"]))]
        return 4 + 3 * len(calls) + sum(len(encode(text)) for text in (message.content, *spelled) if text)

    return count


def _langchain_exact() -> Driver:
    count = _of_langchain()
    return _langchain(lambda some: sum(map(count, some)))


def _langchain_memoised() -> Driver:
    count = _of_langchain()
    known: dict[int, tuple[int, Any]] = {}  # by identity, and the message kept, so that no other gets its identity

    def memoised(some: list[Any]) -> int:
        total = 0
        for message in some:
            found = known.get(id(message))
            if found is None:
                found = known[id(message)] = (count(message), message)
            total += found[0]
        return total

    return _langchain(memoised)


# AG2


def ag2_events(events: list[Message]) -> list[Any]:
    """AG2's events of ours, one a message."""
    from ag2.events import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        TextInput,
        ToolCallEvent,
        ToolCallsEvent,
        ToolResultEvent,
        ToolResultsEvent,
    )
    from ag2.tools import ToolResult

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return ModelRequest([TextInput(text)])
        if message["role"] == "tool":
            name = message.get("name")
            result = ToolResultEvent(parent_id=message["tool_call_id"], name=name, result=ToolResult(text))
            return ToolResultsEvent([result])
        calls = [
            ToolCallEvent(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return ModelResponse(ModelMessage(text), tool_calls=ToolCallsEvent(calls))

    return list(map(of, events))


def _ag2() -> Driver:
    from ag2.policies import ConversationPolicy, TokenBudgetPolicy

    chain = [ConversationPolicy(), TokenBudgetPolicy(BUDGET)]

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        async def turn(new: list[Any]) -> Any:
            held.extend(new)
            prompts, events = [SYSTEM], held
            for policy in chain:
                prompts, events = await policy.apply(prompts, events, None)
            return events

        return turn

    return ag2_events, start


# AutoGen


def _autogen(*, memoised: bool) -> Driver:
    from autogen_core import FunctionCall
    from autogen_core.model_context import TokenLimitedChatCompletionContext
    from autogen_core.models import (
        AssistantMessage,
        FunctionExecutionResult,
        FunctionExecutionResultMessage,
        UserMessage,
    )

    encode = shared_encoding("o200k_base").encode_ordinary

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return UserMessage(content=text, source="user")
        if message["role"] == "tool":
            result = FunctionExecutionResult(content=text, name="lookup", call_id=message["tool_call_id"])
            return FunctionExecutionResultMessage(content=[result])
        calls = [
            FunctionCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return AssistantMessage(content=calls or text, source="assistant")

    def count(message: Any) -> int:
        if isinstance(message.content, str):
            return 4 + len(encode(message.content))
        return 4 + sum(
            len(encode(one.content)) if hasattr(one, "content") else 3 + len(encode(one.name + one.arguments))
            for one in message.content
        )

    known: dict[int, int] = {}

    class Client:
        """What the context asks of its model client."""

        def count_tokens(self, some: Any, *, tools: Any = ()) -> int:
            if not memoised:
                return sum(map(count, some))
            return sum(known.get(id(one)) or known.setdefault(id(one), count(one)) for one in some)

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        client: Any = Client()
        context = TokenLimitedChatCompletionContext(client, token_limit=BUDGET, initial_messages=held)

        async def turn(new: list[Any]) -> Any:
            for message in new:
                await context.add_message(message)
            return await context.get_messages()

        return turn

    return lambda events: list(map(of, events)), start


# LlamaIndex


def _llama_index() -> Driver:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.memory import ChatMemoryBuffer

    encode = shared_encoding("o200k_base").encode_ordinary

    def of(message: Message) -> Any:
        text = message.get("content") or json.dumps(message.get("tool_calls"))
        return ChatMessage(role=message["role"], content=text)

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        buffer = ChatMemoryBuffer.from_defaults(chat_history=held, token_limit=BUDGET, tokenizer_fn=encode)

        def turn(new: list[Any]) -> Any:
            for message in new:
                buffer.put(message)
            return buffer.get()

        return turn

    return lambda events: list(map(of, events)), start


# pydantic-ai-harness


def _pydantic(*, exact: bool) -> Driver:
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.tools import RunContext
    from pydantic_ai.usage import RunUsage
    from pydantic_ai_harness.compaction import SlidingWindowCompaction

    encode = shared_encoding("o200k_base").encode_ordinary

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return ModelRequest(parts=[UserPromptPart(text)])
        if message["role"] == "tool":
            return ModelRequest(parts=[ToolReturnPart("lookup", text, message["tool_call_id"])])
        calls = [
            ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
            for call in message.get("tool_calls") or []
        ]
        return ModelResponse(parts=[*calls, *([TextPart(text)] if text else [])])

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        strategy: Any = SlidingWindowCompaction(
            max_tokens=BUDGET,
            keep_tokens=BUDGET * 9 // 10,
            tokenizer=(lambda text: len(encode(text))) if exact else None,
        )
        model = TestModel()
        context: Any = RunContext(deps=None, model=model, usage=RunUsage(), messages=held)

        async def turn(new: list[Any]) -> Any:
            context.messages.extend(new)
            request = ModelRequestContext(
                model=model,
                messages=context.messages,
                model_settings=None,
                model_request_parameters=ModelRequestParameters(),
            )
            return await strategy.before_model_request(context, request)

        return turn

    return lambda events: list(map(of, events)), start


# agent-framework


def _agent_framework(*, exact: bool) -> Driver:
    from agent_framework import Content, Message
    from agent_framework._compaction import CharacterEstimatorTokenizer, TruncationStrategy, apply_compaction

    encode = shared_encoding("o200k_base").encode_ordinary

    class Exact:
        """Counts the text that the framework gives it."""

        def count_tokens(self, text: str) -> int:
            return len(encode(text))

    def of(message: dict[str, Any]) -> Any:
        text = message.get("content") or ""
        if message["role"] == "tool":
            return Message("tool", [Content.from_function_result(message["tool_call_id"], result=text)])
        calls = [
            Content.from_function_call(call["id"], call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        return Message(message["role"], calls or [text])

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        tokenizer: Any = Exact() if exact else CharacterEstimatorTokenizer()
        strategy = TruncationStrategy(max_n=BUDGET, compact_to=BUDGET, tokenizer=tokenizer)

        async def turn(new: list[Any]) -> Any:
            held.extend(new)
            return await apply_compaction(held, strategy=strategy, tokenizer=tokenizer)

        return turn

    return lambda events: list(map(of, events)), start


# Haystack


def _haystack(*, exact: bool) -> Driver:
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack.hooks.compaction import SlidingWindowCompactor
    from haystack.token_counters import ApproximateTokenCounter, TiktokenCounter

    def of(message: Message) -> Any:
        text = message.get("content") or ""
        if message["role"] == "user":
            return ChatMessage.from_user(text)
        if message["role"] == "tool":
            origin = ToolCall(tool_name="lookup", arguments={}, id=message["tool_call_id"])
            return ChatMessage.from_tool(text, origin)
        calls = [
            ToolCall(
                tool_name=call["function"]["name"],
                arguments=json.loads(call["function"]["arguments"]),
                id=call["id"],
            )
            for call in message.get("tool_calls") or []
        ]
        return ChatMessage.from_assistant(text or None, tool_calls=calls)

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        counter = TiktokenCounter() if exact else ApproximateTokenCounter()
        compactor = SlidingWindowCompactor()
        kept = held

        def turn(new: list[Any]) -> Any:
            nonlocal kept
            kept = [*kept, *new]
            kept = compactor.compact(kept, BUDGET, counter) or kept
            return kept

        return turn

    return lambda events: list(map(of, events)), start


# AgentScope


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
            raise NotImplementedError

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


# cendor-contextkit and promptbudget


def _plain(message: Message) -> Message:
    text = message.get("content") or json.dumps(message.get("tool_calls"))
    return {"role": message["role"], "content": text}


def _contextkit() -> Driver:
    from cendor.contextkit import Block, Context

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        def turn(new: list[Any]) -> Any:
            held.extend(new)
            context = Context(budget_tokens=BUDGET, model=MODEL)
            context.add(Block(SYSTEM, priority=10, pin=True, role="system"))
            context.add(Block(messages=held))
            return context.assemble()

        return turn

    return lambda events: list(map(_plain, events)), start


def _promptbudget() -> Driver:
    from promptbudget import Message, pack_chat

    encode = shared_encoding("o200k_base").encode_ordinary

    def start(held: list[Any]) -> Callable[[list[Any]], Any]:
        def turn(new: list[Any]) -> Any:
            held.extend(new)
            return pack_chat(
                held, BUDGET, system=SYSTEM, tokenizer=lambda text: len(encode(text)), tokens_per_message=4
            )

        return turn

    return lambda events: [Message(**_plain(event)) for event in events], start


@dataclass(frozen=True)
class Peer:
    """A peer, in one of the ways it can be run.

    Attributes:
        name: What it is called in the table.
        package: Its name on the package index.
        driver: What runs it.
        counts: How it counts.
        keeps: Whether the conversation is whole after a turn, or has lost what was cut.
    """

    name: str
    package: str
    driver: Callable[[], Driver]
    counts: str
    keeps: str = "kept"

    @property
    def exact_and_keeps(self) -> bool:
        """Whether it does what the floor does."""
        return self.counts == "exact" and self.keeps == "kept"


PEERS = (
    Peer("LangChain trim_messages", "langchain-core", _langchain_approximate, "characters"),
    Peer("LangChain trim_messages, exact", "langchain-core", _langchain_exact, "exact"),
    Peer("LangChain trim_messages, exact, memoised by its user", "langchain-core", _langchain_memoised, "exact"),
    Peer("AG2 ConversationPolicy, TokenBudgetPolicy", "ag2", _ag2, "characters"),
    Peer("AutoGen TokenLimited, exact", "autogen-core", lambda: _autogen(memoised=False), "exact"),
    Peer("AutoGen TokenLimited, memoised by its user", "autogen-core", lambda: _autogen(memoised=True), "exact"),
    Peer("LlamaIndex ChatMemoryBuffer", "llama-index-core", _llama_index, "exact"),
    Peer(
        "pydantic-ai-harness SlidingWindow",
        "pydantic-ai-harness",
        lambda: _pydantic(exact=False),
        "characters",
        "replaced",
    ),
    Peer(
        "pydantic-ai-harness SlidingWindow, exact",
        "pydantic-ai-harness",
        lambda: _pydantic(exact=True),
        "exact",
        "replaced",
    ),
    Peer("agent-framework Truncation", "agent-framework-core", lambda: _agent_framework(exact=False), "characters"),
    Peer("agent-framework Truncation, exact", "agent-framework-core", lambda: _agent_framework(exact=True), "exact"),
    Peer("Haystack SlidingWindow", "haystack-ai", lambda: _haystack(exact=False), "characters", "replaced"),
    Peer("Haystack SlidingWindow, exact", "haystack-ai", lambda: _haystack(exact=True), "exact", "replaced"),
    Peer("AgentScope, the check alone", "agentscope", _agentscope, "characters"),
    Peer("cendor-contextkit", "cendor-contextkit", _contextkit, "exact"),
    Peer("promptbudget pack_chat", "promptbudget", _promptbudget, "exact"),
)


async def measure(peer: Peer, size: Size) -> dict[str, list[Any]]:
    """One peer at every length: its first turn, its steady ones beside the floor, and how many of ours they take."""
    convert, start = peer.driver()
    lengths, rounds = SIZES[size]
    await race({peer.name: start(convert(messages(8)))}, 1, before=lambda name, one: convert(messages(2)))  # imports
    found: dict[str, list[Any]] = {"first": [], "steady": [], "ours": []}
    for length in lengths:
        first, steady, ours = await _at(peer, convert, start(convert(messages(length, seed=8))), length, rounds)
        found["first"].append(_plain_timing(first))
        found["steady"].append(_plain_timing(steady))
        both = min(len(steady.taken), len(ours.taken)) if steady else 0
        found["ours"].append(steady and Timing(steady.taken[-both:], ours.taken[-both:]).ratio)
        if steady is None or steady.median > SLOW or first.median > 2 * SLOW:
            break
    return found


async def _at(
    peer: Peer,
    convert: Callable[[list[Message]], list[Any]],
    turn: Callable[[list[Any]], Any],
    length: int,
    rounds: int,
) -> tuple[Timing, Timing | None, Timing]:
    events = messages(length)
    runners = {FLOOR: Floor(events).turn, OURS: Engine(History(events), NullRecorder()).turn, peer.name: turn}
    new: dict[str, list[Any]] = {name: pairs(name, 1 + WARM_UP + rounds) for name in runners}
    new[peer.name] = list(map(convert, new[peer.name]))
    gc.collect()
    gc.freeze()
    first = await race(runners, 1, before=lambda name, one: new[name][0])
    steady = await race(
        runners,
        rounds,
        floor=FLOOR,
        before=lambda name, one: new[name][1 + one],
        warm_up=WARM_UP,
        patience=PATIENCE,
    )
    gc.unfreeze()
    return first[peer.name], steady.get(peer.name), steady[OURS]


def _plain_timing(timing: Timing | None) -> dict[str, Any] | None:
    return timing and {"taken": list(timing.taken), "beside": list(timing.beside)}


def _cell(plain: dict[str, Any] | None) -> Timing | None:
    return plain and Timing(plain["taken"], plain["beside"])


def vocabulary_cache(folder: Path) -> Path:
    """A folder in which tiktoken finds the bundled vocabularies, for the peers that ask it themselves."""
    import hashlib
    import lzma

    import otel_assembly.tokens

    bundled = Path(otel_assembly.tokens.__file__).parent / "vocabularies"
    for file in bundled.glob("*.tiktoken.xz"):
        address = f"https://openaipublic.blob.core.windows.net/encodings/{file.name.removesuffix('.xz')}"
        (folder / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()).write_bytes(
            lzma.decompress(file.read_bytes())
        )
    return folder


def _asked(at: int, size: Size, python: str, folder: str) -> dict[str, Any]:
    """What the process of one peer says: its numbers, or why there are none."""
    quiet = {"OTEL_SDK_DISABLED": "true", "HAYSTACK_TELEMETRY_ENABLED": "false", "PYTHONWARNINGS": "ignore"}
    command = [python, "-m", "benchmarks.peers", str(at), f"--size={size}"]
    environment = {**os.environ, **quiet, "TIKTOKEN_CACHE_DIR": folder, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return {"missing": said[-1][:120] if said else f"ended with {done.returncode}"}


def _environments() -> dict[str, dict[str, str]]:
    """Where each package is, or why it is nowhere, as `python -m benchmarks` left it; else all that is here."""
    file = HOME / "environments.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


async def report(size: Size) -> list[Table]:
    """A row for each peer."""
    lengths, _ = SIZES[size]
    columns = [f"{length:,}" for length in lengths]
    steady = Table(
        "peers",
        f"peers: a turn that added two messages, budget {BUDGET:,} tokens: median (quartiles), its ratio to the floor; "
        "and how many times ours it takes, side by side",
        ["peer", "counts", "history", *columns, *(f"÷ ours, {column}" for column in columns)],
    )
    first = Table("peers-first", "peers: the first turn", ["peer", *columns])
    places = _environments()
    with tempfile.TemporaryDirectory() as folder:
        vocabulary_cache(Path(folder))
        for at, peer in enumerate(PEERS):
            place = places.get(peer.package, {})
            reason = place.get("reason")
            said = {"missing": reason} if reason else _asked(at, size, place.get("python", sys.executable), folder)
            name = f"{peer.name} ({peer.package} {said['version']})" if "version" in said else peer.name
            if "missing" in said:
                steady.rows[name] = [peer.counts, peer.keeps, f"not measured: {said['missing']}"]
                continue
            cells: list[Cell] = [*map(_cell, said["steady"])]
            over: list[Cell] = [None if one is None else round(one, 1) for one in said["ours"]]
            padding: list[Cell] = [None] * (len(lengths) - len(cells))
            steady.rows[name] = [peer.counts, peer.keeps, *cells, *padding, *over, *padding]
            first.rows[name] = [*map(_cell, said["first"]), *padding]
    steady.notes += [
        "`exact`: as tiktoken counts; `characters`: estimated from their number.",
        "`replaced`: what was cut is gone for good, so that a turn reads what is left, and not the conversation.",
        f"`–`: more than {PATIENCE:.0f} s a turn; or, with a tenth of the messages, {SLOW} s (a first one {2 * SLOW}).",
        "AgentScope is measured where it finds nothing to compress: what it compresses, it asks a model for.",
    ]
    return [steady, first]


def main() -> int:
    """One peer, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", type=int)
    parser.add_argument("--size", default="full")
    chosen = parser.parse_args()
    peer = PEERS[chosen.peer]
    warnings.simplefilter("ignore")
    try:
        found: dict[str, Any] = {"version": version(peer.package)}
    except PackageNotFoundError:
        print(json.dumps({"missing": f"{peer.package} is not installed here"}))
        return 0
    found |= asyncio.run(measure(peer, chosen.size))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
