"""Views: how a participant's model sees a session; an adapter says which one is the default.

A view of ours is a renderer, which makes an event of each envelope, and policies, which say what of these events a
prompt holds. They run in front of what reduces in the participant's own chain, so that a turn is one assembly, whose
ledger tells what the view left out. A view of one's own is an object with a `name` and an async `project`.
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
    """A participant's name for the model: its id."""
    return participant_id


@runtime_checkable
class ViewPolicy(Protocol):
    """Makes of a session's log what a participant's model gets to see."""

    @property
    def name(self) -> str:
        """What the view is called, in spans too."""
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
        """The events that the model gets to see, in order.

        Args:
            wal: The session's log, as far as the participant may see it.
            participant_id: The participant.
            session: The session.
            render_envelope: What a model sees of an envelope; None where a view leaves it out.
            name_for: The name of a participant for the model.
        """
        ...


class TranscriptView:
    """What the views of this package share: a renderer and policies, of which `project` is made."""

    __slots__ = ()
    name: ClassVar[str]
    #: Whether what others said has their names in front.
    named: ClassVar[bool] = False

    def render(self, envelope: Envelope, text: str, participant_id: str, name_for: Callable[[str], str]) -> Event:
        """Return the event that stands for an envelope: a response if the participant sent it, else a request.

        A request has no finish reason, so that the text itself says that the sender's answer is incomplete.
        """
        if envelope.sender_id == participant_id:
            return ModelResponse(id=envelope.envelope_id, content=text, finish_reason=envelope.finish_reason)
        if envelope.is_truncated:
            text = f"{text}\n[incomplete: {envelope.finish_reason}]"
        said = f"[{on_one_line(name_for(envelope.sender_id))}]: {text}" if self.named else text
        return ModelRequest(id=envelope.envelope_id, content=said)

    def policies(self, transcript: Transcript) -> tuple[DecidingPolicy, ...]:
        """What decides which of the rendered events a prompt holds."""
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
        """The events that the model gets to see of this log, which holds what the participant may see and no more."""
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
    """Everything that a participant may see, word for word."""

    name: ClassVar[str] = "full_transcript"


@dataclass(frozen=True, slots=True)
class WindowedSummary(TranscriptView):
    """The newest entries word for word, and one line that stands for those before them.

    Attributes:
        recent_n: How many of the newest there are; 1 or more.
        step: How many entries leave the window at a time; 1 or more. Whatever leaves changes the line at its front, and
            with it the whole prompt for a provider's cache. With a step of 10 that is every tenth entry, and the window
            holds up to 9 more.
    """

    recent_n: int
    step: int = 1
    name: ClassVar[str] = "windowed_summary"

    def __post_init__(self) -> None:
        _check_window(self.name, self.recent_n, self.step)

    def policies(self, transcript: Transcript) -> tuple[DecidingPolicy, ...]:
        """The window."""
        return (TranscriptPolicy(self.name, transcript, self.recent_n, self.step),)


@dataclass(frozen=True, slots=True)
class NamedTranscript(TranscriptView):
    """Everything that a participant may see, what others said with their names in front."""

    name: ClassVar[str] = "named_transcript"
    named: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NamedWindowedSummary(WindowedSummary):
    """`WindowedSummary`, what others said with their names in front."""

    name: ClassVar[str] = "named_windowed_summary"
    named: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class BudgetedView(TranscriptView):
    """The newest that fits a budget of tokens, what others said with their names in front.

    Attributes:
        window: The model's window, in tokens.
        output_reserve: Tokens kept free for the reply.
        step_tokens: How far the cut moves at a time, as in `BudgetPolicy`.
        compact: ``"extractive"`` to have a summary stand for what is cut; None drops it.
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
        """The whole transcript, and the budget behind it."""
        return (TranscriptPolicy(self.name, transcript), self._budget())


#: The views that the package has.
BuiltInView: TypeAlias = FullTranscript | WindowedSummary | NamedTranscript | NamedWindowedSummary | BudgetedView


def _check_window(name: str, recent_n: object, step: object) -> None:
    for what, given in (("recent_n", recent_n), ("step", step)):
        whole_number(f"{what} of the view {name!r}", given, unit="entries")
