"""Views: they select the envelopes (messages) of a session that are in a participant's prompt.

A built-in view has a renderer, which makes an event of each envelope, and policies, which select the events of a
prompt. These policies run before the reductions of the participant's own policy chain. Each turn is therefore one
assembly, and its ledger records the events that the view dropped. A custom view is an object with a `name` and an async
`project`. Each protocol has a default view.
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
    """The interface of views: a view selects which envelopes of a session a participant's model reads, as events."""

    @property
    def name(self) -> str:
        """The view's name, which is also recorded on spans."""
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
            wal: The envelopes of the session that the participant may see, in order.
            participant_id: The participant.
            session: The session.
            render_envelope: Returns an envelope's text for the model; None to omit the envelope.
            name_for: Returns a participant's name for the model.
        """
        ...


class TranscriptView:
    """The base class of the built-in views; `project` renders the envelopes and applies the view's policies."""

    __slots__ = ()
    name: ClassVar[str]
    #: True to prefix the messages of other participants with their names.
    named: ClassVar[bool] = False

    def render(self, envelope: Envelope, text: str, participant_id: str, name_for: Callable[[str], str]) -> Event:
        """Return the event for an envelope: a model's response if the participant sent the envelope, else a request.

        A request has no finish reason. If another participant's answer is incomplete, its text therefore ends with a
        line that says so.

        Args:
            envelope: The envelope.
            text: The envelope's text for the model.
            participant_id: The participant whose model gets the event.
            name_for: Returns a participant's name for the model.
        """
        if envelope.sender_id == participant_id:
            return ModelResponse(id=envelope.envelope_id, content=text, finish_reason=envelope.finish_reason)
        if envelope.is_truncated:
            text = f"{text}\n[incomplete: {envelope.finish_reason}]"
        content = f"[{on_one_line(name_for(envelope.sender_id))}]: {text}" if self.named else text
        return ModelRequest(id=envelope.envelope_id, content=content)

    def policies(self, transcript: Transcript) -> tuple[DecidingPolicy, ...]:
        """Return the policies that select the rendered events for a prompt."""
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
        """Render the envelopes, apply the view's policies, and return the events for the model.

        The arguments are those of `ViewPolicy.project`.
        """
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
    """The view with all envelopes that a participant may see, verbatim."""

    name: ClassVar[str] = "full_transcript"


@dataclass(frozen=True, slots=True)
class WindowedSummary(TranscriptView):
    """The view with the newest envelopes verbatim, and one line that replaces the earlier envelopes.

    Attributes:
        recent_n: The number of newest envelopes; 1 or more.
        step: The number of envelopes that are dropped at a time; 1 or more. Each drop changes the first line, and so
            invalidates the provider's prompt cache. With a step of 10, only every tenth envelope causes a drop, and up
            to 9 more envelopes are kept.
    """

    recent_n: int
    step: int = 1
    name: ClassVar[str] = "windowed_summary"

    def __post_init__(self) -> None:
        _check_window(self.name, self.recent_n, self.step)

    def policies(self, transcript: Transcript) -> tuple[DecidingPolicy, ...]:
        """Return the policy that keeps the newest envelopes."""
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
    """The view with the newest envelopes that fit a token budget, and the names of other participants.

    The attributes are those of `BudgetPolicy`.

    Attributes:
        window: The most tokens that the model accepts.
        output_reserve: The tokens that are kept free for the model's answer.
        step_tokens: The fewest tokens that are dropped at a time, so that the prompt cache stays valid for longer.
        compact: ``"extractive"`` to summarize the dropped envelopes; None for no summary.
        summary_tokens: The most tokens of that summary.
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
        """Return the policy that keeps all envelopes, followed by the budget policy."""
        return (TranscriptPolicy(self.name, transcript), self._budget())


#: The built-in views.
BuiltInView: TypeAlias = FullTranscript | WindowedSummary | NamedTranscript | NamedWindowedSummary | BudgetedView


def _check_window(name: str, recent_n: object, step: object) -> None:
    for attribute, value in (("recent_n", recent_n), ("step", step)):
        whole_number(f"{attribute} of the view {name!r}", value, unit="entries")
