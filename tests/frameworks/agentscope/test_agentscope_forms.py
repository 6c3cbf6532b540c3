"""AgentScope's messages in the shapes that break readers: malformed, cut, too long for the budget."""

from __future__ import annotations

import pytest
from agentscope.formatter import AnthropicChatFormatter, OpenAIChatFormatter
from agentscope.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserMsg,
)
from scripted import ScriptedModel, agent, talk, tool

from otel_assembly import Assembler, BudgetPolicy, ConversationPolicy, describe
from otel_assembly.errors import DescribeError
from otel_assembly.instrumentation.agentscope import AssemblyMiddleware
from otel_assembly.messages import MEDIA_TOKENS

ROWS = "\n".join(f"Row {number}: flight {number * 7} leaves." for number in range(2_000))


def picture():
    return DataBlock(source=Base64Source(data="iVBOR", media_type="image/png"))


async def test_a_result_of_several_blocks_is_shortened_and_keeps_its_pictures():
    held = picture()
    calls = [ToolCallBlock(id=letter, name="rows", input="{}") for letter in "ab"]
    several = ToolResultBlock(id="a", name="rows", output=[TextBlock(text=ROWS), held, TextBlock(text="end")])
    short = ToolResultBlock(id="b", name="rows", output="It rains.")
    given = [UserMsg("user", "which gate?"), AssistantMsg("Friday", calls), AssistantMsg("Friday", [several, short])]
    middleware = AssemblyMiddleware([BudgetPolicy(3_000, 0, compact="extractive")])
    assembly = await Assembler(middleware.assembler.policies).assemble([], given)
    first, second = assembly.events[-1].content
    assert [block.type for block in first.output] == ["text", "data"]
    assert first.output[1] is held
    assert 100 < len(first.output[0].text) < 12_000
    assert (first.id, second) == ("a", short)
    assert several.output[0].text == ROWS
    facts = describe(assembly.events[-1])
    assert (sorted(facts.closes), facts.media_tokens) == (["a", "b"], MEDIA_TOKENS)
    for formatter in (OpenAIChatFormatter(), AnthropicChatFormatter()):
        assert await formatter.format(assembly.events)


async def test_inside_an_agent_a_result_in_blocks_is_shortened_before_it_is_sent():
    def rows() -> str:
        """All rows."""
        return ROWS

    model = ScriptedModel(["call:rows", "Done."], context_size=100_000)
    budget = BudgetPolicy(2_000, 200, compact="extractive", step_tokens=0)
    someone = agent(model, tools=[tool(rows)], middlewares=[AssemblyMiddleware([budget])])
    await talk(someone, "which gate?")
    (result,) = model.asked[-1][-1].get_content_blocks("tool_result")
    assert 100 < len(str(result.output)) < 10_000


@pytest.mark.parametrize(
    "content",
    [None, [ToolResultBlock.model_construct(id="a", output=None)], [TextBlock.model_construct(type="text")]],
    ids=["no content", "a result without its output", "a text without its text"],
)
async def test_a_malformed_message_cannot_be_read(content):
    message = UserMsg("user", "hi").model_copy(update={"content": content})
    with pytest.raises(DescribeError, match="agentscope"):
        describe(message)
    with pytest.raises(DescribeError):
        await Assembler([]).assemble([], [message])


async def test_half_an_emoji_is_read_and_an_unknown_block_is_told():
    cut = "half \ud83d"
    given = [UserMsg("user", cut), AssistantMsg("Friday", cut)]
    assembly = await Assembler([ConversationPolicy()]).assemble([cut], given)
    assert assembly.events == given
    strange = UserMsg("user", "hi").model_copy(update={"content": [DataBlock.model_construct(), _Hologram()]})
    assert list(describe(strange).unknown) == ["hologram"]


class _Hologram:
    type = "hologram"
