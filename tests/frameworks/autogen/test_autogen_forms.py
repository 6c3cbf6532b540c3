"""AutoGen's messages in the shapes that break readers: malformed, cut, too long for the budget."""

from __future__ import annotations

import pytest
from autogen_core.models import AssistantMessage, FunctionExecutionResultMessage, SystemMessage, UserMessage
from autogen_ext.models.openai._openai_client import to_oai_type
from autogen_talk import calls, results, user

import otel_assembly.instrumentation.autogen.messages  # noqa: F401  # the rows
from otel_assembly import Assembler, BudgetPolicy, ConversationPolicy, describe
from otel_assembly.errors import DescribeError
from otel_assembly.messages import broken_pairs

ROWS = "\n".join(f"Row {number}: flight {number * 7} leaves." for number in range(2_000))


async def test_of_several_results_in_one_message_those_that_do_not_fit_are_shortened():
    given = [user("which gate?"), calls("1", "2", "3"), results("1", "2", "3", text=ROWS)]
    given[2].content[1].content = "It rains."
    assembly = await Assembler([BudgetPolicy(2_000, 0, compact="extractive")]).assemble([], given)
    short = assembly.events[2]
    assert isinstance(short, FunctionExecutionResultMessage)
    assert short.content[1].content == "It rains."
    assert all(100 < len(short.content[place].content) < 10_000 for place in (0, 2))
    assert given[2].content[0].content == ROWS
    assert broken_pairs(list(map(describe, assembly.events))) == []
    sent = [part for message in assembly.events for part in to_oai_type(message, model="gpt-4o")]
    assert [part["tool_call_id"] for part in sent if part["role"] == "tool"] == ["1", "2", "3"]


async def test_what_is_counted_of_a_result_is_what_the_client_sends_of_it():
    result = results("1", text="It rains.")
    (sent,) = to_oai_type(result, model="gpt-4o")
    assert "name" not in sent
    assert describe(result).texts == (sent["content"],)
    (asked,) = to_oai_type(calls("1"), model="gpt-4o")
    function = asked["tool_calls"][0]["function"]
    assert describe(calls("1")).texts == (function["name"], function["arguments"])


@pytest.mark.parametrize(
    "message",
    [
        UserMessage.model_construct(content=None, source="user"),
        AssistantMessage.model_construct(content=[None], source="a", thought=None),
        FunctionExecutionResultMessage.model_construct(content=[None]),
        SystemMessage.model_construct(),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_a_malformed_message_cannot_be_read(message):
    with pytest.raises(DescribeError, match="autogen_core"):
        describe(message)
    with pytest.raises(DescribeError):
        await Assembler([]).assemble([], [message])


async def test_half_an_emoji_is_read():
    cut = "half \ud83d"
    given = [UserMessage(content=cut, source="user"), AssistantMessage(content=cut, source="a")]
    assembly = await Assembler([ConversationPolicy()]).assemble([cut], given)
    assert assembly.events == given
    assert assembly.totals.tokens_out > 0
