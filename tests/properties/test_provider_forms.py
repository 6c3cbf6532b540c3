"""Random conversations in each provider's form: kinds, pairs and tokens, against what the generator meant by them."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recount import Read, assert_sendable, newest_request, pair, positions_of, prompt_tokens
from strategies import texts

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    ContextOverflowError,
    ConversationPolicy,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    describe,
)

QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LONG = settings(QUICK, max_examples=3_000, derandomize=False)
NAMES = ("search", "book")


def anthropic(role, said, calls, results):
    parts = [{"type": "tool_result", "tool_use_id": item, "content": text} for item, text in results]
    parts += [{"type": "text", "text": text} for text in said]
    parts += [{"type": "tool_use", "id": item, "name": name, "input": given} for item, name, given in calls]
    return [{"role": role, "content": parts}]


def bedrock(role, said, calls, results):
    parts = [{"toolResult": {"toolUseId": item, "content": [{"text": text}]}} for item, text in results]
    parts += [{"text": text} for text in said]
    parts += [{"toolUse": {"toolUseId": item, "name": name, "input": given}} for item, name, given in calls]
    return [{"role": role, "content": [*parts, {"cachePoint": {"type": "default"}}]}]


def gemini(role, said, calls, results):
    parts = [{"functionResponse": {"name": item, "response": {"output": text}}} for item, text in results]
    parts += [{"text": text} for text in said]
    parts += [{"functionCall": {"name": item, "args": given}} for item, _, given in calls]
    return [{"role": "model" if role == "assistant" else role, "parts": parts}]


def responses(role, said, calls, results):
    items = [{"type": "function_call_output", "call_id": item, "output": text} for item, text in results]
    kind = "output_text" if role == "assistant" else "input_text"
    if said or not (items or calls):
        items.append({"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in said]})
    items += [
        {"type": "function_call", "call_id": item, "name": name, "arguments": json.dumps(given, ensure_ascii=False)}
        for item, name, given in calls
    ]
    return items


def reads(form, role, said, calls, results):
    """What the messages are meant to be."""
    spelled = [
        (item, [item if form is gemini else name, json.dumps(given, ensure_ascii=False)]) for item, name, given in calls
    ]
    closes = [item for item, _ in results]
    told = [text for _, text in results]
    if form is gemini:  # its client sends the name and the object around the text
        told = [part for item, text in results for part in (item, json.dumps({"output": text}, ensure_ascii=False))]
    if form is responses:
        found = [Read("result", [text], closes=[item]) for item, text in results]
        if said or not (found or calls):
            found.append(Read("response" if role == "assistant" else "request", list(said)))
        return found + [Read("call", texts_, opens=[item]) for item, texts_ in spelled]
    if role == "assistant":
        written = [text for _, texts_ in spelled for text in texts_]
        return [Read("response", [*said, *written], opens=[item for item, _ in spelled])]
    if results:
        return [Read("request" if any(said) else "result", [*told, *said], closes=closes)]
    return [Read("request", list(said))]


@st.composite
def talks(draw, most=8):
    """A conversation: its messages in one form, and what each of them is meant to be."""
    form = draw(st.sampled_from([anthropic, bedrock, gemini, responses]))
    messages, meant = [], []
    waiting: list[str] = []

    def say(role, said, calls=(), results=()):
        messages.extend(form(role, said, calls, results))
        meant.extend(reads(form, role, said, calls, results))

    for _ in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(["user", "assistant", "calls", "calls", "stray result"]))
        if kind == "user":
            say("user", draw(st.lists(texts, min_size=1, max_size=2)))
        elif kind == "assistant":
            say("assistant", draw(st.lists(texts, min_size=1, max_size=2)))
        elif kind == "stray result":
            say("user", [], results=[("z", draw(texts))])
        else:
            ids = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3))
            calls = [(item_id, draw(st.sampled_from(NAMES)), {"q": draw(texts)}) for item_id in ids]
            say("assistant", draw(st.lists(texts, max_size=1)), calls)
            waiting = [item_id for item_id in ids if draw(st.integers(0, 5))]
            together = draw(st.booleans())
            for group in [waiting] if together else [[item] for item in waiting]:
                beside = (
                    draw(st.lists(texts, max_size=1)) if form is not responses and draw(st.integers(0, 3)) == 0 else []
                )
                if group:
                    say("user", beside, results=[(item, draw(texts)) for item in group])
    return messages, meant


policies = st.one_of(
    st.builds(ConversationPolicy),
    st.builds(SlidingWindowPolicy, st.integers(1, 9)),
    st.builds(TokenBudgetPolicy, st.integers(30, 500), on_overflow=st.sampled_from(["raise", "drop"])),
    st.builds(BudgetPolicy, st.integers(60, 500), st.just(0), compact=st.sampled_from([None, "extractive"])),
)
KINDS = {"request": "request", "response": "response", "call": "tool_call", "result": "tool_result"}


async def reads_as_meant(talk):
    messages, meant = talk
    for message, fact in zip(messages, meant, strict=True):
        facts = describe(message)
        assert facts.kind == KINDS[fact.kind]
        assert list(facts.texts) == [text for text in fact.texts if text]
        assert (list(facts.opens), list(facts.closes)) == (fact.opens, fact.closes)
        assert not facts.unknown
    assembly = await Assembler([]).assemble([], messages)
    assert assembly.totals.tokens_out == prompt_tokens([], meant)


def describe_provider(messages):
    """The provider that refuses what does not start with a user's request, as the messages' form states it."""
    return next(filter(None, (describe(message).provider for message in messages)), "")


def opens(fact):
    """Whether a prompt may start with a message."""
    return fact.kind == "request" and not fact.closes


async def stays_whole(talk, policy):
    messages, meant = talk
    try:
        assembly = await Assembler([policy]).assemble([], messages)
    except ContextOverflowError:
        return
    if assembly.totals.compacted:
        assert assembly.totals.tokens_out <= policy.max_tokens
        return
    kept = [meant[place] for place in positions_of(messages, assembly.events)]
    assert_sendable(meant, kept)
    if describe_provider(messages) and any(map(opens, kept)):
        assert opens(kept[0])
    assert assembly.totals.tokens_out == prompt_tokens([], kept)
    request = newest_request(meant)
    if request is not None and request not in pair(meant).unsendable(len(meant)):
        assert any(message is meant[request] for message in kept)


@QUICK
@given(talks())
async def test_messages_of_every_provider_read_as_they_are_meant(talk):
    await reads_as_meant(talk)


@QUICK
@given(talks(), policies)
async def test_a_policy_keeps_pairs_and_the_newest_request_in_every_form(talk, policy):
    await stays_whole(talk, policy)


@pytest.mark.slow  # thousands of conversations
@pytest.mark.timeout(900)
@LONG
@given(talks(14), policies)
async def test_the_same_in_thousands_of_conversations(talk, policy):
    await reads_as_meant(talk)
    await stays_whole(talk, policy)
