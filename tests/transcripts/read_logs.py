"""Reading the logs of tests."""

from __future__ import annotations

from otel_assembly.transcripts import Transcript, read_transcripts


def read(path):
    """All conversations of a file; an unreadable one fails the test."""
    found = list(read_transcripts([path]))
    assert all(isinstance(each, Transcript) for each in found), found
    return found


def read_one(path):
    (found,) = read(path)
    return found


def prompts(transcript):
    """The messages of each call, by the call's id."""
    return {call.id: list(call.messages) for call in transcript.calls}
