"""How an assembly is shown: one line in a terminal, a small table in a notebook, and no content in either."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    BudgetPolicy,
    Context,
    ContextAssembler,
    ContextOverflowError,
    ConversationPolicy,
    HaltedError,
    HaltEvent,
    ModelRequest,
    ModelResponse,
    ObserverAlert,
    SlidingWindowPolicy,
    Task,
)
from otel_assembly.errors import TokenizerError
from otel_assembly.events import TurnStarted


def talk(turns: int = 20) -> list:
    events: list = [TurnStarted(turn=0)]
    for at in range(turns):
        events += [ModelRequest(content=f"secret question {at}"), ModelResponse(content=f"secret answer {at} " * 20)]
    return events


async def cut() -> object:
    chain = [AlertPolicy(), ConversationPolicy(), BudgetPolicy(600, 100)]
    return await Assembler(chain, model="gpt-4o").assemble(["Be <kind>."], talk())


async def test_one_line_says_what_came_in_what_goes_out_and_what_left():
    assembly = await cut()
    totals = assembly.totals
    line = repr(assembly)
    assert line == (
        f"Assembly(turn 0: {totals.tokens_in:,} -> {totals.tokens_out:,} of 500 tokens, "
        f"{totals.events_in} -> {totals.events_out} events, {totals.dropped} dropped)"
    )
    assert line.isascii()


async def test_one_line_says_where_counts_are_an_estimate():
    assembly = await Assembler([SlidingWindowPolicy(2)], model="claude-sonnet-4-5").assemble([], talk())
    assert "tokens (estimated)" in repr(assembly)


async def test_one_line_says_that_nothing_is_sent_and_by_how_much_it_was_over():
    with pytest.raises(ContextOverflowError) as raised:
        await Assembler([BudgetPolicy(40, 10)]).assemble(["word " * 60], [ModelRequest(content="hi")])
    assembly = raised.value.assembly
    over = assembly.totals.overflow.excess
    assert f"over by {over:,} tokens (fixed)" in repr(assembly)
    assert "nothing is sent (ContextOverflowError)" in repr(assembly)
    assert "nothing is sent" in assembly._repr_html_()


async def test_one_line_says_that_a_conversation_is_halted_and_by_whom_but_not_why():
    context = Context()
    await context.send(HaltEvent(reason="secret reason", source="token_monitor"))
    with pytest.raises(HaltedError) as raised:
        await Assembler([]).assemble([], [ModelRequest(content="hi")], context)
    for shown in (repr(raised.value.assembly), raised.value.assembly._repr_html_()):
        assert "halted by token_monitor" in shown
        assert "secret" not in shown


async def test_a_line_is_never_an_error():
    class Broken:
        name, method, generation = "broken", "exact", 0

        def count(self, text):
            raise TokenizerError("it is broken")

    assembly = await Assembler([SlidingWindowPolicy(2)], counter=Broken()).assemble([], talk(2))
    assert repr(assembly) == "Assembly(turn 0: tokens unknown (TokenizerError), 5 -> 2 events)"
    assert "TokenizerError" in assembly._repr_html_()


class Table(HTMLParser):
    """The cells of a page's tables, row by row, and whether its tags are balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.rows and self.rows[-1] and {"td", "th"}.intersection(self.open):
            self.rows[-1][-1] += data


async def test_a_notebook_shows_what_fills_the_prompt_and_what_left_by_which_rule():
    assembly = await cut()
    table = Table(assembly._repr_html_())
    assert table.open == []
    rows = [[cell.strip() for cell in row] for row in table.rows]
    by_kind = {row[0]: int(row[1].replace(",", "")) for row in rows if row[0] in assembly.kinds}
    assert by_kind == assembly.kinds
    assert ["budget", "over_budget", str(assembly.totals.dropped - 1)] in [row[:3] for row in rows]
    assert ["conversation", "not_conversation", "1"] in [row[:3] for row in rows]
    assert sum(int(row[2]) for row in rows if row[0] in {"budget", "conversation"}) == assembly.totals.dropped


async def test_a_notebook_shows_no_content_and_nothing_that_it_could_run():
    class Odd:
        name = "<script>alert(1)</script>"

        async def apply(self, prompts, events, context):
            return [*prompts, "secret prompt"], events[-1:]

    assembly = await Assembler([Odd(), AlertPolicy()]).assemble(
        ["secret system"], [*talk(3), ObserverAlert(source="<b>me</b>", severity="warning", message="secret alert")]
    )
    page = assembly._repr_html_()
    assert "secret" not in page
    assert "<script" not in page
    assert "<b>me" not in page
    assert "&lt;script&gt;" in page
    assert "secret" not in repr(assembly)


async def test_what_a_context_assembler_gives_is_shown_in_a_notebook_too():
    desk = ContextAssembler(
        system="secret", window=400, output_reserve=50, scopes=lambda user, task: {"public"}, state=lambda *_: "secret"
    )
    made = await desk.assemble(Task("secret?", recent=talk(20)), user="ada")
    page = made._repr_html_()
    assert "secret" not in page
    assert ["allocator", "over_budget"] in [row[:2] for row in Table(page).rows]
