"""Views: select the part of a session in a participant's prompt; each adapter has a default view.

A built-in view consists of a renderer, which makes an event of each envelope, and of policies, which select the events
of a prompt. The policies run before the reductions of the participant's own chain. Each turn is therefore one assembly,
and its ledger records the events that the view dropped. A custom view is an object with a `name` and an async
`project`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from otel_assembly._internal.arguments import whole_number
from otel_assembly.context import Context
from otel_assembly.events import Event, ModelRequest, ModelResponse
from otel_assembly.history.history import History
from otel_assembly.policies.budget import BudgetPolicy
from otel_assembly.sessions.transcript import Transcript, TranscriptPolicy, on_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.policies.base import DecidingPolicy
    from otel_assembly.sessions.envelope import Envelope
    from otel_assembly.sessions.metadata import SessionMetadata


def default_name_resolver(participant_id: str) -> str:
    """Return a participant's id as its name for the model."""
    return participant_id


@runtime_checkable
class ViewPolicy(Protocol):
    """Selects the events of a session for a participant's model."""

    @property
    def name(self) -> str:
        """The view's name, also in spans."""
        ...

    async def project(
        self,
        wal: Sequence[Envelope],
        *,
        participant_id: str,
        session: SessionMetadata,
        render_envelope: Callable[[Envelope], str | None],
        name_for: Callable[[str], str] = default_name_resolver,
    ) -> list[Any]:
        """Return the events for the model, in order.

        Args:
            wal: The envelopes of the session that the participant may see.
            participant_id: The participant.
            session: The session.
            render_envelope: Returns an envelope's text for the model; None to omit the envelope.
            name_for: Returns a participant's name for the model.
        """
        ...


class TranscriptView:
    """The base class of the built-in views: `project` applies a renderer and policies."""

    __slots__ = ()
    name: ClassVar[str]
    #: True to prefix the messages of other participants with their names.
    named: ClassVar[bool] = False

    def render(self, envelope: Envelope, text: str, participant_id: str, name_for: Callable[[str], str]) -> Event:
        """Return the event of an envelope: a response if the participant sent it, else a request.

        A request has no finish reason, so the text itself marks an incomplete answer of the sender.
        """
        if envelope.sender_id == participant_id:
            return ModelResponse(id=envelope.envelope_id, content=text, finish_reason=envelope.finish_reason)
        if envelope.is_truncated:
            text = f"{text}\n[incomplete: {envelope.finish_reason}]"
        said = f"[{on_one_line(name_for(envelope.sender_id))}]: {text}" if self.named else text
        return ModelRequest(id=envelope.envelope_id, content=said)

    def policies(self, transcript: Transcript) -> tuple[DecidingPolicy, ...]:
        """Return the policies that select the rendered events of a prompt."""
        return (TranscriptPolicy(self.name, transcript),)

    async def project(
        self,
        wal: Sequence[Envelope],
        *,
        participant_id: str,
        session: SessionMetadata,
        render_envelope: Callable[[Envelope], str | None],
        name_for: Callable[[str], str] = default_name_resolver,
    ) -> list[Any]:
        """Return the events for the model from the envelopes that the participant may see."""
        history, transcript = History(), Transcript()
        for envelope in wal:
            transcript.envelopes += 1
            if text := render_envelope(envelope):
                history.append(self.render(envelope, text, participant_id, name_for))
                transcript.add(envelope.envelope_id, name_for(envelope.sender_id))
        prompts: list[str] = []
        events: Sequence[Any] = history.view()
        for policy in self.policies(transcript):
            outcome = await policy.decide(prompts, events, Context())
            events = outcome.events
        return list(events)


@dataclass(frozen=True, slots=True)
class FullTranscript(TranscriptView):
    """All envelopes that a participant may see, verbatim."""

    name: ClassVar[str] = "full_transcript"


@dataclass(frozen=True, slots=True)
class WindowedSummary(TranscriptView):
    """The newest entries verbatim, and one line that replaces the earlier entries.

    Attributes:
        recent_n: The number of newest entries; 1 or more.
        step: The number of entries dropped at a time; 1 or more. Each drop changes the first line, and so invalidates
            the provider's prompt cache. With a step of 10, a drop happens at every tenth entry, and up to 9 more
            entries are kept.
    """

    recent_n: int
    step: int = 1
    name: ClassVar[str] = "windowed_summary"

    def __post_init__(self) -> None:
        _check_window(self.name, self.recent_n, self.step)

    def policies(self, transcript: Transcript) -> tuple[DecidingPolicy, ...]:
        """Return the policy of the window."""
        return (TranscriptPolicy(self.name, transcript, self.recent_n, self.step),)


@dataclass(frozen=True, slots=True)
class NamedTranscript(TranscriptView):
    """`FullTranscript`, with the names of other participants before their messages."""

    name: ClassVar[str] = "named_transcript"
    named: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NamedWindowedSummary(WindowedSummary):
    """`WindowedSummary`, with the names of other participants before their messages."""

    name: ClassVar[str] = "named_windowed_summary"
    named: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class BudgetedView(TranscriptView):
    """The newest entries that fit a token budget, with the names of other participants.

    Attributes:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        step_tokens: The step of the cut in tokens, as in `BudgetPolicy`.
        compact: ``"extractive"`` to summarize the dropped entries; None for no summary.
        summary_tokens: The most tokens of that summary, as in `BudgetPolicy`.
    """

    window: int
    output_reserve: int
    step_tokens: int = 2_000
    compact: Any = None
    summary_tokens: int = 500
    name: ClassVar[str] = "budgeted_view"
    named: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._budget()

    def _budget(self) -> BudgetPolicy:
        return BudgetPolicy(
            self.window,
            self.output_reserve,
            self.step_tokens,
            compact=self.compact,
            summary_tokens=self.summary_tokens,
        )

    def policies(self, transcript: Transcript) -> tuple[DecidingPolicy, ...]:
        """Return the policy of the full transcript, followed by the budget policy."""
        return (TranscriptPolicy(self.name, transcript), self._budget())


#: The built-in views.
BuiltInView: TypeAlias = FullTranscript | WindowedSummary | NamedTranscript | NamedWindowedSummary | BudgetedView


def _check_window(name: str, recent_n: object, step: object) -> None:
    for what, given in (("recent_n", recent_n), ("step", step)):
        whole_number(f"{what} of the view {name!r}", given, unit="entries")
