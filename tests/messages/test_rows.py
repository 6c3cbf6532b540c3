"""Rows for messages whose parts are objects, as a framework's module registers them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import attrgetter

from otel_assembly import EventKind, History, describe
from otel_assembly.messages import (
    MEDIA_TOKENS,
    Draft,
    asks,
    is_silent,
    read_part,
    register_results,
    result_texts,
    says,
    shortened,
    shows,
)


@dataclass
class Text:
    text: str
    seal: str = ""


@dataclass
class Call:
    id: str
    tool: str
    given: dict


@dataclass
class Picture:
    url: str = "https://example.com/a.png"


@dataclass
class Mark:
    pass


@dataclass
class Novelty:
    word: str = "new"


@dataclass
class Result:
    text: str
    call: str


@dataclass
class Message:
    parts: list = field(default_factory=list)


def answers(draft, part):
    draft.text(part.text)
    draft.result(part.call)


ROWS = {Text: says("text", sealed="seal"), Call: asks("id", "tool", "given"), Picture: shows, Mark: is_silent} | {
    Result: answers
}


@describe.register
def _(message: Message):
    draft = Draft()
    for part in message.parts:
        read_part(draft, ROWS, type(part), part)
    return draft.facts(EventKind.RESPONSE, {})


register_results(
    Message,
    attrgetter("parts"),
    lambda part: part.text if isinstance(part, Result) else "",
    lambda part, text: replace(part, text=text),
    lambda message, parts: replace(message, parts=parts),
)


def test_each_part_is_read_by_its_row():
    facts = describe(Message([Text("Look.", "c2VhbGVk"), Call("1", "find", {"a": 1}), Picture(), Mark()]))
    assert [facts.text, *facts.fields] == ["Look.", "find", '{"a": 1}']
    assert [*facts.opens] == ["1"]
    assert facts.media_tokens == MEDIA_TOKENS + 1
    assert not facts.unknown


def test_a_part_that_has_no_row_counts_by_what_it_holds_and_is_named(caplog):
    facts = describe(Message([Novelty()]))
    assert facts.text == '{"word": "new"}'
    assert facts.unknown == ("Novelty",)


def test_results_are_shortened_each_by_itself():
    kept, cut = Result("short", "1"), Result("very long", "2")
    message = Message([Text("Here."), kept, cut, Result("", "3")])
    assert [*result_texts(message)] == ["short", "very long"]
    made = shortened(message, ["short", "very"])
    assert [*result_texts(made)] == ["short", "very"]
    assert made.parts[1] is kept
    assert (message.parts[2].text, made.parts[3]) == ("very long", message.parts[3])
    assert History([Message([Call("1", "find", {}), Call("2", "find", {}), Call("3", "find", {})]), made])
