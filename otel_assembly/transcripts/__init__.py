"""Read transcripts: recorded conversations, requests to providers, and logs of coding agents.

`read_transcripts` yields the conversations of files in any installed format. A format is a `TranscriptFormat` under the
entry point group ``otel_assembly.transcripts``.
"""

from otel_assembly.transcripts.conversation import Conversation, LoggedCall, LoggedReduction
from otel_assembly.transcripts.growing_log import GrowingLog
from otel_assembly.transcripts.json_values import MalformedError
from otel_assembly.transcripts.reading import GrowingFile, Transcript, read_transcripts
from otel_assembly.transcripts.records import Record
from otel_assembly.transcripts.transcript_format import Check, Sample, TranscriptFormat, has_keys, installed_formats

__all__ = [
    "Check",
    "Conversation",
    "GrowingFile",
    "GrowingLog",
    "LoggedCall",
    "LoggedReduction",
    "MalformedError",
    "Record",
    "Sample",
    "Transcript",
    "TranscriptFormat",
    "has_keys",
    "installed_formats",
    "read_transcripts",
]
