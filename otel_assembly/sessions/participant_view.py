"""`ParticipantView`: what one participant has read of a session, as one `History` that grows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, overload

from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly.decision import Outcome
from otel_assembly.errors import AccessDeniedError, AdapterError
from otel_assembly.events import ModelRequest
from otel_assembly.history.history import CONVERSATION_KINDS, History
from otel_assembly.policies.base import DecidingPolicy, as_view
from otel_assembly.recorder import Projection
from otel_assembly.sessions.envelope import Envelope
from otel_assembly.sessions.transcript import Transcript, measured
from otel_assembly.sessions.views import FullTranscript, NamedTranscript, TranscriptView, default_name_resolver

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.context import Context
    from otel_assembly.sessions.adapter import SessionAdapter
    from otel_assembly.sessions.hub import Hub
    from otel_assembly.sessions.metadata import SessionMetadata
    from otel_assembly.sessions.views import ViewPolicy

#: How many rows of a log are read at once.
_PAGE: Final = 500
#: What a participant is asked whose turn it is after its own.
_GO_ON: Final = "It is your turn again: go on."


class ParticipantView:
    """What one participant has read of a session, as one `History` that grows.

    Each envelope that the participant may see becomes an event when it is read, once; what is not addressed to it is
    never in the history, in a count or on a span. So a turn costs what is new, however old the session is. What the
    participant's model did on its own, such as calls of tools, stands in the same history and in no log: whoever opens
    the view anew has what was said, and not that.

    Args:
        hub: Where the session is read.
        session: The session.
        adapter: The code of its protocol.
        participant_id: The participant.
        view: How the participant sees it; None for what the adapter says.
        name_for: The name of a participant for the model.

    Attributes:
        session: The session.
        participant_id: The participant.
        view: How the participant sees it.
        history: What was read and done. Before anything is read, another empty one may be put in its place.
        transcript: Which events of it stand for envelopes.
        policies: What decides which of the events a prompt holds: to be put in front of whatever reduces in a chain.
        seq: The row of the log that it was read up to.
    """

    def __init__(
        self,
        hub: Hub,
        session: SessionMetadata,
        adapter: SessionAdapter,
        participant_id: str,
        *,
        view: ViewPolicy | None = None,
        name_for: Callable[[str], str] = default_name_resolver,
    ) -> None:
        self.session = session
        self.participant_id = participant_id
        chosen: ViewPolicy | None = view if view is not None else adapter.default_view_policy(session, participant_id)
        self.view: ViewPolicy = chosen if chosen is not None else FullTranscript()
        self.history = History()
        self.transcript = Transcript()
        self.seq = 0
        self._hub = hub
        self._adapter = adapter
        self._name_for = name_for
        #: Envelopes of the participant that its history has already, behind the row that it was read up to.
        self._stored: set[str] = set()
        #: For a view of the user's own: the envelopes, those that the present round is made on, and where it begins.
        self._envelopes: list[Envelope] = []
        self._before_round = 0
        self._round_start = 0
        self._renders = self.view if isinstance(self.view, TranscriptView) else NamedTranscript()
        self.policies: tuple[DecidingPolicy, ...] = (
            self.view.policies(self.transcript) if isinstance(self.view, TranscriptView) else (_Projected(self),)
        )

    @classmethod
    async def open(
        cls,
        hub: Hub,
        session_id: str,
        participant_id: str,
        *,
        view: ViewPolicy | None = None,
        name_for: Callable[[str], str] = default_name_resolver,
    ) -> Self:
        """The view of a participant on a session, of which nothing is read yet.

        Raises:
            NotFoundError: There is no such session, or no adapter for it in this hub.
            AccessDeniedError: The participant takes no part in it.
        """
        session, adapter = await hub.metadata(session_id), await hub.adapter(session_id)
        if participant_id not in session.participants:
            raise AccessDeniedError(f"session {session_id!r}: {participant_id!r} takes no part in it")
        return cls(hub, session, adapter, participant_id, view=view, name_for=name_for)

    async def read(self, before: int | None = None) -> int:
        """Append what was accepted since.

        Args:
            before: The row of the log to stop at, which is not read any more; None to read all there is.

        Returns:
            How many envelopes were read that the participant may see.

        Raises:
            NetworkError: The log cannot be read, or the adapter cannot render what it holds.
        """
        name, read = self.session.session_id, 0
        end = before if before is not None else (await self._hub.folded(name)).seq + 1
        while self.seq + 1 < end:
            limit = min(_PAGE, end - 1 - self.seq)
            found = await self._hub.envelopes(name, participant_id=self.participant_id, after_seq=self.seq, limit=limit)
            for envelope in found:
                self._take(envelope)
            self.seq += limit
            read += len(found)
        return read

    def begin_round(self, envelope: Envelope, asked: Any) -> list[Any]:
        """Read the envelope that triggers a round, of which everything before it was read.

        Args:
            envelope: The envelope.
            asked: What it asks, as the adapter's ``extract_turn_input`` said: a text, an event, or a list of them.

        Returns:
            What the participant's model is to be asked: events that whoever asks appends to the history.
        """
        speaker, events = self._name_for(envelope.sender_id), list[Any]()
        for one in asked if isinstance(asked, list) else [asked]:
            event = self._rendered(envelope, one) if isinstance(one, str) else one
            if events and isinstance(one, str):
                event = ModelRequest(content=event.content)
            events.append(event)
        if events:
            self.transcript.add(getattr(events[0], "id", envelope.envelope_id), speaker)
        self._before_round = len(self._envelopes)
        self._round_start = len(self.history)
        self._remember(envelope)
        self.seq = envelope.seq
        return events

    def go_on(self) -> list[Any]:
        """Begin a round in which the participant speaks once more, after its own envelope, which was read.

        Returns:
            What the participant's model is to be asked: events that whoever asks appends to the history.
        """
        self._before_round = len(self._envelopes)
        self._round_start = len(self.history)
        return [ModelRequest(content=_GO_ON)]

    def end_round(self, event_id: str | None, accepted: Envelope) -> None:
        """The round's envelope was accepted; an event of the history stands for it already.

        Args:
            event_id: That event's id; None where there is none, so that the envelope is read from the log.
            accepted: The envelope.
        """
        if event_id is not None:
            self.transcript.add(event_id, self._name_for(self.participant_id))
            self._stored.add(accepted.envelope_id)

    def _take(self, envelope: Envelope) -> None:
        self._remember(envelope)
        if envelope.envelope_id in self._stored:
            self._stored.discard(envelope.envelope_id)
            return
        try:
            text = self._adapter.render_envelope(envelope)
        except Exception as error:
            manifest, where = self.session.manifest, f"session {envelope.session_id!r}, row {envelope.seq}"
            raise AdapterError(manifest.type, manifest.version, "render_envelope", error, where) from error
        if text:
            self.history.append(self._rendered(envelope, text))
            self.transcript.add(envelope.envelope_id, self._name_for(envelope.sender_id))

    def _remember(self, envelope: Envelope) -> None:
        self.transcript.envelopes += 1
        if not isinstance(self.view, TranscriptView):
            self._envelopes.append(envelope)

    def _rendered(self, envelope: Envelope, text: str) -> Any:
        return self._renders.render(envelope, text, self.participant_id, self._name_for)

    async def projected(self) -> tuple[list[Any], int, int]:
        """What a view of the user's own makes of what was read: its events, of how many envelopes, and where they end.

        The end is a position of the history: what stands from there on belongs to the round that is going on.
        """
        wal = _Before(self._envelopes, self._before_round)
        events = await self.view.project(
            wal,
            participant_id=self.participant_id,
            session=self.session,
            render_envelope=self._adapter.render_envelope,
            name_for=self._name_for,
        )
        return list(events), len(wal), self._round_start

    def __repr__(self) -> str:
        return f"ParticipantView({self.participant_id!r} in {self.session.session_id!r}, {self.view.name}, {self.seq})"


class _Before(Sequence[Envelope]):
    """The first envelopes of a list, without a copy of it."""

    def __init__(self, envelopes: Sequence[Envelope], end: int) -> None:
        self._envelopes = envelopes
        self._end = end

    def __len__(self) -> int:
        return self._end

    @overload
    def __getitem__(self, index: int) -> Envelope: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Envelope]: ...
    def __getitem__(self, index: int | slice) -> Envelope | Sequence[Envelope]:
        if isinstance(index, slice):
            return [self._envelopes[at] for at in range(*index.indices(self._end))]
        return self._envelopes[range(self._end)[index]]


class _Projected(DecidingPolicy):
    """Puts what a view of the user's own shows in the place of what was read; the round that is going on stays."""

    filters: ClassVar[frozenset[str] | None] = CONVERSATION_KINDS

    def __init__(self, view: ParticipantView) -> None:
        self.name = view.view.name
        self._view = view

    async def decide(self, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Outcome:
        """Return what the view shows, and behind it what was said and done in this round."""
        began = time.time_ns()
        shown, envelopes, start = await self._view.projected()
        view = as_view(events)
        own = [view.history.event(position) for position in view.positions() if position >= start]
        outcome = Outcome(prompts, [*shown, *own])
        if context.listening:
            measure = measured(outcome, view, context)
            whose = context.whose
            DEFAULT.recorder.projected(
                Projection(self.name, context.model, whose, began, envelopes, None, None, measure)
            )
        return outcome
