"""Anthropic, Bedrock and Gemini refuse a prompt that does not start with a user's request: no reducer sends one."""

from __future__ import annotations

import pytest

from otel_assembly import (
    Agent,
    Assembler,
    Block,
    BudgetPolicy,
    Context,
    ContextAssembler,
    ContextOverflowError,
    ConversationPolicy,
    HeadAndTailPolicy,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    allocate,
)
from otel_assembly.budget import order_for_attention_and_cache
from otel_assembly.context_assembler import Task
from otel_assembly.testing import ScriptedModel

WORDS = "word " * 8


def openai(role, text):
    return {"role": role, "content": text}


def anthropic(role, text=None, call=None, result=None):
    parts = [{"type": "text", "text": text}] if text else []
    if call:
        parts.append({"type": "tool_use", "id": call, "name": "look", "input": {}})
    if result:
        parts.append({"type": "tool_result", "tool_use_id": result, "content": WORDS})
    return {"role": role, "content": parts}


def bedrock(role, text=None, call=None, result=None):
    parts = [{"text": text}] if text else []
    if call:
        parts.append({"toolUse": {"toolUseId": call, "name": "look", "input": {}}})
    if result:
        parts.append({"toolResult": {"toolUseId": result, "content": [{"text": WORDS}]}})
    return {"role": role, "content": parts}


def gemini(role, text=None, call=None, result=None):
    parts = [{"text": text}] if text else []
    if call:
        parts.append({"functionCall": {"name": call, "args": {}}})
    if result:
        parts.append({"functionResponse": {"name": result, "response": {"output": WORDS}}})
    return {"role": "model" if role == "assistant" else role, "parts": parts}


FORMS = [anthropic, bedrock, gemini]


def talk(form, turns=6):
    """Turns of a question, a tool call, its result, and an answer."""
    made = []
    for turn in range(turns):
        made += [
            form("user", f"Question {turn}? {WORDS}"),
            form("assistant", f"I look. {WORDS}", call=f"c{turn}"),
            form("user", result=f"c{turn}"),
            form("assistant", f"Answer {turn}. {WORDS}"),
        ]
    return made


def chains():
    yield [SlidingWindowPolicy(3)]
    yield [SlidingWindowPolicy(6, stride=2)]
    yield [HeadAndTailPolicy(1, 3)]
    yield [HeadAndTailPolicy(2, 2)]
    yield [TokenBudgetPolicy(150, on_overflow="drop")]
    yield [TokenBudgetPolicy(190, transparent=True, on_overflow="drop")]
    yield [BudgetPolicy(200, 20, step_tokens=0, on_overflow="drop")]
    yield [BudgetPolicy(220, 20, step_tokens=40, on_overflow="drop")]
    yield [BudgetPolicy(260, 20, compact="extractive", summary_tokens=40, on_overflow="drop")]
    yield [ConversationPolicy(), SlidingWindowPolicy(5), TokenBudgetPolicy(160, on_overflow="drop")]
    yield [KeepsTheNewest(5), TokenBudgetPolicy(10_000)]


class KeepsTheNewest:
    """A user's policy, which cuts anywhere."""

    name = "keeps_the_newest"

    def __init__(self, most):
        self.most = most

    async def apply(self, prompts, events, context):
        return prompts, events[-self.most :]


