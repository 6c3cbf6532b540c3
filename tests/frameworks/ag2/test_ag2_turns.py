"""Each turn of an AG2 conversation whose history is compacted between two asks is told by that turn's spans alone."""

from __future__ import annotations

from itertools import pairwise

from ag2_package import MemoryStream, Model, ag2, answer, ask, history_of, part, policies
from telemetry.forty_lines import read
from telemetry.turn_checks import Ledger, adds_up, turns_of

compact = part("compact")


async def talk(stream, agent, asks):
    await history_of(stream, *(event for i in range(4) for event in (ask(f"question {i}"), answer(f"answer {i}"))))
    for number in range(asks):
        await agent.ask(f"next {number}", stream=stream)


def agent(strategy, asks, most):
    config = part("agent").KnowledgeConfig(
        store=part("knowledge").MemoryKnowledgeStore(),
        compact=strategy,
        compact_trigger=compact.CompactTrigger(max_events=most),
    )
    answers = (f"fine {number}" for number in range(asks))
    return ag2.Agent("support", config=Model(*answers), knowledge=config, assembly=[policies.ConversationPolicy()])


def told(telemetry):
    """Of each turn whose it is, and what a reader of that turn says; all of it is of one ledger."""
    ledger = Ledger()
    for turn in turns_of(telemetry):
        adds_up(turn)
        ledger.take(turn)
        offered, kept, out, unlisted = read(turn)
        assert {*offered, *kept, *out} <= ledger.tokens.keys()
        assert unlisted == {}
        yield turn.attributes.get("assembly.name"), offered, kept, out, ledger.sources


async def test_what_was_compacted_between_two_asks_is_told_on_a_turn_of_its_own_and_offered_no_more(telemetry):
    await talk(MemoryStream(), agent(compact.TailWindowCompact(target=2), 3, 5), 3)
    turns = list(told(telemetry))
    names = [name for name, *_ in turns]
    assert names.count("compaction") > 1
    for (name, offered, kept, out, _), (_, following, *_) in pairwise(turns):
        if name == "compaction":
            assert set(out) == set(offered) - set(kept) != set()
            assert {message[:2] for message in out.values()} == {("dropped", "outside_window")}
            assert following[: len(kept)] == kept
        else:
            assert set(offered) <= set(following)


async def test_a_summary_made_between_two_asks_stands_in_each_prompt_after_it_for_what_nobody_made(telemetry):
    summariser = Model(*(f"summary {number}" for number in range(9)))
    await talk(MemoryStream(), agent(compact.SummarizeCompact(target=3, config=summariser), 6, 6), 6)
    turns, leaves = list(told(telemetry)), []
    assert [name for name, *_ in turns].count("compaction") > 1
    for (name, offered, kept, out, sources), (_, following, *_) in pairwise(turns):
        if name == "compaction":
            (made,) = set(kept) - set(offered)
            assert {message[:2] for message in out.values()} == {("compacted", "compacted")}
            leaves += (item for item in out if not item.startswith("m"))
            assert sources[made] == f"0-{leaves[-1]}"
            assert following[: len(kept)] == kept
    assert leaves == list(map(str, range(len(leaves))))
