"""Add texts to a page from local transcripts, for spans without captured content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly.page.fields import Texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_CALLER = "caller"


@dataclass(frozen=True, slots=True)
class LocalConversation:
    """The texts of a conversation from a local file.

    Attributes:
        id: The conversation's id; None if the file has none.
        file: The conversation's name on the page, if it has no id.
        prompts: The leading system messages.
        texts: The text parts of each event, in order.
    """

    id: str | None
    file: str
    prompts: Sequence[str]
    texts: Sequence[Sequence[str]]


def add_texts(model: Mapping[str, Any], conversations: Iterable[LocalConversation]) -> int:
    """Add texts from local conversations to the ledgers of a `page_model`.

    A ledger gets the texts of a conversation if its items have the same sizes in bytes as the conversation's events.
    Conversations with the id or the file of the ledger are tried first; any other has to be the only one that matches.

    Returns:
        The number of ledgers whose texts were found.
    """
    candidates = list(conversations)
    texts = Texts(model["texts"])
    filled = 0
    for conversation in model["conversations"]:
        for ledger in conversation["ledgers"]:
            same_name = _with_same_name(conversation, candidates)
            matching = [local for local in same_name or candidates if _matches(ledger, local)]
            # Without the same name, only one conversation may have these sizes.
            if same_name or len(matching) == 1:
                filled += bool(matching)
                for local in matching[:1]:
                    _fill(ledger, local, texts)
    return filled


def _with_same_name(
    conversation: Mapping[str, Any], candidates: Sequence[LocalConversation]
) -> list[LocalConversation]:
    name, file = conversation.get("id"), conversation.get("file")
    same_id = [local for local in candidates if name is not None and local.id == name]
    return same_id or [local for local in candidates if local.file == file]


def _input_items(ledger: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the items of a ledger's input, without the items that policies made."""
    return [row for row in ledger["items"] if row["o"].isdecimal()]


def _matches(ledger: Mapping[str, Any], local: LocalConversation) -> bool:
    rows = _input_items(ledger)
    return bool(rows) and all(
        int(row["o"]) < len(local.texts)
        and row.get("b") == sum(len(text.encode("utf-8", "surrogatepass")) for text in local.texts[int(row["o"])])
        for row in rows
    )


def _fill(ledger: Mapping[str, Any], local: LocalConversation, texts: Texts) -> None:
    for row in _input_items(ledger):
        row.setdefault("x", texts.number("\n".join(local.texts[int(row["o"])])))
    prompts = [texts.number(prompt) for prompt in local.prompts]
    for turn in ledger["turns"]:
        sources = [source for source, _ in turn.get("prompts", ())]
        if sources.count(_CALLER) == len(prompts):
            remaining = iter(prompts)
            turn.setdefault("said", [next(remaining) if source == _CALLER else None for source in sources])
