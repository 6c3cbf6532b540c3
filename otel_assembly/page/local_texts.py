"""Texts of a page that come from files beside it, and from no span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly.page.fields import Texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_CALLER = "caller"


@dataclass(frozen=True, slots=True)
class LocalConversation:
    """What a conversation says, in a local file.

    Attributes:
        id: Its id, where the file names one.
        file: What the page calls it where there is no id.
        prompts: The prompts that lead it.
        texts: What each of its events says, in order: the parts that the model reads.
    """

    id: str | None
    file: str
    prompts: Sequence[str]
    texts: Sequence[Sequence[str]]


def add_texts(model: Mapping[str, Any], told: Iterable[LocalConversation]) -> int:
    """Put texts into a `page_model` wherever a ledger's items all have the bytes of what a conversation says.

    Returns:
        How many ledgers have their texts now. A ledger that any item contradicts has none.
    """
    known = list(told)
    texts = Texts(model["texts"])
    filled = 0
    for conversation in model["conversations"]:
        for ledger in conversation["ledgers"]:
            own = _own(conversation, known)
            agreeing = [one for one in own or known if _agrees(ledger, one)]
            # Where nothing but sizes speaks for it, no other conversation may have the same.
            if own or len(agreeing) == 1:
                filled += bool(agreeing)
                for one in agreeing[:1]:
                    _fill(ledger, one, texts)
    return filled


def _own(conversation: Mapping[str, Any], known: Sequence[LocalConversation]) -> list[LocalConversation]:
    name, file = conversation.get("id"), conversation.get("file")
    named = [one for one in known if name is not None and one.id == name]
    return named or [one for one in known if one.file == file]


def _given(ledger: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items that came in; the others were made by policies, and no file has them."""
    return [row for row in ledger["items"] if row["o"].isdecimal()]


def _agrees(ledger: Mapping[str, Any], one: LocalConversation) -> bool:
    rows = _given(ledger)
    return bool(rows) and all(
        int(row["o"]) < len(one.texts)
        and row.get("b") == sum(len(text.encode("utf-8", "surrogatepass")) for text in one.texts[int(row["o"])])
        for row in rows
    )


def _fill(ledger: Mapping[str, Any], one: LocalConversation, texts: Texts) -> None:
    for row in _given(ledger):
        row.setdefault("x", texts.number("\n".join(one.texts[int(row["o"])])))
    prompts = [texts.number(prompt) for prompt in one.prompts]
    for turn in ledger["turns"]:
        sources = [source for source, _ in turn.get("prompts", ())]
        if sources.count(_CALLER) == len(prompts):
            left = iter(prompts)
            turn.setdefault("said", [next(left) if source == _CALLER else None for source in sources])
