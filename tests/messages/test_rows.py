"""Rows for parts that are objects, and copies of messages with other texts in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import methodcaller
from types import SimpleNamespace
from typing import Any

import pytest

from otel_assembly import describe
from otel_assembly.instrumentation import Instrumentation, ModelCall, StepReport
from otel_assembly.messages import (
    MEDIA_TOKENS,
    Draft,
    EventKind,
    answers,
    asks,
    edited,
    function_schema,
    holds,
    is_silent,
    register_parts,
    register_results,
    register_summaries,
    result_text,
    result_texts,
    says,
    shortened,
    shows,
    summary_like,
)


@dataclass
class Part:
    kind: str = "said"
    id: str = "1"
    name: str = "look"
    text: str = "here"
    files: Any = None

    def spelled(self) -> str:
        return f"<{self.text}>"


@dataclass
class Message:
    parts: list[Part] = field(default_factory=list)


def draft_of(row: Any, part: Part) -> Draft:
    draft = Draft()
    row(draft, part)
    return draft


def test_what_is_said_and_shown():
    draft = draft_of(says("text", methodcaller("spelled"), sealed="id", shown="files"), Part(files=["a", "b"]))
    assert draft.texts == ["here", "<here>"]
    assert (draft.media, draft.said) == (2 * MEDIA_TOKENS, True)
    assert draft_of(says("text", shown="files"), Part()).media == 0
    assert draft_of(says(shown="name"), Part()).media == MEDIA_TOKENS


def test_a_call_whose_arguments_are_worked_out_and_one_that_the_provider_answers():
    asked = draft_of(asks("id", "name", methodcaller("spelled")), Part())
    assert (asked.texts, asked.opens) == (["look", "<here>"], ["1"])
    own = draft_of(asks(None, "name", "text"), Part())
    assert (own.texts, own.opens, own.calls) == (["look", "here"], [], [])


def test_a_call_that_waits_for_an_approval():
    row = asks("id", "name", "text", awaiting=lambda part: part.kind == "asked")
    assert (draft_of(row, Part()).awaiting, draft_of(row, Part("asked")).awaiting) == ([], ["1"])
    assert draft_of(asks("id", "name", "text"), Part("asked")).awaiting == []
    assert row.contents([Part("asked")]) == [("1", "look", "here", True)], "copies of it wait, too"


def test_a_part_that_asks_for_the_approval_of_a_call_says_it_only_where_it_stands_nowhere_else():
    call, approval = asks("id", "name", "text"), asks("id", "name", "text", awaiting=True)
    draft = draft_of(approval, Part())
    assert (draft.texts, draft.opens, draft.awaiting) == (["look", "here"], ["1"], ["1"])
    draft = draft_of(call, Part())
    approval(draft, Part())
    assert (draft.texts, draft.opens, draft.awaiting) == (["look", "here"], ["1"], ["1"])
    approval(draft, Part(id="2"))
    assert (draft.opens, draft.awaiting) == (["1", "2"], ["1", "2"])


def test_calls_of_one_id_that_wait_are_each_said():
    row = asks("id", "name", "text", awaiting=lambda part: True)
    draft = draft_of(row, Part())
    row(draft, Part())
    assert (draft.opens, draft.awaiting, len(draft.calls)) == (["1", "1"], ["1", "1"], 2)


def test_a_part_that_holds_others():
    row = holds("files", {"said": says("text"), "note": is_silent}, "kind")
    assert draft_of(row, Part(files="a text")).texts == ["a text"]
    held = draft_of(row, Part(files=["one", Part("said"), Part("note"), {"odd": 1}]))
    assert held.texts[:2] == ["one", "here"]
    assert held.unknown == ["dict"]


@pytest.mark.parametrize(("call", "closes"), [("id", ["1"]), (None, [])])
def test_a_result_is_said_by_nobody(call, closes):
    draft = draft_of(answers(call, "text", shown="files"), Part(files=["a"]))
    assert (draft.texts, draft.closes, draft.media) == (["here"], closes, MEDIA_TOKENS)
    assert draft.said is False
    assert draft_of(answers("id", "text"), Part()).said is False


def test_a_copy_holds_what_the_message_held():
    part = Part(files=["a"])
    made = edited(part, text="there")
    assert (made.text, made.files, part.text) == ("there", ["a"], "here")
    assert type(made) is Part


def test_results_are_shortened_where_their_attributes_say():
    @dataclass
    class Answered(Message):
        pass

    register_results(Answered, "parts", lambda part: part.text if part.kind == "result" else "", "text")
    message = Answered([Part("said"), Part("result", text="a long story")])
    assert result_texts(message) == ["a long story"]
    short = shortened(message, ["a story"])
    assert [part.text for part in short.parts] == ["here", "a story"]
    assert short.parts[0] is message.parts[0]
    assert [part.text for part in message.parts] == ["here", "a long story"]


def test_the_schema_of_a_tool():
    assert function_schema("look", None, {"type": "object"}) == {
        "type": "function",
        "function": {"name": "look", "description": "", "parameters": {"type": "object"}},
    }


def test_an_event_of_parts_is_read_by_their_rows():
    @dataclass
    class Told(Message):
        pass

    class Odd(Part):
        def to_dict(self) -> dict[str, str]:
            return {"odd": self.text}

    register_parts(
        Told,
        "parts",
        "kind",
        {"said": says("text"), "result": answers("id", "text"), "note": is_silent},
        lambda message, draft: EventKind.TOOL_RESULT if draft.closes else EventKind.REQUEST,
        lambda message: {"id": "m1", "name": "clerk"},
    )
    facts = describe(Told([Part("said"), Part("note"), Odd("odd")]))
    assert (facts.kind, facts.id, facts.name, facts.unknown) == ("request", "m1", "clerk", ("odd",))
    assert facts.texts == ("here", "clerk", '{"odd": "here"}')
    assert describe(Told([Part("result")])).kind == "tool_result"


def test_what_else_is_known_of_an_event_is_where_its_table_says():
    @dataclass
    class Billed(Message):
        tokens: Any = None

    known = {"billed_tokens": "tokens.billed", "output_tokens": lambda message: message.tokens.made}
    register_parts(Billed, "parts", "kind", {"said": says("text")}, lambda *_: EventKind.RESPONSE, known)
    facts = describe(Billed([Part()], SimpleNamespace(billed=7, made=0)))
    assert (facts.billed_tokens, facts.output_tokens) == (7, None)


def test_the_text_of_a_part_that_is_a_result():
    text = result_text("kind", "result", "text")
    assert [text(Part("result")), text(Part("said")), text(Part("result", text=b"x"))] == ["here", "", ""]


def test_a_summary_stands_for_events_of_each_of_these_types():
    class One(Message):
        pass

    class Other(Message):
        pass

    register_summaries(lambda said: One([Part(text=said)]), One, Other)
    for event in (One(), Other()):
        summary = summary_like(event, "they met", [event])
        assert type(summary) is One
        assert summary.parts[0].text.endswith("they met")


@dataclass
class Held:
    """A message whose copies are known by what is read of it."""

    parts: list[Part]
    role: str = "user"


def test_copies_are_known_by_what_the_rows_read_of_their_parts(assembly_telemetry):
    rows = {"said": says("text"), "asked": asks("id", "name", "text"), "shown": shows}
    register_parts(Held, "parts", "kind", rows, lambda *_: EventKind.REQUEST, read=lambda held: held.role)
    one = Held([Part(files=1), Part("asked", files=2)])

    def knows(copy, of=one):
        return ModelCall(Instrumentation("pretend"), messages=[of]).reduced(StepReport("window", [copy], []))

    with assembly_telemetry.as_default():
        assert knows(Held([Part(), Part("asked")])), "no row reads the files"
        assert not knows(Held(one.parts, role="tool"))
        assert not knows(Held([Part(), Part("asked", text="there")]))
        assert not knows(Held([Part("shown")]), Held([Part("shown", files=1)])), "nobody knows what this row reads"


def test_an_event_may_have_no_parts_at_all(assembly_telemetry):
    register_parts(Held, "parts", "kind", {}, lambda *_: EventKind.REQUEST, read=lambda held: held.role)
    call = ModelCall(Instrumentation("pretend"), messages=[Held(None)])
    assert not describe(Held(None)).texts
    with assembly_telemetry.as_default():
        assert call.reduced(StepReport("window", [Held(None)], []))


def test_copies_are_known_by_what_is_known_of_them(assembly_telemetry):
    @dataclass
    class Named(Held):
        name: str = "clerk"

    known = {"name": "name"}
    register_parts(Named, "parts", "kind", {}, lambda *_: EventKind.REQUEST, known, lambda held: held.role)
    call = ModelCall(Instrumentation("pretend"), messages=[Named([])])
    with assembly_telemetry.as_default():
        assert call.reduced(StepReport("window", [Named([])], []))
        call = ModelCall(Instrumentation("pretend"), messages=[Named([])])
        assert not call.reduced(StepReport("window", [Named([], name="somebody")], []))
