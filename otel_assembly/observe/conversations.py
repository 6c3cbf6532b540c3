"""`ObservedAssembler`: records assemblies that a framework runs; the caller reports the input and output of each step.

`ObservedAssembler.begin` opens an assembly, each `step` is one reducer or policy of it, and `end` records it. The
assembler keeps the ledgers of the framework's conversations and the token meters of its models. Errors of this package
never reach the agent: a failure is counted, and the assembly is not recorded.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict

from otel_assembly._internal.arguments import LARGEST_INTEGER
from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly._internal.registry import Registry
from otel_assembly.chain.open_assembly import AssemblerBase
from otel_assembly.context import Context
from otel_assembly.ledger.ledger import Ledger, named_conversation
from otel_assembly.ledger.record import Record
from otel_assembly.observe.assembly import ObservedAssembly
from otel_assembly.recorder import AgentIdentity, Projection
from otel_assembly.tokens import MessageFraming, counter_for
from otel_assembly.tokens.models import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.recorder import Recorder
    from otel_assembly.tokens import TokenCounter

#: The most conversations of one framework with a ledger. Above that, the least recently used ledgers are removed; their
#: conversations begin a new ledger on the next turn.
CONVERSATIONS: Final = 1_000
#: The most events in all ledgers of one framework. Above that, the least recently used ledgers are removed as well.
EVENTS: Final = 200_000
#: The most views with ledgers.
_VIEWS: Final = 32


class suppress_errors:  # noqa: N801  # used like `contextlib.suppress`
    """Suppress exceptions in a block and pass them to `failed`. A class, because it is faster than a generator."""

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
    """The input of an assembly in addition to the events.

    Attributes:
        prompts: The system prompts before the events.
        tools: The schemas of the tools that the model is offered, if they are known.
        name: The name of the assembler, to distinguish several assemblers of one program.
        model: The model that will be called; its tokenizer counts.
        window: The most tokens that the model accepts, if the framework knows it. None, or a value that is no positive
            integer: the number that `genai-prices` has for the model.
        unknown_input: The input cannot be read, and the events and prompts are the output. The span then has
            ``assembly.input.unknown``, and no span or metric has a number of the input or of dropped events.
        client: What the model's client adds to messages; None if only the model's name is known.
        held_events: How many of the events the provider stores, so that they are not in the request; None if unknown.
        allowed_edits: The kinds of edits that the request allows the provider to make. If there are any,
            `ObservedAssembly.provider_answered` has to be called.
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