def is_request(message):
    parts = message.get("parts") or message["content"]
    if isinstance(parts, str):
        return message["role"] == "user"
    return message["role"] == "user" and not any(
        "toolResult" in part or "functionResponse" in part or part.get("type") == "tool_result" for part in parts
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("chain", list(chains()), ids=lambda chain: "-".join(policy.name for policy in chain))
async def test_a_prompt_starts_with_a_user_request(form, chain):
    messages = talk(form)
    for end in range(1, len(messages) + 1):
        try:
            assembly = await Assembler(chain).assemble(["Be brief."], messages[:end])
        except ContextOverflowError:
            continue
        sent = list(assembly.events)
        assert is_request(sent[0]), f"of {end} messages, the prompt starts with {sent[0]}"
        newest = max(at for at, message in enumerate(messages[:end]) if is_request(message))
        assert isinstance(chain[0], KeepsTheNewest) or messages[newest] in sent
        again = await Assembler(chain[-1:]).assemble(["Be brief."], sent)
        assert is_request(next(iter(again.events)))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
async def test_what_came_before_the_first_user_message_has_a_reason(form):
    messages = talk(form, 3)
    assembly = await Assembler([SlidingWindowPolicy(7)]).assemble([], messages)
    assert list(assembly.events) == messages[8:]
    reasons = [decision.reason for decision in assembly.decisions][:8]
    assert reasons == ["outside_window"] * 5 + ["before_user_message"] * 3


async def test_openais_messages_may_start_with_any_role():
    messages = [openai(role, WORDS) for role in ("user", "assistant") * 3]
    assembly = await Assembler([SlidingWindowPolicy(5)]).assemble([], messages)
    assert list(assembly.events) == messages[1:]


@pytest.mark.parametrize(
    ("model", "starts_with"),
    [
        ("claude-sonnet-4-5", "user"),
        ("vertex_ai/claude-opus-4-1@20250805", "user"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "user"),
        ("amazon.nova-pro-v1:0", "user"),
        ("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2", "user"),
        ("gemini-2.5-flash", "user"),
        ("models/gemini-2.0-flash", "user"),
        ("gpt-4o", "assistant"),
        ("qwen2.5-coder", "assistant"),
        (None, "assistant"),
    ],
)
async def test_the_models_name_states_the_provider_of_plain_texts(model, starts_with):
    texts = [{"role": role, "content": "words"} for role in ("user", "assistant", "user", "assistant", "user")]
    assembly = await Assembler([SlidingWindowPolicy(4)]).assemble([], texts, Context(model=model))
    assert next(iter(assembly.events))["role"] == starts_with
    by_assembler = await Assembler([SlidingWindowPolicy(4)], model=model).assemble([], texts)
    assert next(iter(by_assembler.events))["role"] == starts_with


@pytest.mark.parametrize(
    ("provider", "starts_with"),
    [("anthropic", "user"), ("aws.bedrock", "user"), ("gcp.vertex_ai", "user"), ("openai", "assistant")],
)
async def test_a_context_names_its_provider(provider, starts_with):
    texts = [{"role": role, "content": "words"} for role in ("user", "assistant", "user", "assistant", "user")]
    assembly = await Assembler([SlidingWindowPolicy(4)]).assemble([], texts, Context(provider=provider))
    assert next(iter(assembly.events))["role"] == starts_with
    of_bedrock = [bedrock(text["role"], "words") for text in texts]
    assembly = await Assembler([SlidingWindowPolicy(4)]).assemble([], of_bedrock, Context(provider=provider))
    assert next(iter(assembly.events))["role"] == starts_with


async def test_a_conversation_without_a_user_message_stays():
    messages = [bedrock("assistant", f"Note {n}.") for n in range(6)]
    assembly = await Assembler([SlidingWindowPolicy(3)]).assemble([], messages)
    assert list(assembly.events) == messages[-3:]


async def test_a_greeting_in_front_of_the_first_request_leaves_even_if_all_fits():
    messages = [
        bedrock("assistant", "Hello, what can I do?"),
        bedrock("user", "Find it."),
        bedrock("assistant", "Yes."),
    ]
    for policy in (ConversationPolicy(), SlidingWindowPolicy(9), HeadAndTailPolicy(5, 5), TokenBudgetPolicy(9_000)):
        assembly = await Assembler([policy]).assemble([], messages)
        assert list(assembly.events) == messages[1:]


async def test_a_summary_is_a_first_message():
    messages = talk(bedrock, 8)
    budget = BudgetPolicy(420, 20, compact="extractive", summary_tokens=60)
    assembly = await Assembler([budget]).assemble([], messages)
    sent = list(assembly.events)
    assert sent[0]["role"] == "user"
    assert sent[0]["content"][0]["text"].startswith("[Earlier messages")
    assert assembly.totals.tokens_out <= 400


@pytest.mark.parametrize(
    "policy",
    [SlidingWindowPolicy(2), TokenBudgetPolicy(120), BudgetPolicy(140, 20, step_tokens=0), HeadAndTailPolicy(1, 2)],
    ids=lambda policy: policy.name,
)
async def test_the_request_in_front_of_a_call_that_awaits_an_approval_is_fixed(policy):
    waits = bedrock("assistant", "I ask.", call="w")
    waits["content"][1]["toolUse"]["awaiting_approval"] = True
    messages = [bedrock("user", "Before."), bedrock("assistant", "Yes."), bedrock("user", "Delete it."), waits]
    for turn in range(4):
        messages += [bedrock("user", f"And {turn}? {WORDS}"), bedrock("assistant", f"So {turn}. {WORDS}")]
    assembly = await Assembler([policy]).assemble([], messages)
    sent = list(assembly.events)
    assert is_request(sent[0])
    assert sent.index(messages[2]) < sent.index(waits)
    assert messages[-2] in sent
    limit = getattr(policy, "max_tokens", None)
    assert limit is None or assembly.totals.tokens_out <= limit


async def test_a_model_client_of_the_runtime_names_its_provider():
    model = ScriptedModel("Here.", "There.", model="gateway/large")
    model.provider = "anthropic"
    agent = Agent("helper", "", model, assembly=[ConversationPolicy(), SlidingWindowPolicy(2)])
    await agent.ask("Where?")
    await agent.ask("And now?")
    assert [event.content for event in model.received[-1].events] == ["And now?"]


def conversation(messages):
    """What a provider is sent beside the system prompt."""
    return [message for message in messages if message.get("role") != "system"]


def blocks_of(turns, border, **more):
    return [
        Block("system", 1, "Be brief.", cuttable=False),
        Block("query", 3, "And now?", cuttable=False),
        Block("recent", 8, turns[border:], cuttable=True),
        Block("older", 9, turns[:border], cuttable=True, **more),
    ]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("border", [0, 12, 24])
def test_allocated_turns_start_with_a_user_request(form, border):
    turns, starts = talk(form), set()
    for window in range(90, 760, 7):
        allocation = allocate(blocks_of(turns, border), window, 10, compact=lambda text, target_tokens: "")
        sent = conversation(order_for_attention_and_cache(allocation.blocks).messages)
        assert is_request(sent[0]) if sent[0] in turns else sent[0]["content"] == "And now?"
        assert sum(allocation.costs.values()) + allocation.separators + allocation.framing == allocation.used
        again = allocate(allocation.blocks, 5_000, 10, provider="openai")
        assert again.used == allocation.used
        starts.add(turns.index(sent[0]) if sent[0] in turns else None)
        reasons = {item.reason for item in allocation.dropped}
        assert reasons <= {"over_budget", "before_user_message", "below_floor"}
    assert len(starts) == 7


def test_an_allocation_for_openai_may_start_with_any_role():
    turns = [openai(role, WORDS) for role in ("user", "assistant") * 3]
    first = {}
    for provider in (None, "openai", "anthropic"):
        allocation = allocate(blocks_of(turns, 0), 100, 10, provider=provider)
        sent = conversation(order_for_attention_and_cache(allocation.blocks).messages)
        first[provider] = (
            sent[0]["role"],
            [item.reason.value for item in allocation.dropped].count("before_user_message"),
        )
    assert first == {None: ("assistant", 0), "openai": ("assistant", 0), "anthropic": ("user", 1)}
    by_model = allocate(blocks_of(turns, 0), 100, 10, model="claude-sonnet-4-5")
    assert conversation(order_for_attention_and_cache(by_model.blocks).messages)[0]["role"] == "user"


def test_examples_that_start_with_a_request_are_the_first_messages():
    examples = [anthropic("user", "An example?"), anthropic("assistant", "An answer.")]
    turns = talk(anthropic, 3)
    blocks = [*blocks_of(turns, 0), Block("examples", 2, examples, cuttable=False)]
    allocation = allocate(blocks, 150, 10)
    kept = [item.item.content for item in allocation.items if item.outcome == "kept"]
    assert not any(item.reason == "before_user_message" for item in allocation.items)
    assert any(turn in kept for turn in turns)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("order", ["attention", "cache"])
@pytest.mark.parametrize("step_tokens", [0, 30])
async def test_a_context_assembler_starts_the_turns_with_a_user_request(form, order, step_tokens, recorder):
    turns, starts = talk(form), set()
    for window in range(120, 800, 23):
        desk = ContextAssembler(
            system="Be brief.",
            window=window,
            output_reserve=10,
            scopes=lambda user, task: {"team"},
            floors={},
            order=order,
            step_tokens=step_tokens,
            recorder=recorder.recorder,
        )
        context = await desk.assemble(Task("And now?", older=turns[:10], recent=turns[10:]), None)
        sent = conversation(context.messages)
        assert is_request(sent[0]) if sent[0] in turns else sent[0]["content"] == "And now?"
        assert context.assembly.totals.tokens_out == context.allocation.used
        starts.add(turns.index(sent[0]) if sent[0] in turns else None)
    assert len(starts) >= 5
    reasons = {decision.reason.value for decision in context.decisions}
    assert reasons <= {"fits", "pinned"}


@pytest.mark.parametrize(("provider", "starts_with"), [(None, "assistant"), ("anthropic", "user")])
async def test_the_context_of_a_context_assembler_names_its_provider(provider, starts_with):
    turns = [openai(role, WORDS) for role in ("user", "assistant") * 3]
    desk = ContextAssembler(system="S", window=100, output_reserve=10, scopes=lambda user, task: {"team"}, floors={})
    context = await desk.assemble(Task("And now?", recent=turns), None, Context(provider=provider))
    assert conversation(context.messages)[0]["role"] == starts_with
