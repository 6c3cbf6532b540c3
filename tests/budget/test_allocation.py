"""What `allocate` gives back is used as the list of blocks that it holds."""

from __future__ import annotations

from recount import count

from otel_assembly import Block, allocate
from otel_assembly.budget import Cut, order_for_attention_and_cache


def shortened(text: str, target_tokens: int) -> str:
    return " ".join(text.split()[: max(1, target_tokens - 1)])


def desk_of(window: int, reserve: int):
    """The seed's function: blocks, what fits of them, and that in order; nothing reaches into the allocation."""
    blocks = [
        Block("system", 1, "You are the support desk.", cuttable=False),
        Block("schema", 2, "Answer in one sentence.", cuttable=False),
        Block("query", 3, "Why was I charged twice?", cuttable=False),
        Block("state", 4, "plan: pro", cuttable=False),
        Block("evidence", 5, "Two charges on one day are a reservation and a booking. " * 4, True, min_tokens=5),
        Block("memory", 6, "Likes short answers. " * 40, cuttable=True, min_tokens=110),
    ]
    kept = allocate(blocks, window, reserve, count, shortened)
    return kept, order_for_attention_and_cache(kept, query_block="query")


def test_an_allocation_is_iterated_over_as_the_list_that_the_seed_returns():
    kept, prompt = desk_of(120, 40)
    assert [block.name for block in kept] == ["system", "schema", "query", "state", "evidence"]
    assert list(kept) == kept.blocks
    assert sum(count(block.content) for block in kept) == kept.used <= 80
    assert [block.name for block in prompt] == ["system", "schema", "evidence", "state", "query"]
    assert len(kept) == 5
    assert kept.blocks[0] in kept


def test_an_allocation_of_nothing_is_still_an_answer():
    """``allocation or allocate(…)`` must not allocate a second time where nothing fits."""
    nothing = allocate([Block("older", 9, "word " * 500, cuttable=True, cut=Cut.WHOLE)], 20, 10)
    assert list(nothing) == []
    assert len(nothing) == 0
    assert nothing
    assert [item.block for item in nothing.dropped] == ["older"]
