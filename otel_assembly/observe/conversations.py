"""Assemblies that somebody else's code runs: the caller says what went in and what came out, and they are recorded.

A framework's reducer is watched, never asked to change: `ObservedAssembler.begin` opens an assembly, each `step` is one
reducer or policy of it, and `end` records it. Of the conversations that the framework holds, their ledgers and what
counts their tokens are remembered here. Nothing here raises, and nothing of ours that goes wrong reaches the agent:
what fails is counted, and that assembly is left out.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict

from otel_assembly._internal.arguments import LARGEST_INTEGER
from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly._internal.registry import Registry
from otel_assembly.context import Context
from otel_assembly.ledger.ledger import Ledger, named_conversation
from otel_assembly.ledger.record import Record
from otel_assembly.messages.provider_rules import rules_of_unknown_client
from otel_assembly.observe.assembly import ObservedAssembly
from otel_assembly.recorder import AgentIdentity, Projection
from otel_assembly.tokens import MessageFraming, TokenMeter, counter_for
from otel_assembly.tokens.models import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.recorder import Recorder
    from otel_assembly.tokens import TokenCounter

#: Conversations of one framework that are remembered; beyond it the least recently used are forgotten, and begin a new
#: ledger when they come back.
CONVERSATIONS: Final = 1_000
#: Events that the ledgers of all conversations of one framework hold together; beyond it, the same.
EVENTS: Final = 200_000
#: Models whose counts are remembered, and views of conversations.
_MODELS: Final = 32
_VIEWS: Final = 32


class suppress_errors:  # noqa: N801  # read as a word: with contained(failed)
    """A block of ours whose failure goes to `failed`, and no further."""

    __slots__ = ("_failed",)

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failed(error)
        return True


class AssemblyInput(TypedDict, total=False):
    """What came in beside the events.

    Attributes:
        prompts: The system-level texts in front of them.
        tools: The schemas of the tools that the model is offered, where they are known.
        name: Tells assemblers of one program apart.
        model: The model that will be called, whose tokenizer counts.
        window: The most tokens that this model takes, where the framework knows it; what is no whole number above 0 is
            as good as None: then it is what `genai-prices` knows of the model.
        unknown_input: The input cannot be read, and the events and prompts are the output. The span then has
            ``assembly.input.unknown``, and no span or metric has a number of the input or of dropped events.
        client: What the model's client adds to messages; None if only the model's name is known.
        held_events: How many of the events the provider stores, so that they are not in the request; None if unknown.
        allowed_edits: The kinds of edits that the request allows the provider to make. If there are any,
            `ObservedAssembly.answered` has to be called.
    """

    prompts: Sequence[str]
    tools: Sequence[Mapping[str, Any]]
    name: str | None
    model: str | None
    window: int | None
    unknown_input: bool
    client: ClientRules | None
    held_events: int | None
    allowed_edits: tuple[str, ...]


class _Offered(Context):
    """What is known of whom an observed assembly is for: the tools. Its steps say what halts they emitted."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self.tools = tuple(tools)
        self.emitted = []


_observed: Final = partial(Ledger, observed=True)


def _ledgers() -> Registry[Any, Ledger]:
    """Ledgers by conversation: an object that is only weakly held, or an id.

    A ledger holds the events of its conversation, which may well refer to the conversation; so it is let go of as soon
    as everybody else has let go of the conversation, or it grows too much. A forked child begins all of them anew,
    because its parent goes on with them.
    """
    return Registry(CONVERSATIONS, clear_after_fork=True)


