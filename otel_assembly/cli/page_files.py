"""The transcripts of a page: their labels, and their texts in the form that the page needs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import TranscriptError
from otel_assembly.messages.event_facts import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.cli.transcripts import Transcript
    from otel_assembly.page import LocalConversation


def split_prompts(messages: Sequence[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Split messages into prompts (the leading system messages) and events (the rest)."""
    prompts: list[str] = []
    for index, message in enumerate(messages):
        facts = describe(message)
        if facts.kind != EventKind.SYSTEM:
            return prompts, list(messages[index:])
        prompts.append("\n".join(facts.texts))
    return prompts, []


def transcript_label(transcript: Transcript) -> str:
    """Return the name of a transcript on a page: its file and line, or its id if the file gave none."""
    name = os.path.basename(transcript.path)
    return transcript.id if not transcript.named else f"{name}:{transcript.line}" if transcript.line else name


def local_conversation(transcript: Transcript) -> LocalConversation:
    """Return the prompts and texts of a transcript for a page."""
    from otel_assembly.page import LocalConversation

    prompts, events = split_prompts(transcript.messages)
    texts = [describe(event).texts for event in events]
    return LocalConversation(transcript.id if transcript.named else None, transcript_label(transcript), prompts, texts)


def read_local(paths: Sequence[str]) -> list[LocalConversation]:
    """Return all conversations of these files.

    Raises:
        TranscriptError: A conversation cannot be read.
    """
    from otel_assembly.cli.transcripts import read_transcripts

    found = []
    for transcript in read_transcripts(paths):
        if isinstance(transcript, TranscriptError):
            raise transcript
        found.append(local_conversation(transcript))
    return found
