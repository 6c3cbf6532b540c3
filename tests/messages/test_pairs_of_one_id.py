"""The same call's id twice in one message, with an approval: what waits goes on waiting, what was given up goes."""

from __future__ import annotations

import itertools

import pytest

from otel_assembly import (
    Assembler,
    ConversationPolicy,
    History,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolResultEvent,
    describe,
)
from otel_assembly.messages import broken_pairs


def ours(first, second):
    calls = tuple(ToolCallEvent(id="a", name="pay", awaiting_approval=waits) for waits in (first, second))
    return ModelResponse(tool_calls=calls)


def chat(first, second):
    calls = [
        {"id": "a", "function": {"name": "pay", "arguments": "{}"}, **({"awaiting_approval": True} if waits else {})}
        for waits in (first, second)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def anthropic(first, second):
    parts = [
        {"type": "tool_use", "id": "a", "name": "pay", "input": {}, **({"awaiting_approval": True} if waits else {})}
        for waits in (first, second)
    ]
    return {"role": "assistant", "content": parts}


FORMS = {"ours": ours, "chat": chat, "anthropic": anthropic}
RESULT = ToolResultEvent(parent_id="a", content="paid")
SAID, ASKED = ModelResponse(content="well"), ModelRequest(content="go")


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize(
    ("first", "second", "results"), list(itertools.product([False, True], [False, True], range(3)))
)
async def test_a_message_waits_whole_while_one_of_its_calls_of_one_id_awaits_its_approval(form, first, second, results):
    asks = FORMS[form](first, second)
    events = [ASKED, asks, *[RESULT.model_copy(update={"id": f"r{n}"}) for n in range(results)], SAID]
    for given in (events, History(events)):
        kept = (await Assembler([ConversationPolicy()]).assemble([], given)).events
        # A result answers the call that waits for no approval before the one that does.
        waiting = max(0, 2 - results)
        stays = waiting == 0 or first or second
        assert (asks in kept) == stays
        assert sum(event in kept for event in events[2:-1]) == (results if stays else 0)
        assert broken_pairs(list(map(describe, kept))) == []


async def test_an_approval_that_an_echo_asks_for_is_of_one_call():
    """A stream says the calls again one by one; what was answered is the call that waits for nobody."""
    asks = ours(False, False)
    echo = ToolCallEvent(id="a", name="pay", awaiting_approval=True)
    for results in range(3):
        events = [ASKED, asks, echo, *[RESULT.model_copy(update={"id": f"r{n}"}) for n in range(results)], SAID]
        kept = (await Assembler([ConversationPolicy()]).assemble([], events)).events
        assert asks in kept, results
        assert broken_pairs(list(map(describe, kept))) == []