class ObservedAssembler:
    """What one framework's reducers do, by conversation.

    Args:
        framework: The framework's name, as on its spans (``assembly.framework``).
        recorder: Where the record of each assembly goes; by default where everything else goes.
        counter: Counts instead of the model's tokenizer.
    """

    def __init__(
        self, framework: str, *, recorder: Recorder | None = None, counter: TokenCounter | None = None
    ) -> None:
        self.framework = framework
        self._recorder = recorder
        self._counter = counter
        self._meters: Registry[str, TokenMeter] = Registry(_MODELS)
        self.forget()

    def forget(self) -> None:
        """Let go of every conversation."""
        self._ledgers = _ledgers()
        self._views: Registry[str, Registry[Any, Ledger]] = Registry(_VIEWS)

    @property
    def recorder(self) -> Recorder:
        """Where records go."""
        return self._recorder if self._recorder is not None else DEFAULT.recorder

    def is_enabled(self) -> bool:
        """Whether a provider is configured: every wrapper asks this first, so that it must cost next to nothing."""
        return self.recorder.is_enabled()

    def suppress_errors(self) -> suppress_errors:
        """A block of ours whose failure is a warning and a count, never the agent's."""
        return suppress_errors(self.failed)

    def failed(self, error: Exception) -> None:
        """Something of ours went wrong."""
        with suppress(Exception):  # what reports failures may be what is broken
            self.recorder.failed(f"instrumentation.{self.framework}", error)

    def begin(
        self,
        conversation: Any,
        events: Sequence[Any],
        *,
        agent_name: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
        **given: Unpack[AssemblyInput],
    ) -> ObservedAssembly | None:
        """An assembly begins.

        Args:
            conversation: Whose ledger it is: an object that lives as long as the conversation, or an id of it. None:
                a conversation of this one assembly.
            events: What came in, in the framework's own types; it is read here, so that what is changed in it later
                does not show.
            agent_name: The agent's name.
            conversation_id: The conversation's real id, if it has one.
            started_ns: When it began, if that was earlier.
            given: What came in beside the events, as `AssemblyInput` says.

        Returns:
            None where no provider is configured.
        """
        assembly = self.prepare(
            name=given.get("name"),
            agent_name=agent_name,
            model=given.get("model"),
            conversation_id=conversation_id,
            started_ns=started_ns,
        )
        if assembly is None or self.open(assembly, conversation, events, **given):
            return assembly
        assembly.end()
        return None

    def prepare(
        self,
        *,
        name: str | None = None,
        agent_name: str | None = None,
        model: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
    ) -> ObservedAssembly | None:
        """An assembly begins of whose model call nothing is known yet: what a reducer does for it is recorded already.

        Whose it is, what came in, the prompts and the tools are said by `open`.

        Returns:
            None where no provider is configured.
        """
        identity = AgentIdentity(agent_name, self.framework, conversation_id)
        began = started_ns if started_ns is not None else time.time_ns()
        try:
            recording = self.recorder.begin(name, model, identity, began)
        except Exception as error:  # noqa: BLE001  # an observer must not be felt
            self.failed(error)
            return None
        return (
            None if recording is None else ObservedAssembly(recording, model, self.meter, self.failed, conversation_id)
        )

    def open(
        self, assembly: ObservedAssembly, conversation: Any, events: Sequence[Any], **given: Unpack[AssemblyInput]
    ) -> bool:
        """It is known what came in to an assembly, with the arguments of `begin`.

        Returns:
            Whether it could be read; if not, it is left out.
        """
        if assembly.broken:
            return False
        assembly.waits = False
        try:
            if assembly.recording.measured:
                ledger = self.ledger(conversation)
                with ledger.lock:
                    ledger_input = ledger.open(events)
                    turn = ledger.turn()
                if conversation is not None:  # others may have to be forgotten for it
                    self._ledgers.weigh(conversation, ledger.size, EVENTS)
                model = given.get("model") or assembly.model
                record = Record(
                    name=given.get("name"),
                    model=model,
                    turn=turn,
                    ledger=ledger,
                    ledger_input=ledger_input,
                    context=_Offered(given.get("tools", ())),
                    meter=self.meter(model, given.get("client")),
                    prompts_in=tuple(given.get("prompts", ())),
                    window=_window(given.get("window")),
                    observed=True,
                    named=named_conversation(assembly.conversation_id, self.recorder),
                    unknown=given.get("unknown_input", False),
                    held_events=given.get("held_events"),
                    allowed_edits=given.get("allowed_edits", ()),
                )
                assembly.open(record)
            elif conversation is not None:
                self.ledger(conversation).turn()
        except Exception as problem:  # noqa: BLE001  # as above
            assembly.fail(problem)
        return not assembly.broken

    def ledger(self, conversation: Any) -> Ledger:
        """The ledger of a conversation; None is a conversation of this one assembly."""
        return _observed() if conversation is None else self._ledgers.of(conversation, _observed)

    def meter(self, model: str | None, client: ClientRules | None = None) -> TokenMeter:
        """Return what counts for a model.

        Args:
            model: The model's name.
            client: What its client adds to messages; None if only the model's name is known.
        """
        rules = client or rules_of_unknown_client(model)

        def made() -> TokenMeter:
            counter = self._counter or counter_for(model)
            return TokenMeter(counter, MessageFraming().for_client(rules, counter.count))

        return self._meters.of(f"{rules}{model}", made)

    def expect(self) -> None:
        """Begin to read what will count where no model says otherwise: the framework is here, and will be used."""
        prepare(self._counter or counter_for())

    def declined(self, policy: str, agent_name: str | None = None) -> None:
        """A reducer looked whether there was anything to do, and there was not: a count, and no span.

        Args:
            policy: Its name, of low cardinality, as its span would have it.
            agent_name: The agent's name.
        """
        with self.suppress_errors():
            self.recorder.declined(policy, agent_name, self.framework)

    def project(
        self,
        view: str,
        conversation: Any,
        *,
        envelopes_in: int,
        events: Sequence[Any] = (),
        envelopes_out: int | None = None,
        agent_name: str | None = None,
        model: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        """What one agent gets to see of what a network of agents has said was worked out: a ``project_view`` span.

        It is recorded once that is done, and is no assembly: the one that follows says what becomes of these events.

        Args:
            view: The view's name, of low cardinality.
            conversation: As for `begin`; its events are counted once, however often a view of it is recorded.
            envelopes_in: Envelopes that the view was made of.
            events: The events that came out, in the framework's own types. Their number and their tokens are reported,
                and nothing that they say.
            envelopes_out: Envelopes of which something came out, where that is known.
            agent_name: The agent who gets to see it.
            model: The model whose tokenizer counts.
            conversation_id: The conversation's real id, if it has one.
            started_ns: When it began; by default now.
            error: What was raised instead.
        """
        identity = AgentIdentity(agent_name, self.framework, conversation_id)

        def measure() -> tuple[int, int, str, str]:
            meter = self.meter(model)
            ledger = _observed() if conversation is None else self._views.of(view, _ledgers).of(conversation, _observed)
            with ledger.lock:
                seen = ledger.open(events).view
                table = seen.history.table(meter)
                table.exact(seen)
                method = "estimated" if meter.method == "exact" and seen.history.any_media(seen) else meter.method
                return len(seen), table.sum(seen), method, meter.encoding

        began = started_ns if started_ns is not None else time.time_ns()
        with self.suppress_errors():
            self.recorder.projected(
                Projection(view, model, identity, began, envelopes_in, envelopes_out, error, measure)
            )


def _window(said: object) -> int | None:
    """Return a model's window as a framework reports it, or None for a value that cannot be a window."""
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 < said <= LARGEST_INTEGER else None


def reported_whole(assembly: ObservedAssembly) -> suppress_errors:
    """A block whose failure leaves this assembly out: what cannot be reported whole is not reported in part."""
    return suppress_errors(assembly.fail)
