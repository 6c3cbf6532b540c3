"""What happened to the items of blocks, where the allocator ran outside of any assembly."""

from __future__ import annotations

import pytest

from otel_assembly import AssemblyError, Block, BlockItem, allocate
from otel_assembly.explain import Explainer, detail_lines
from otel_assembly.telemetry import read_ledgers


@pytest.fixture
def explainer(recorder):
    passages = [BlockItem("passage one " * 10, rank=1), BlockItem("passage two " * 30, rank=2)]
    blocks = [
        Block("rules", 1, "be kind", cuttable=False),
        Block("question", 3, "where is my bag", cuttable=False),
        Block("docs", 5, passages, cuttable=True),
        Block("notes", 6, "remember " * 40, cuttable=True),
    ]
    with recorder.as_default():
        allocate(blocks, window=120, output_reserve=20)
    assert read_ledgers(recorder.spans) == {}
    (ledger,) = read_ledgers(recorder.spans, allocations=True).values()
    assert ledger.problems == []
    return Explainer(ledger, 0)


def test_a_cut_item_has_its_block_its_rule_and_what_was_left(explainer):
    answer = explainer.explain("3")
    assert (answer.outcome, answer.reason, answer.policy) == ("dropped", "low_rank", "allocator")
    assert (answer.block.name, answer.block.kind, answer.block.priority) == ("docs", "evidence", 5)
    assert answer.block.remaining < answer.tokens + explainer.explain("2").tokens
    assert (answer.limit.setting, answer.limit.limit, answer.limit.left >= 0) == (120, 100, True)
    assert {competitor.item for competitor in answer.competitors} == set("012")
    assert answer.unknown == ()
    (change,) = answer.raises
    assert (change.policy, change.parameter, change.to) == ("allocator", "window", 120 + change.extra)
    assert "docs (evidence, priority 5)" in dict(detail_lines(answer))["block"]


def test_a_kept_item_has_its_block(explainer):
    answer = explainer.explain("4")
    assert (answer.outcome, answer.block.name, answer.standing.of) == ("kept", "notes", 4)


def test_what_is_out_is_listed_and_an_unknown_item_refused(explainer):
    (group,) = explainer.absent()
    assert (group.reason, group.items) == ("low_rank", ("3",))
    with pytest.raises(AssemblyError, match="no item 5"):
        explainer.explain("5")
