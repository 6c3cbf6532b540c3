"""A summary has the form of the conversation that it stands in, and the provider's own client accepts it."""

from __future__ import annotations

import json
from itertools import pairwise

import anthropic.types
import botocore.session
import openai.types.chat
import openai.types.responses
import pytest
from botocore.validate import ParamValidator
from google.genai import types as gemini
from pydantic import TypeAdapter

from otel_assembly import Assembler, BudgetPolicy, Context, ConversationPolicy, describe
from otel_assembly.decision import DecisionOutcome

WORDS = "word " * 30
CALL = {"order": "4711"}


def bedrock_accepts(messages):
    model = botocore.session.get_session().get_service_model("bedrock-runtime")
    shape = model.operation_model("Converse").input_shape
    report = ParamValidator().validate({"modelId": "m", "messages": messages}, shape)
    assert not report.has_errors(), report.generate_report()


def gemini_accepts(messages):
    for message in messages:
        gemini.Content.model_validate(message)


def accepted_by(message_type):
    adapter = TypeAdapter(list[message_type])
    return lambda messages: adapter.validate_python([dict(message) for message in messages])


def anthropic_accepts(messages):
    accepted_by(anthropic.types.MessageParam)(messages)
    assert not {"system", "developer", "tool"} & {message["role"] for message in messages}


def genai_accepts(messages):
    assert all(part["type"] and "content" in part for message in messages for part in message["parts"])


def bedrock(role, text):
    return {"role": role, "content": [{"text": text}]}


def gemini_content(role, text):
    return {"role": {"assistant": "model"}.get(role, role), "parts": [{"text": text}]}


def anthropic_blocks(role, text):
    return {"role": role, "content": [{"type": "text", "text": text}]}


def plain(role, text):
    return {"role": role, "content": text}


def genai(role, text):
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def responses(role, text):
    kind = "input_text" if role == "user" else "output_text"
    if role == "user":
        return {"role": role, "content": [{"type": kind, "text": text}]}
    content = [{"type": kind, "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": "m", "status": "completed", "role": role, "content": content}


#: By form: how a text is written, the messages of a tool call with its result, what accepts a conversation.
FORMS = {
    "bedrock": (
        bedrock,
        [
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "find", "input": CALL}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"text": WORDS}]}}]},
        ],
        bedrock_accepts,
    ),
    "gemini": (
        gemini_content,
        [
            {"role": "model", "parts": [{"functionCall": {"name": "find", "args": CALL}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "find", "response": {"result": WORDS}}}]},
        ],
        gemini_accepts,
    ),
    "anthropic": (
        anthropic_blocks,
        [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "find", "input": CALL}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": WORDS}]},
        ],
        anthropic_accepts,
    ),
    "anthropic texts": (plain, [], anthropic_accepts),
    "openai chat": (
        plain,
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "t", "type": "function", "function": {"name": "find", "arguments": json.dumps(CALL)}}
                ],
            },
            {"role": "tool", "tool_call_id": "t", "content": WORDS},
        ],
        accepted_by(openai.types.chat.ChatCompletionMessageParam),
    ),
    "openai responses": (
        responses,
        [
            {"type": "function_call", "call_id": "t", "name": "find", "arguments": json.dumps(CALL)},
            {"type": "function_call_output", "call_id": "t", "output": WORDS},
        ],
        accepted_by(openai.types.responses.ResponseInputItemParam),
    ),
    "opentelemetry": (genai, [], genai_accepts),
}


def conversation(form, turns=8):
    say, tool, _ = FORMS[form]
    messages = []
    for turn in range(turns):
        messages.append(say("user", f"question {turn} {WORDS}"))
        messages += tool if turn % 2 else []
        messages.append(say("assistant", f"answer {turn} {WORDS}"))
    return [*messages, say("user", "and now?")]


async def compacted(messages, window=500, *, leading=(), **more):
    policies = [ConversationPolicy(), BudgetPolicy(window, 0, compact="extractive", summary_tokens=60, **more)]
    return await Assembler(policies).assemble(["be brief"], [*leading, *messages], Context())


@pytest.mark.parametrize("form", FORMS)
async def test_the_providers_own_client_accepts_a_prompt_with_a_summary(form):
    messages = conversation(form)
    assembly = await compacted(messages)

    assert [describe(event).kind for event in assembly.events].count("summary") == 1
    assert describe(assembly.events[0]).kind == "summary"
    assert assembly.events[0]["role"] == "user"
    assert assembly.events[-1] is messages[-1]
    FORMS[form][2](assembly.events)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "window", [*range(220, 900, 80), *(pytest.param(window, marks=pytest.mark.slow) for window in range(260, 900, 80))]
)
async def test_what_is_counted_is_what_is_sent(form, window):
    assembly = await compacted(conversation(form), window, step_tokens=0)

    FORMS[form][2](assembly.events)
    again = await Assembler([]).assemble(assembly.prompts, assembly.events, Context())
    assert assembly.totals.tokens_out == again.totals.tokens_in <= window


@pytest.mark.parametrize("window", range(220, 900, 20))
async def test_the_roles_of_bedrock_alternate_behind_a_summary(window):
    assembly = await compacted(conversation("bedrock"), window, step_tokens=0)

    roles = [event["role"] for event in assembly.events]
    assert roles[0] == "user"
    assert all(first != second for first, second in pairwise(roles))


async def test_the_reply_to_a_summary_is_one_injected_item_and_the_same_on_the_next_turn(assembly_telemetry):
    assembler, context = Assembler([BudgetPolicy(500, 0, compact="extractive", summary_tokens=60)]), Context()
    messages = [message for message in conversation("bedrock") if "toolUse" not in str(message)]
    messages = [message for message in messages if "toolResult" not in str(message)]
    first = await assembler.assemble([], messages, context)
    second = await assembler.assemble([], messages, context)

    summary, reply, request = first.events[:3]
    assert describe(summary).kind == "summary"
    assert reply == {"role": "assistant", "content": [{"text": "Understood."}]}
    assert request in messages
    assert second.events[1] is reply
    assert [decision.outcome for decision in first.decisions].count(DecisionOutcome.INJECTED) == 2
    assert assembly_telemetry.violations() == []


async def test_a_system_message_in_front_does_not_decide_the_form():
    messages = conversation("gemini")
    assembly = await compacted(messages, leading=[{"role": "system", "content": "be kind"}])

    assert assembly.events[0] == {"role": "system", "content": "be kind"}
    gemini_accepts(assembly.events[1:])