class _ToolContext(Context):
    """The context of an observed assembly. It has only the tools: no policy runs, which could read other attributes."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self.tools = tuple(tools)
        self.emitted = []


_observed: Final = partial(Ledger, observed=True)
#: Creates a registry of ledgers by conversation: by a weak reference to an object, or by an id. A forked child process
#: starts without ledgers, because its parent continues the conversations.
_ledgers: Final = partial(Registry[Any, Ledger], CONVERSATIONS, clear_after_fork=True)


class ObservedAssembler(AssemblerBase):
    """Records what the reducers of one framework do, by conversation.

    Args:
        framework: The framework's name, as on its spans (``assembly.framework``).
        recorder: Receives the record of each assembly; None: the default recorder.
        counter: Counts tokens instead of the model's tokenizer.

    Example:
        >>> observed = ObservedAssembler("my-framework")
        >>> assembly = observed.begin("conversation-1", ["first", "second"])
        >>> if assembly is not None:
        ...     with assembly.step("last_message", kind="reduction") as step:
        ...         step.out(["second"])
        ...     assembly.end()
    """

    def __init__(
        self, framework: str, *, recorder: Recorder | None = None, counter: TokenCounter | None = None
    ) -> None:
        super().__init__(recorder, counter, MessageFraming())
        self.framework = framework
        self._suppress_errors = suppress_errors(self.failed)
        self.forget()

    def forget(self) -> None:
        """Remove the ledgers of all conversations."""
        self._ledgers = _ledgers()
        self._views: Registry[str, Registry[Any, Ledger]] = Registry(_VIEWS)

    def is_enabled(self) -> bool:
        """Return True if an OpenTelemetry provider is configured. Every wrapper calls this first, so it is fast."""
        return self.recorder.is_enabled()

    def suppress_errors(self) -> suppress_errors:
        """Return a context manager that suppresses exceptions of its block; each is logged as a warning and counted."""
        return self._suppress_errors

    def failed(self, error: Exception) -> None:
        """Record a failure of the instrumentation."""
        with suppress(Exception):  # the recorder itself may have failed
            self.recorder.failed(f"instrumentation.{self.framework}", error)

    def begin(
        self,
        conversation: Any,
        events: Sequence[Any],
        *,
        agent_name: str | None = None,
        conversation_id: str | None = None,
        started_ns: int | None = None,
        **fields: Unpack[AssemblyInput],
    ) -> ObservedAssembly | None:
        """Begin an assembly whose input is known.

        Args:
            conversation: The key of the ledger: an object that lives as long as the conversation, or an id of it. None:
                the assembly gets a ledger of its own.
            events: The input events, in the framework's types. They are read here; later changes have no effect.
            agent_name: The agent's name.
            conversation_id: The conversation's real id, if it has one.
            started_ns: The start time, in nanoseconds since the epoch; None means now.
            fields: The other input, see `AssemblyInput`.

        Returns:
            The assembly; None if no provider is configured or the input cannot be read.
        """
        assembly = self.prepare(
            name=fields.get("name"),
            agent_name=agent_name,
            model=fields.get("model"),
            conversation_id=conversation_id,
            started_ns=started_ns,
        )
        if assembly is None or self.open(assembly, conversation, events, **fields):
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
        """Begin an assembly whose input is not known yet, so that the steps of its reducers are recorded already.

        `open` sets the conversation, the events, the prompts and the tools later. The arguments are those of `begin`.

        Returns:
            The assembly; None if no provider is configured.
        """
        identity = AgentIdentity(agent_name, self.framework, conversation_id)
        start_ns = started_ns if started_ns is not None else time.time_ns()
        try:
            recorder = self._recorder if self._recorder is not None else DEFAULT.recorder
            recording = recorder.begin(name, model, identity, start_ns)
        except Exception as error:  # noqa: BLE001  # a failed recording must not affect the agent
            self.failed(error)
            return None
        if recording is None:
            return None
        return ObservedAssembly(recording, model, self.meter, self.failed, conversation_id)

    def open(
        self,
        assembly: ObservedAssembly,
        conversation: Any,
        events: Sequence[Any],
        **fields: Unpack[AssemblyInput],
    ) -> bool:
        """Set the input of an assembly from `prepare`. The arguments are those of `begin`.

        Returns:
            False if the input cannot be read; the assembly is then not recorded.
        """
        if assembly.broken:
            return False
        try:
            if assembly.recording.measured:
                ledger = self.ledger(conversation)
                with ledger.lock:
                    ledger_input = ledger.open(events)
                    turn = ledger.turn()
                if conversation is not None:  # this may remove the ledgers of other conversations
                    self._ledgers.weigh(conversation, ledger.size, EVENTS)
                model = fields.get("model") or assembly.model
                record = Record(
                    assembly_id=os.urandom(16).hex(),
                    name=fields.get("name"),
                    model=model,
                    turn=turn,
                    ledger=ledger,
                    ledger_input=ledger_input,
                    context=_ToolContext(fields.get("tools", ())),
                    meter=self.meter(model, fields.get("client")),
                    prompts_in=tuple(fields.get("prompts", ())),
                    window=_window(fields.get("window")),
                    observed=True,
                    named=named_conversation(assembly.conversation_id, self.recorder),
                    unknown=fields.get("unknown_input", False),
                    held_events=fields.get("held_events"),
                    allowed_edits=fields.get("allowed_edits", ()),
                )
                assembly.open(record)
            elif conversation is not None:
                self.ledger(conversation).turn()
        except Exception as problem:  # noqa: BLE001  # a failed recording must not affect the agent
            assembly.fail(problem)
        return not assembly.broken

    def ledger(self, conversation: Any) -> Ledger:
        """Return the ledger of a conversation; for None, a new ledger for a single assembly."""
        return _observed() if conversation is None else self._ledgers.of(conversation, _observed)

    def preload_counter(self) -> None:
        """Start to load the default token counter, because the framework is installed and will probably be used."""
        prepare(self._counter if self._counter is not None else counter_for())

    def declined(self, policy: str, agent_name: str | None = None) -> None:
        """Count a call of a reducer, with its name on spans, that found nothing to do; there is no span for it."""
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
        """Record a ``project_view`` span: the selection of a session's messages (envelopes) that one agent reads.

        Call it when the selection is complete. It is not an assembly: the agent's next assembly records what becomes of
        the selected events.

        Args:
            view: The view's name, of low cardinality.
            conversation: As for `begin`. Each event is counted once, even if views of it are recorded repeatedly.
            envelopes_in: The number of envelopes that the view was made from.
            events: The selected events, in the framework's types. Only their number and tokens are recorded, not their
                content.
            envelopes_out: The number of envelopes with content in the view; None if unknown.
            agent_name: The agent that reads the selection.
            model: The model whose tokenizer counts.
            conversation_id: The conversation's real id, if it has one.
            started_ns: The start time, in nanoseconds since the epoch; None means now.
            error: The exception, if the view failed.
        """
        identity = AgentIdentity(agent_name, self.framework, conversation_id)

        def measure() -> tuple[int, int, str, str]:
            meter = self.meter(model)
            ledger = _observed() if conversation is None else self._views.of(view, _ledgers).of(conversation, _observed)
            with ledger.lock:
                selected = ledger.open(events).view
                history = selected.history
                table = history.table(meter)
                table.exact(selected)
                method = "estimated" if meter.method == "exact" and history.any_media(selected) else meter.method
                return len(selected), table.sum(selected), method, meter.encoding

        start_ns = started_ns if started_ns is not None else time.time_ns()
        with self.suppress_errors():
            self.recorder.projected(
                Projection(view, model, identity, start_ns, envelopes_in, envelopes_out, error, measure)
            )


def _window(value: object) -> int | None:
    """Return a model's window as a framework reports it, or None for a value that cannot be a window."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_INTEGER else None
