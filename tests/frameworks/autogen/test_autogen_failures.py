"""What is told of AutoGen where nothing happened, and where a memory fails."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import MultiModalMessage
from autogen_core import Image
from autogen_core.memory import ListMemory, MemoryContent, UpdateContextResult
from autogen_core.models import SystemMessage, UserMessage
from autogen_talk import model
from PIL import Image as Picture

REMOVED = "apply_policy remove_images"


def agent(*answers, **settings):
    return AssistantAgent("clerk", model(*answers), **settings)


def picture():
    return Image(Picture.new("RGB", (64, 64)))


async def test_parts_of_text_that_are_joined_are_no_images_that_were_removed(told):
    clerk = agent("one")
    await clerk.run(task=[MultiModalMessage(content=["What is", "this?"], source="user")])
    assert told.spans_named(REMOVED) == []
    assert told.span("apply_policy framework").compacted == ["0"]  # AutoGen writes it anew


async def test_only_the_messages_whose_images_were_removed_are_told(told):
    clerk = agent("one")
    asked = [["in", "two parts"], ["and", picture()], ["in", "two parts"]]
    await clerk.run(task=[MultiModalMessage(content=content, source="user") for content in asked])
    step = told.span(REMOVED)
    assert step.compacted == ["1"]
    assert step.attributes["assembly.tokens.out"] < step.attributes["assembly.tokens.in"]


class Down(ListMemory):
    """A memory whose store is down."""

    async def update_context(self, model_context):
        raise ConnectionError("the customer's secret")


class Half(ListMemory):
    """One that fails when it has put in half of what it has."""

    async def update_context(self, model_context):
        await model_context.add_message(SystemMessage(content="likes tea"))
        raise ConnectionError("the customer's secret")


class Hanging(ListMemory):
    started: asyncio.Event

    async def update_context(self, model_context):
        self.started.set()
        await asyncio.Event().wait()
        return UpdateContextResult(memories=await self.query(""))


async def test_a_memory_that_raises_is_told_with_what_came_before_it(told):
    working = ListMemory()
    await working.add(MemoryContent(content="likes tea", mime_type="text/plain"))
    clerk = agent("one", memory=[working, Down()])
    with pytest.raises(ConnectionError):
        await clerk.run(task="hello")
    span, step = told.span("assemble_context"), told.span("apply_policy Down")
    assert [child.name for child in span.children] == ["apply_policy memory", "apply_policy Down"]
    assert (step.status, step.attributes["error.type"]) == ("ERROR", "ConnectionError")
    assert step.attributes["assembly.policy.kind"] == "injection"
    assert (span.status, span.attributes["assembly.events.out"]) == ("ERROR", 0)
    assert span.attributes["gen_ai.agent.name"] == "clerk"
    assert told.metric("assembly.policy.errors", policy_name="Down", error_type="ConnectionError") == 1
    assert "secret" not in str(told.spans)


async def test_what_a_memory_put_in_before_it_failed_is_there_in_the_next_prompt(told):
    clerk = agent("one", memory=[memory := Half()])
    with pytest.raises(ConnectionError):
        await clerk.run(task="hello")
    assert told.span("apply_policy Half").attributes["assembly.events.injected"] == 0
    told.clear()
    clerk._memory = None  # the program goes on without it
    assert memory is not None
    await clerk.run(task="again")
    span = told.span("assemble_context")
    assert (span.attributes["assembly.events.in"], span.attributes["assembly.events.out"]) == (3, 3)
    assert told.spans_named("apply_policy Half") == []


async def test_a_memory_that_is_cancelled_is_told_as_that(told):
    memory = Hanging()
    memory.started = asyncio.Event()
    task = asyncio.create_task(agent("one", memory=[memory]).run(task="hello"))
    await memory.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    step = told.span("apply_policy Hanging")
    assert step.status == "ERROR"
    assert step.attributes["error.type"] == "cancelled"
    assert told.span("assemble_context").attributes["error.type"] == "cancelled"
    assert "assembly.policy.errors" not in told.metrics


async def test_a_memory_asked_outside_of_any_run_is_told_where_it_fails(told):
    from autogen_core.model_context import UnboundedChatCompletionContext

    context = UnboundedChatCompletionContext([UserMessage(content="hello", source="user")])
    with pytest.raises(ConnectionError):
        await Down().update_context(context)
    assert told.span("apply_policy Down").attributes["assembly.events.in"] == 1
