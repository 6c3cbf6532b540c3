"""Follow the log of a coding agent, or another transcript, while it grows; assemble only its new turns."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_assembly.cli.replay_turns import ReplayAssembler, turn_inputs
from otel_assembly.cli.tally import Variant
from otel_assembly.cli.transcript_replay import replay_turns
from otel_assembly.context import Context
from otel_assembly.errors import TranscriptError
from otel_assembly.policies import ConversationPolicy
from otel_assembly.telemetry import ContentCapture, OpenTelemetryRecorder, TelemetrySettings
from otel_assembly.telemetry.otlp_json import StoredEvent, StoredLink, StoredSpan
from otel_assembly.tokens import counter_for
from otel_assembly.transcripts import read_transcripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_assembly.transcripts import Transcript

__all__ = ["FollowedLog", "LogUpdate"]

#: The names of the files in a directory that can be logs.
_SUFFIXES: Final = frozenset({".json", ".jsonl", ".ndjson"})
#: The turns in one update, so that the page of a long log shows its first turns early.
_BATCH: Final = 20
#: The problems that are described.
_MAX_PROBLEMS: Final = 100


class LogUpdate(NamedTuple):
    """A change of the page.

    Attributes:
        spans: The spans of new turns.
        removed: The id of a conversation that is removed; it starts again, or the file does not contain it anymore.
    """

    spans: list[StoredSpan]
    removed: str | None = None


@dataclass(slots=True)
class _Conversation:
    """A conversation, as far as it was assembled.

    Attributes:
        context: The context of its turns, to which the assembler keeps a ledger.
        digests: The digest of each turn's input.
    """

    context: Context
    digests: list[bytes] = field(default_factory=list)


class FollowedLog:
    """A log file that grows, or a directory, in which the newest file with a conversation is followed.

    Each reading parses the whole file, because 40 formats can be read, but assembles new turns only. A turn is known if
    its input and the inputs of all turns before it have the digests of the last reading. If an earlier input differs,
    as after a rewind or in a replaced file, the conversation starts again.

    Example::

        log = FollowedLog(Path("session.jsonl"), content=True, say=print)
        for update in log.updates():
            page.add(update.spans)

    Args:
        path: The file or the directory.
        content: Whether the spans contain the texts of messages.
        say: Called with a line about each file that is followed, and once with each problem.

    Attributes:
        folders: The directories in which files change. A program that replaces a file renames another one to its name,
            which only the directory notices. A symbolic link and its target can be in different directories.
    """

    def __init__(self, path: Path, *, content: bool, say: Callable[[str], None]) -> None:
        self._path = path.absolute()
        self.folders = {path.resolve()} if path.is_dir() else {path.parent.resolve(), path.resolve().parent}
        self._say = say
        self._said: set[str] = set()
        self._followed: Path | None = None
        self._states: dict[Path, tuple[int, int, int]] = {}
        self._ids: dict[Path, set[str]] = {}
        self._conversations: dict[str, _Conversation] = {}
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        capture = ContentCapture.SPAN_ONLY if content else ContentCapture.NO_CONTENT
        self._recorder = OpenTelemetryRecorder(tracer_provider=provider, settings=TelemetrySettings(content=capture))
        assembler = ReplayAssembler([ConversationPolicy()], recorder=self._recorder, on_halt="return")
        self._variant = Variant("conversation", lambda: assembler, None, counter_for(), keeps_logged_prompts=True)
        self._variant.assembler = assembler

    def updates(self) -> Iterator[LogUpdate]:
        """Read the log again if it has changed, and yield its changes."""
        if not self._path.is_dir():
            yield from self._updates_of(self._path)
            return
        files = self._files()
        if self._followed is not None:
            yield from self._updates_of(self._followed)  # its last lines, also if there is a newer file
        for path in files:
            if path == self._followed:
                return
            yield from self._updates_of(path)
            if path == self._followed:
                return
        if self._followed is None:
            self._report(f"{self._path}: no file with a conversation yet (.json, .jsonl, .ndjson)")

    def _files(self) -> list[Path]:
        """Return the files of the directory that can be logs, the newest first."""
        paths = (path for path in self._path.iterdir() if path.suffix.lower() in _SUFFIXES)
        found = [(state[0], path) for path in paths if (state := _state(path)) is not None]
        return [path for _, path in sorted(found, reverse=True)]

    def _updates_of(self, path: Path) -> Iterator[LogUpdate]:
        """Read a file, and yield its changes; follow the file if it contains a conversation."""
        state = _state(path)
        if (
            state is not None
            and self._states.get(path) == state
            and (path == self._followed or not self._ids.get(path))
        ):
            return
        found: set[str] = set()
        is_whole = True
        for transcript in read_transcripts([path], growing=True):
            if isinstance(transcript, TranscriptError):
                is_whole = False
                # A directory can contain other files, too.
                if not self._path.is_dir() or path == self._followed:
                    self._report(str(transcript))
                continue
            if path != self._followed:
                self._followed = path
                missing = f"; the log does not contain: {', '.join(transcript.unknown)}" if transcript.unknown else ""
                self._say(f"follows {path} ({transcript.format}){missing}")
            found.add(transcript.id)
            yield from self._updates_of_conversation(transcript)
            for text in transcript.skipped:
                self._report(f"{path}: not understood: {text}")
        if state is not None:
            self._states[path] = state
        if found and is_whole:
            for conversation in self._ids.get(path, set()) - found:
                del self._conversations[conversation]
                yield LogUpdate([], conversation)
            self._ids[path] = found

    def _updates_of_conversation(self, transcript: Transcript) -> Iterator[LogUpdate]:
        digests = _digests(transcript)
        known = self._conversations.get(transcript.id)
        if known is None or digests[: len(known.digests)] != known.digests:
            if known is not None:
                yield LogUpdate([], transcript.id)
            known = _Conversation(Context(conversation_id=transcript.id, agent_name="replay", tools=transcript.tools))
            self._conversations[transcript.id] = known
        # A ledger of lists recognizes messages that were read again, by their content.
        new = islice(turn_inputs(transcript), len(known.digests), None)
        turns = (replace(turn, events=list(turn.events)) for turn in new)
        assembler = self._variant.assembler_for(transcript)
        while batch := digests[len(known.digests) :][:_BATCH]:
            first = len(known.digests)
            asyncio.run(replay_turns(islice(turns, len(batch)), assembler, known.context, self._recorder, first=first))
            known.digests += batch
            spans = [_stored(span) for span in self._exporter.get_finished_spans()]
            self._exporter.clear()
            yield LogUpdate(spans)

    def _report(self, problem: str) -> None:
        if problem not in self._said and len(self._said) < _MAX_PROBLEMS:
            self._said.add(problem)
            self._say(problem)


def _state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a regular file is written or replaced; None for other paths."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if path.is_file() else None


def _digests(transcript: Transcript) -> list[bytes]:
    """Return a digest of each turn's input; the last one also covers the turns before it."""
    digests: list[bytes] = []
    of_message: dict[int, bytes] = {}
    tools = json.dumps(transcript.tools, sort_keys=True).encode()
    for turn in turn_inputs(transcript):
        digest = blake2b(tools, digest_size=16)
        digest.update(json.dumps([list(turn.prompts), turn.reduction is not None]).encode())
        for event in turn.events:
            if id(event) not in of_message:
                text = json.dumps(event, sort_keys=True, default=str)
                of_message[id(event)] = blake2b(text.encode(), digest_size=16).digest()
            digest.update(of_message[id(event)])
        digests.append(digest.digest())
    return digests


def _stored(span: ReadableSpan) -> StoredSpan:
    """Return a span in the form of spans that are read from a file."""
    own, parent = span.get_span_context(), span.parent
    assert own is not None  # noqa: S101  # the SDK gives each span a context
    return StoredSpan(
        trace_id=f"{own.trace_id:032x}",
        span_id=f"{own.span_id:016x}",
        parent_id=None if parent is None else f"{parent.span_id:016x}",
        name=span.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=_values(span.attributes),
        events=[StoredEvent(event.name, event.timestamp, _values(event.attributes)) for event in span.events],
        links=[
            StoredLink(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", _values(link.attributes))
            for link in span.links
        ],
    )


def _values(attributes: Any) -> dict[str, Any]:
    """Return attributes with arrays as lists."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in (attributes or {}).items()}
