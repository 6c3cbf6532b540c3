"""Every event has its tokens when it comes into an assembly: counted once, off the event loop where it is much."""

from __future__ import annotations

import threading

import pytest
from assembling import SpyCounter, recording, requests, turns

from otel_assembly import (
    Assembler,
    Context,
    ConversationPolicy,
    History,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
)
from otel_assembly.errors import PolicyFailedError

KIB, MIB = 1024, 1024 * 1024


class Watched(SpyCounter):
    """Counts words, and remembers which threads it counted in."""

    def __init__(self):
        super().__init__()
        self.threads = set()

    def count(self, text):
        self.threads.add(threading.current_thread())
        return super().count(text)


@pytest.mark.parametrize(("size", "elsewhere"), [(60 * KIB, False), (70 * KIB, True)])
async def test_much_new_text_is_counted_in_a_thread(size, elsewhere):
    counter, here = Watched(), threading.current_thread()
    assembler, history = Assembler([ConversationPolicy()], counter=counter), History(requests("a " * (size // 2)))
    assembly = await assembler.assemble([], history)
    assert (counter.threads == {here}) is not elsewhere
    assert len(counter.asked) == 1
    assert assembly.totals.tokens_in == 3 + 4 + size // 2
    counter.threads.clear()
    history.append(ModelRequest(content="b"))
    await assembler.assemble([], history)
    assert counter.threads == {here}


async def test_what_a_policy_makes_of_much_text_is_counted_in_a_thread():
    counter, here = Watched(), threading.current_thread()

    class Finds:
        name = "finds"

        async def apply(self, prompts, events, context):
            return prompts, [*events, ModelRequest(content="found " * 20 * KIB)]

    assembly = await Assembler([Finds()], counter=counter).assemble([], requests("a"))
    assert here not in counter.threads - {here}
    assert counter.threads > {here}
    assert assembly.totals.injected_tokens == 4 + 20 * KIB


def large(pieces, piece=MIB):
    """Texts of so many bytes, and as many tokens as it has words of eight."""
    return [ModelRequest(content=f"{number:<7} " + "word of " * (piece // 8 - 1)) for number in range(pieces)]


async def test_of_more_than_four_mebibytes_the_oldest_are_estimated_and_say_so():
    telemetry, counter, history = recording(0, 1), SpyCounter(), History(large(6))
    assembler = Assembler([SlidingWindowPolicy(2)], recorder=telemetry.recorder, counter=counter)
    totals = (await assembler.assemble([], history)).totals
    assert (len(counter.asked), totals.estimated_in) == (4, 2)
    history.append(ModelRequest(content="b"))
    totals = (await assembler.assemble([], history)).totals
    assert (len(counter.asked), totals.estimated_in) == (5, 2)
    zero, one = turns(telemetry)
    assert zero.span.attributes["assembly.tokens.estimated.items"] == ["0-1"]
    exact = 4 + len(large(1)[0].content.split())
    assert {zero.arrived[str(item)] for item in range(2, 6)} == {exact}
    assert zero.arrived["0"] == zero.arrived["1"] == pytest.approx(exact, rel=0.001)
    assert "assembly.tokens.estimated.items" not in one.span.attributes
    assert telemetry.violations() == []


@pytest.mark.parametrize("chain", [[], [TokenBudgetPolicy(1_300_000)]], ids=["kept", "near the cut"])
async def test_what_may_stand_in_a_prompt_or_decide_a_cut_is_counted(chain):
    counter, history = SpyCounter(), History(large(8))
    assembler = Assembler(chain, counter=counter)
    assembly = await assembler.assemble([], history)
    exact = [4 + len(event.content.split()) for event in history]
    assert assembly.totals.tokens_out == 3 + sum(exact[8 - len(assembly.events) :])
    assert len(counter.asked) == min(8, len(assembly.events) + 1)
    assert assembly.totals.estimated_in == 8 - len(counter.asked)


async def test_an_estimate_that_is_counted_later_is_told_again():
    telemetry, counter, history = recording(0, 1), SpyCounter(), History(large(6))
    window, context = Assembler([SlidingWindowPolicy(2)], recorder=telemetry.recorder, counter=counter), Context()
    assert (await window.assemble([], history, context)).totals.estimated_in == 2
    (await Assembler([], counter=counter).assemble([], history)).totals  # noqa: B018  # another sends all of it
    history.append(ModelRequest(content="b"))
    assert (await window.assemble([], history, context)).totals.estimated_in == 0
    told = turns(telemetry)[1].arrived
    assert [told["0"], told["1"]] == [4 + len(event.content.split()) for event in history[:2]]


class Fails(SpyCounter):
    """Cannot count one text."""

    def count(self, text):
        if text == "never":
            raise ValueError("no")
        return super().count(text)


async def test_a_text_that_cannot_be_counted_matters_where_it_may_stand_in_a_prompt():
    history = History(requests("never", *"abcdef"))
    assembler = Assembler([TokenBudgetPolicy(20)], counter=Fails())
    assert [event.content for event in (await assembler.assemble([], history)).events] == ["d", "e", "f"]
    with pytest.raises(PolicyFailedError):
        await Assembler([TokenBudgetPolicy(500)], counter=Fails()).assemble([], history)
    assembly = await Assembler([SlidingWindowPolicy(2)], counter=Fails()).assemble([], history)
    assert assembly.totals.estimated_in == 1
