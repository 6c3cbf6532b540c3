"""A limit that AutoGen's own reducer is given, and lets pass: its client counts otherwise than the model does."""

from __future__ import annotations

from autogen_core.model_context import TokenLimitedChatCompletionContext
from autogen_talk import asked, filled, model, reply, user

#: To a client that counts words, one word; to the model, some three hundred tokens.
WITHOUT_A_SPACE = ",".join(f'"{number}"' for number in range(100))


async def test_a_limit_that_is_let_pass_is_an_overflow_of_the_framework(told):
    context = await filled(TokenLimitedChatCompletionContext(model(), token_limit=60), user(WITHOUT_A_SPACE))
    assert len(await asked(context)) == 1
    step, assembly = told.span("apply_policy token_limited"), told.span("assemble_context")
    assert step.attributes["assembly.overflow.cause"] == "framework"
    assert step.attributes["assembly.overflow.tokens"] > 60
    assert step.attributes["assembly.overflow.tokens"] == assembly.attributes["assembly.overflow.tokens"]
    assert (assembly.status, assembly.attributes["error.type"]) == ("ERROR", "context_overflow")
    assert assembly.attributes["assembly.budget.limit"] == 60
    assert told.metric("assembly.budget.overflows") == 1


async def test_a_limit_that_holds_as_well_as_its_client_can_count_is_none(told):
    talk = [message(f"this is message {number} of a talk") for number in range(9) for message in (user, reply)]
    context = await filled(TokenLimitedChatCompletionContext(model(), token_limit=60), *talk)
    assert len(await asked(context)) < len(talk)
    assert told.span("assemble_context").attributes["assembly.overflowed"] is False
