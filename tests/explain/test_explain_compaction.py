"""What would have kept an item for which a summary stands: named from the spans, and true when replayed."""

from __future__ import annotations

import pytest

from otel_assembly import Assembler, BudgetPolicy, Context, ContextOverflowError, ConversationPolicy, History
from otel_assembly.explain import Explainer
from otel_assembly.telemetry import read_ledgers

WINDOW = 450


def talk(turns=14):
    messages = []
    for turn in range(turns):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"Question {turn}. " + "How does it work, please? " * (turn % 5 + 1)},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"Fact {turn} is this. " * (turn % 7 + 2)},
            {"role": "assistant", "content": f"Answer {turn}. " + "It goes like that. " * (turn % 3 + 1)},
        ]
    return messages


async def prompts_of(messages, window, upto):
    """The messages in each prompt, by identity, up to a turn."""
    history, context, sent = History(), Context(), []
    policy = BudgetPolicy(window, 0, step_tokens=60, compact="extractive", summary_tokens=80)
    assembler = Assembler([ConversationPolicy(), policy])
    for message in messages:
        if message["role"] == "assistant" and len(sent) <= upto:
            try:
                sent.append({id(event) for event in (await assembler.assemble(["Be brief."], history, context)).events})
            except ContextOverflowError:
                sent.append(set())
        history.append(message)
    return sent


@pytest.mark.parametrize("turn", [12, 17, *(pytest.param(number, marks=pytest.mark.slow) for number in (20, 27))])
async def test_the_extra_that_is_named_for_a_compacted_item_keeps_it_and_one_less_does_not(turn, assembly_telemetry):
    messages = talk()
    await prompts_of(messages, WINDOW, turn)
    (ledger,) = read_ledgers(assembly_telemetry.spans).values()
    came_in = [item for item in ledger.items if not item.startswith("m")]
    explainer = Explainer(ledger, turn)
    compacted = [item for item, exit_ in ledger.exits(turn).items() if exit_.outcome == "compacted"]
    assert len(compacted) > 5
    for item in compacted[::4]:
        answer = explainer.explain(item)
        assert answer.holder.in_prompt
        assert answer.unknown == ()
        (raised,) = answer.raises
        message = id(messages[came_in.index(item)])
        assert message in (await prompts_of(messages, WINDOW + raised.extra, turn))[turn]
        assert message not in (await prompts_of(messages, WINDOW + raised.extra - 1, turn))[turn]
