from __future__ import annotations

import json

import pytest
from recount import count, prompt_tokens

import otel_assembly
from otel_assembly import Assembler, Context, describe
from otel_assembly.errors import DescribeError
from otel_assembly.messages import MEDIA_TOKENS

CALL = {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q":"bag"}'}}


async def tokens(*messages):
    return (await Assembler([]).assemble([], list(messages), Context())).totals


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "request"),
        ("assistant", "response"),
        ("tool", "tool_result"),
        ("function", "tool_result"),
    ],
)
def test_a_role_says_what_a_message_is(role, kind):
    facts = describe({"role": role, "content": "hi"})
    assert (facts.kind, facts.text) == (kind, "hi")


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("one text", ("one text",)),
        (None, ()),
        ("", ()),
        ([], ()),
        (["one", "two"], ("one", "two")),
        ([{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}], ("one", "two")),
        ([{"type": "refusal", "refusal": "no"}], ("no",)),
    ],
)
def test_content_is_read_in_all_its_forms(content, texts):
    assert describe({"role": "user", "content": content}).texts == texts


def test_a_refusal_beside_the_content_is_read():
    assert describe({"role": "assistant", "content": None, "refusal": "I cannot."}).texts == ("I cannot.",)


async def test_each_part_of_a_content_is_counted_alone():
    totals = await tokens({"role": "user", "content": ["half a wo", "rd"]})
    assert totals.tokens_out == 3 + 4 + count("half a wo") + count("rd")


async def test_an_image_costs_an_estimate_and_the_assembly_says_that_it_is_one():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    totals = await tokens({"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]})
    assert totals.tokens_out == 3 + 4 + count("what is this?") + MEDIA_TOKENS
    assert totals.method == "estimated"


def test_calls_are_read_with_their_names_and_arguments():
    facts = describe({"role": "assistant", "content": "let me see", "tool_calls": [CALL, {**CALL, "id": "b"}]})
    assert list(facts.opens) == ["a", "b"]
    assert facts.texts == ("let me see", "search", '{"q":"bag"}', "search", '{"q":"bag"}')
    assert facts.awaiting == []


def test_arguments_that_are_an_object_are_read_as_json():
    call = {"id": "a", "function": {"name": "search", "arguments": {"q": "가방"}}}
    assert json.loads(describe({"role": "assistant", "tool_calls": [call]}).texts[-1]) == {"q": "가방"}


def test_a_call_of_a_custom_tool_is_read():
    call = {"id": "a", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    facts = describe({"role": "assistant", "tool_calls": [call]})
    assert (list(facts.opens), facts.texts) == (["a"], ("sql", "select 1"))


def test_a_call_may_say_that_it_awaits_an_approval():
    facts = describe({"role": "assistant", "tool_calls": [{**CALL, "awaiting_approval": True}, {**CALL, "id": "b"}]})
    assert list(facts.awaiting) == ["a"]


@pytest.mark.parametrize("calls", [None, [], ()])
def test_no_calls_are_no_calls(calls):
    assert list(describe({"role": "assistant", "content": "hi", "tool_calls": calls}).opens) == []


def test_a_result_names_its_call_or_the_calls_that_it_joins():
    assert list(describe({"role": "tool", "tool_call_id": "a", "content": ""}).closes) == ["a"]
    assert list(describe({"role": "tool", "tool_call_ids": ["a", "b"], "content": ""}).closes) == ["a", "b"]


async def test_a_legacy_function_call_pairs_with_its_function_message():
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "function_call": {"name": "search", "arguments": "{}"}},
        {"role": "function", "name": "search", "content": "found"},
        {"role": "user", "content": "and?"},
    ]
    for most in (1, 2, 3, 4):
        assembly = await Assembler([otel_assembly.SlidingWindowPolicy(most)]).assemble([], messages, Context())
        assert len(assembly.events) in {1, 3, 4}


async def test_a_tool_message_that_names_no_call_is_a_result_without_its_call():
    messages = [{"role": "user", "content": "go"}, {"role": "tool", "content": "found"}]
    assembly = await Assembler([otel_assembly.ConversationPolicy()]).assemble([], messages, Context())
    assert assembly.events == messages[:1]
    assert [d.reason for d in assembly.dropped] == ["orphaned_tool_result"]


async def test_names_and_roles_are_counted():
    messages = [
        {"role": "user", "name": "ann", "content": "find my bag"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "name": "search", "content": "found"},
    ]
    assert (await tokens(*messages)).tokens_out == prompt_tokens([], messages) + 1 + count("ann")


def test_the_id_of_a_message_is_read_where_it_is_one():
    assert describe({"role": "user", "content": "", "id": "m1"}).id == "m1"
    assert describe({"role": "user", "content": "", "id": 7}).id is None


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({}, "'role' is None"),
        ({"role": "robot"}, "'role' is 'robot'"),
        ({"role": ["user"]}, "'role'"),
        ({"role": "user", "content": 7}, "'content' is a int"),
        ({"role": "user", "content": [7]}, "part of its 'content'"),
        ({"role": "user", "content": [{}]}, "part of its 'content'"),
        ({"role": "assistant", "tool_calls": "a"}, "'tool_calls' is a str"),
        ({"role": "assistant", "tool_calls": ["a"]}, "no 'id' or no 'function'"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "no 'id' or no 'function'"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "no 'id' or no 'function'"),
    ],
)
def test_a_dict_that_is_no_message_is_refused_with_what_is_wrong(message, problem):
    with pytest.raises(DescribeError, match=problem):
        describe(message)


def test_an_object_that_nobody_registered_is_refused_with_the_mend():
    with pytest.raises(DescribeError, match=r"describe\.register"):
        describe(object())
