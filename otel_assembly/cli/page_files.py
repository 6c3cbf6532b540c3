"""Convert transcripts (recorded conversations in files) into the labels and texts that an HTML page shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from otel_assembly.errors import TranscriptError
from otel_assembly.messages.event_facts import EventKind, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.page import LocalConversation
    from otel_assembly.transcripts import Transcript


def split_prompts(messages: Sequence[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Split messages into prompts (the texts of the leading system messages) and events (all other messages)."""
    prompts: list[str] = []
    for index, message in enumerate(messages):
        facts = describe(message)
        if facts.kind != EventKind.SYSTEM:
            return prompts, list(messages[index:])
        prompts.append("\n".join(facts.texts))
    return prompts, []


def prompts_and_events(
    transcript: Transcript, messages: Sequence[dict[str, Any]]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Split messages of a transcript into prompts and events.

    If the transcript states its system prompts separately, all messages are events. Otherwise, the leading system
    messages are the prompts.

    Args:
        transcript: The transcript.
        messages: Its messages, or those of one of its calls.
    """
    return (list(transcript.prompts), list(messages)) if transcript.prompts else split_prompts(messages)


def transcript_label(transcript: Transcript) -> str:
    """Return a transcript's label on a page: file name and line, or its generated id if the file contains no id.

    The label names the parts of the prompts that the file does not contain.
    """
    name = os.path.basename(transcript.path)
    label = transcript.id if not transcript.named else f"{name}:{transcript.line}" if transcript.line else name
    return f"{label} (unknown: {', '.join(transcript.unknown)})" if transcript.unknown else label


def local_conversation(transcript: Transcript) -> LocalConversation:
    """Convert a transcript into its id, label, prompts and message texts.

    An HTML page shows these texts together with recorded spans, which need not contain any texts. The conversation's id
    is None if the file contains no id.
    """
    from otel_assembly.page import LocalConversation

    prompts, events = prompts_and_events(transcript, transcript.messages)
    texts = [describe(event).texts for event in events]
    return LocalConversation(transcript.id if transcript.named else None, transcript_label(transcript), prompts, texts)


def read_local(paths: Sequence[str]) -> list[LocalConversation]:
    """Read all conversations in these transcript files, as texts for a page.

    Raises:
        TranscriptError: A conversation cannot be read.
    """
    from otel_assembly.transcripts import read_transcripts

    conversations = []
    for transcript in read_transcripts(paths):
        if isinstance(transcript, TranscriptError):
            raise transcript
        conversations.append(local_conversation(transcript))
    return conversations
