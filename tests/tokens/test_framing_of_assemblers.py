"""An assembler takes a framing as it takes a counter: every number of its assemblies is in it."""

from __future__ import annotations

import json

import pytest

from otel_assembly import (
    Assembler,
    BudgetPolicy,
    ConfigurationError,
    ContextAssembler,
    ContextOverflowError,
    ModelRequest,
    Task,
    TokenBudgetPolicy,
)
from otel_assembly.tokens import CharacterCounter, MessageFraming

HEAVY = MessageFraming(per_message=40, per_role=9, reply_priming=7)
EVENTS = [ModelRequest(content="one two"), ModelRequest(content="three")]


async def test_what_is_sent_is_counted_in_the_framing_given(spy):
    assembly = await Assembler([], counter=spy, framing=HEAVY).assemble(["be brief"], EVENTS)
    assert assembly.totals.tokens_out == (49 + 2) + (49 + 2) + (49 + 1) + 7


async def test_models_that_are_counted_beside_each_other_have_it_too():
    one, other = Assembler([], framing=HEAVY), Assembler([], framing=MessageFraming(0, 0, 0, 0, 0))
    for model in (None, "gpt-4o", "gpt-4"):
        heavy = await one.assemble([], EVENTS)
        bare = await other.assemble([], EVENTS)
        assert heavy.totals.tokens_out - bare.totals.tokens_out == 2 * 49 + 7, model
        one.model = other.model = model


@pytest.mark.parametrize(
    "budget",
    [
        lambda tokens: TokenBudgetPolicy(tokens),
        lambda tokens: TokenBudgetPolicy(tokens, chars_per_token=4),
        lambda tokens: BudgetPolicy(tokens, 0),
    ],
    ids=["token_budget", "by characters", "budget"],
)
async def test_a_budget_holds_in_it(budget):
    counter = CharacterCounter(4)
    only = 7 + 49 + 2
    sent = await Assembler([budget(only)], counter=counter, framing=HEAVY).assemble([], EVENTS)
    assert [event.content for event in sent.events] == ["three"]
    with pytest.raises(ContextOverflowError):
        await Assembler([budget(only - 1)], counter=counter, framing=HEAVY).assemble([], EVENTS)


async def test_a_context_assembler_takes_it_as_well(spy):
    async def tokens(framing):
        desk = ContextAssembler(
            system="be brief",
            window=1_000,
            output_reserve=100,
            scopes=lambda user, task: {"public"},
            counter=spy,
            framing=framing,
        )
        return (await desk.assemble(Task(query="what now"), user="u")).allocation.used

    assert await tokens(HEAVY) - await tokens(None) == 2 * (49 - 4) + (7 - 3)


def test_it_is_written_down_and_read_back():
    assembler = Assembler([TokenBudgetPolicy(100)], framing=HEAVY)
    written = json.loads(json.dumps(assembler.to_config()))
    assert written["framing"] == {"per_message": 40, "per_role": 9, "reply_priming": 7}
    assert Assembler.from_config(written).framing == HEAVY
    assert "framing" not in Assembler([]).to_config()
    assert Assembler.from_config({"policies": []}).framing == MessageFraming()
    assert Assembler.from_config(written, framing=MessageFraming(per_name=5)).framing == MessageFraming(per_name=5)


@pytest.mark.parametrize(
    ("framing", "message"),
    [
        ({"per_mesage": 3}, "'per_message'"),
        ({"per_message": -3}, "per_message of the framing must be at least 0, got -3"),
        ({"per_message": "3"}, "per_message"),
        (3, "framing"),
    ],
)
def test_a_mistake_in_a_file_is_named(framing, message):
    with pytest.raises(ConfigurationError, match="framing") as raised:
        Assembler.from_config({"framing": framing, "policies": []})
    assert message in str(raised.value)


def test_anything_else_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="framing must be a MessageFraming"):
        Assembler([], framing={"per_message": 3})


def test_a_replay_counts_as_the_file_says(tmp_path, capsys):
    from otel_assembly.cli import main

    talk = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    (tmp_path / "heavy.json").write_text(json.dumps({"policies": [], "framing": {"per_message": 1_003}}))
    (tmp_path / "plain.json").write_text(json.dumps({"policies": []}))
    found = {}
    for name in ("heavy", "plain"):
        assert main(["replay", str(tmp_path / "talk.json"), "--config", str(tmp_path / f"{name}.json"), "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    for key in ("tokens_in", "tokens_out", "max_tokens_out"):
        assert found["heavy"][key] == found["plain"][key] + 1_000
