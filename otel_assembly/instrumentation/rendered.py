"""Conversations that are rendered into the text of one prompt, as selectors of speakers and condensers of questions do.

The messages are then not sent as messages, and are not lost either: the prompt's text contains them. Such a prompt is
an item that stands for them.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.errors import DescribeError
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.messages.content_snapshot import read_from
from otel_assembly.messages.event_facts import EventFacts, EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Messages that may be absent from a text before the search in it ends: it costs one pass over the text for each.
_MOST_ABSENT: Final = 16
#: New messages that are read for a rendering, at most: a conversation is rendered into one prompt, or a few.
_MOST_READ: Final = 4
#: A text this short is looked for between characters that belong to no word.
_SHORT: Final = 12


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A system prompt whose text contains messages of the conversation; it stands for them.

    Attributes:
        text: The text.
    """

    text: str


@describe.register(RenderedPrompt)
def _(prompt: RenderedPrompt) -> EventFacts:
    return EventFacts(EventKind.SYSTEM, prompt.text)


read_from(RenderedPrompt, "text")


def rendered_in(text: str, messages: Sequence[Any]) -> list[Any]:
    """Return those of the messages that a text contains, in their order; none if it is no rendering of them.

    They have to occur in it in order. The search runs from the newest message backwards and costs one pass over the
    text, and another for each message that is absent, of which there may be sixteen.

    Args:
        text: The text of a prompt or of a message that is sent.
        messages: The messages that are not sent as such, oldest first.
    """
    suppress_errors: list[Any] = []
    end, absent, newest = len(text), 0, True
    for message in reversed(messages):
        parts = _texts(message)
        if not parts:
            continue
        start = _start(text, parts, end)
        if start is None:
            absent += 1
            if newest or absent > _MOST_ABSENT:
                break
            continue
        newest, end = False, start
        suppress_errors.append(message)
    return suppress_errors[::-1]


class Rendering(NamedTuple):
    """What a client is given, if a conversation was rendered into it.

    Attributes:
        messages: The messages, with the prompts in front that contain others.
        prompts: The other prompts.
        verdicts: What became of the messages that are not sent as such.
        beside: New messages that contain none.
    """

    messages: Sequence[Any]
    prompts: Sequence[str]
    verdicts: Sequence[Verdict]
    beside: Sequence[Any]


def find_rendering(
    held: Sequence[Any], sent: Sequence[Any], prompts: Sequence[str], known: Sequence[str]
) -> Rendering | None:
    """Find messages that are contained in the text of what is sent; None if there are none.

    Args:
        held: The messages that may be rendered.
        sent: The messages that are sent.
        prompts: The prompts that are sent.
        known: The prompts that there were before.
    """
    there, before = set(map(id, sent)), set(map(id, held))
    missing = [message for message in held if id(message) not in there]
    made = [message for message in sent if id(message) not in before]
    if not missing or len(made) > _MOST_READ:
        return None
    suppress_errors: list[Any] = []
    kept: list[str] = []
    fronts: list[RenderedPrompt] = []
    for text in prompts:
        inside = [] if text in known else _absent(sent, rendered_in(text, missing))
        suppress_errors += inside
        if inside:
            fronts.append(RenderedPrompt(text))
        else:
            kept.append(text)
    beside: list[Any] = []
    for message in made:
        inside = _absent(sent, rendered_in("\n".join(_texts(message)), missing))
        suppress_errors += inside
        if not inside:
            beside.append(message)
    if not suppress_errors:
        return None
    inside_any = set(map(id, suppress_errors))
    lost = _absent(sent, [message for message in missing if id(message) not in inside_any])
    verdicts = [Verdict(suppress_errors, DecisionOutcome.COMPACTED, DecisionReason.COMPACTED)]
    if lost:
        verdicts.append(Verdict(lost, DecisionOutcome.DROPPED, DecisionReason.POLICY))
    return Rendering([*fronts, *sent], kept, verdicts, beside)


def _absent(sent: Sequence[Any], messages: Sequence[Any]) -> list[Any]:
    """Those of the messages that are not sent, as copies either."""
    return [message for message in messages if locate(sent, [message]) is None]


def is_rendered(held: Sequence[Any], sent: Sequence[Any]) -> bool:
    """Whether messages are contained in the text of one of a few that are sent.

    A copy of a message contains the text of that message alone; it renders nothing.
    """
    if not held or len(sent) > _MOST_READ:
        return False
    return any(_is_rendering(message, held, sent) for message in sent)


def _is_rendering(message: Any, held: Sequence[Any], sent: Sequence[Any]) -> bool:
    texts = _texts(message)
    rendered = _absent(sent, rendered_in("\n".join(texts), held))
    return len(rendered) > 1 or any(_texts(original) != texts for original in rendered)


def _texts(message: Any) -> list[str]:
    """What a message says, without its author's name, which a rendering may put in front of it or leave out."""
    try:
        facts = describe(message)
    except DescribeError:
        return []
    texts = list(facts.texts)
    if facts.name in texts:
        texts.remove(facts.name)
    return [stripped for part in texts if (stripped := part.strip())]


def _start(text: str, parts: Sequence[str], end: int) -> int | None:
    """Where a message's texts begin in front of a place of the text; None if one is absent."""
    for part in reversed(parts):
        start = next((at for form in _forms(part) if (at := _before(text, form, end)) >= 0), None)
        if start is None:
            return None
        end = start
    return end


def _before(text: str, part: str, end: int) -> int:
    while (at := text.rfind(part, 0, end)) >= 0 and len(part) < _SHORT:
        around = text[max(0, at - 1) : at], text[at + len(part) : at + len(part) + 1]
        if not any(map(str.isalnum, around)):
            break
        end = at + len(part) - 1
    return at


def _forms(part: str) -> Iterator[str]:
    """The forms in which programs render a text: as it is, and escaped for JSON, XML or Python."""
    yield part
    as_json, ascii_json = json.dumps(part, ensure_ascii=False)[1:-1], json.dumps(part)[1:-1]
    forms = as_json, ascii_json, html.escape(part, quote=False), html.escape(part), repr(part)[1:-1]
    yield from (form for form in dict.fromkeys(forms) if form != part)
