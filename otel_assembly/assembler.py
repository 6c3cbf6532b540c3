"""`Assembler`: an ordered chain of policies, applied before a model call."""

from __future__ import annotations

import copy
import logging
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from otel_assembly._internal.arguments import OnError, OnHalt, counts, instance, of_type, one_of, whole_number, window
from otel_assembly._internal.current_recorder import DEFAULT
from otel_assembly._internal.faces import Later
from otel_assembly._internal.registry import Registry
from otel_assembly.assembly import Assembly
from otel_assembly.chain.open_assembly import OpenAssembly, config_of
from otel_assembly.context import Context, listens
from otel_assembly.decision import Overflow, OverflowCause
from otel_assembly.errors import (
    ConfigurationError,
    ContextOverflowError,
    HaltedError,
    PolicyError,
    PolicyFailedError,
    TokenizerError,
)
from otel_assembly.history.history import History, unknown_part
from otel_assembly.history.token_counts import arrive, count_estimates
from otel_assembly.ledger.ledger import Ledgers, named_conversation
from otel_assembly.ledger.record import Record
from otel_assembly.messages.provider_rules import rules_of_unknown_client
from otel_assembly.policies.base import INJECTION
from otel_assembly.policies.order import checked_chain, validate_order
from otel_assembly.policies.registry import policy_kind, trait
from otel_assembly.recorder import NULL_RECORDING, Whose
from otel_assembly.tokens import CalibratedCounter, MessageFraming, TokenMeter, counter_for
from otel_assembly.tokens.models import is_ready, prepare, ready

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from otel_assembly import events as vocabulary
    from otel_assembly.chain import config as written
    from otel_assembly.conversation_state import HaltGuard
    from otel_assembly.errors import ModelContextLengthError
    from otel_assembly.history.view import View
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import LedgerInput, Step
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.policies.base import AssemblyPolicy, PolicyLike
    from otel_assembly.recorder import Recorder, Recording
    from otel_assembly.tokens import TokenCounter
else:
    vocabulary, written = Later("otel_assembly.events"), Later("otel_assembly.chain.config")

logger = logging.getLogger("otel_assembly")

#: Models whose counts are remembered by one assembler.
_METERS: Final = 32


class Assembler:
    """Runs a chain of policies left to right: each sees what the one before it let out (as in AG2).

    One assembler may serve any number of conversations, tasks and threads.

    Args:
        policies: The chain. Injection goes before reduction: `validate_order` says what is wrong otherwise, and what it
            says is logged as a warning.
        name: Tells several assemblers of a program apart in telemetry.
        model: The model whose tokenizer counts; else that of the context.
        model_window: The most tokens that the model takes. No policy is held to it: it is reported, with how full the
            prompts are of it and which are over it. Else it is what `genai-prices` knows of the model, where assemblies
            are recorded and that is installed (extra ``prices``).
        on_policy_error: ``raise``, or ``skip`` to go on without a policy that raised; `AlertPolicy` is never skipped,
            nor is a budget that could not hold, nor a halt.
        on_halt: What becomes of the assembly of a conversation that is halted, or that it halts itself: ``raise``
            `HaltedError`, so that no model is called for it, or ``return`` it, with `Assembly.halt` set.
        counter: Counts instead of the model's tokenizer.
        framing: What a message costs beyond its texts; None: the OpenAI cookbook's figures.
        strict: Refuse an event with a part of a type that nobody knows, instead of counting that by its JSON.
        recorder: Where the record of each assembly goes; by default OpenTelemetry, as it is configured globally.

    Raises:
        ConfigurationError: A policy has no name or no ``apply``, or is a class; or a setting is none of its values.
    """

    def __init__(
        self,
        policies: Sequence[PolicyLike],
        *,
        name: str | None = None,
        model: str | None = None,
        model_window: int | None = None,
        on_policy_error: OnError = "raise",
        on_halt: OnHalt = "raise",
        counter: TokenCounter | None = None,
        framing: MessageFraming | None = None,
        strict: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self.policies: tuple[AssemblyPolicy, ...] = checked_chain(policies)
        self._kinds = tuple(map(policy_kind, self.policies))
        one_of("on_policy_error", on_policy_error, OnError)
        one_of("on_halt", on_halt, OnHalt)
        if model_window is not None:
            window("model_window", model_window)
        if counter is not None:
            counts("counter", counter)
        instance("recorder", recorder)
        if recorder is not None and not callable(getattr(recorder, "begin", None)):
            raise ConfigurationError(f"recorder {type(recorder).__name__} needs the methods of a Recorder")
        instance("framing", framing)
        if not isinstance(framing, MessageFraming | None):
            raise ConfigurationError(f"framing must be a MessageFraming, got a {type(framing).__name__}")
        self.name = name
        self.model = model
        self.model_window = model_window
        self.on_policy_error = on_policy_error
        self.on_halt: OnHalt = on_halt
        self.framing = framing if framing is not None else MessageFraming()
        self.strict = strict
        self._counter = counter
        self._recorder = recorder
        self._ledgers = Ledgers()
        self._meters: Registry[str, TokenMeter] = Registry(_METERS)
        self._last_meter: tuple[tuple[str | None, ClientRules | None], TokenMeter] | None = None
        for warning in validate_order(self.policies):
            logger.warning("assembly policy ordering: %s", warning)
        with suppress(TokenizerError):  # raised where something is to be counted
            prepare(self._counter or counter_for(self.model))

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | PathLike[str], **settings: Any) -> Self:
        """An assembler from a mapping, or from a YAML or JSON file.

        The form is ``{name, model, model_window, on_policy_error, on_halt, strict, framing: {per_message: 4, …},
        policies: [{sliding_window: {max_events: 5}}, alert, …]}``; `settings` go to the constructor.

        Raises:
            ConfigurationError: The configuration cannot be read or says something unknown; the message names the file,
                the place, and the nearest name that is known.
        """
        chain = written.chain_from_config(config)
        return cls(chain.policies, **{**chain.settings, **settings})

    def to_config(self) -> dict[str, Any]:
        """The mapping from which `from_config` makes an equal assembler.

        Raises:
            ConfigurationError: A policy is not one of ours, so that no name stands for it.
        """
        settings = {
            "name": self.name,
            "model": self.model,
            "model_window": self.model_window,
            "on_policy_error": self.on_policy_error,
            "on_halt": self.on_halt,
            "framing": self.framing,
            "strict": self.strict or None,
        }
        return written.chain_to_config(self.policies, settings)

    def reducing_first(self, policies: Sequence[PolicyLike]) -> Self:
        """This assembler with policies in front of whatever reduces in its chain; what injects first stays first.

        Args:
            policies: The policies, in order.

        Raises:
            ConfigurationError: As for the constructor.
        """
        behind = next((at for at, kind in enumerate(self._kinds) if kind != INJECTION), len(self.policies))
        return self._with((*self.policies[:behind], *policies, *self.policies[behind:]))

    def followed_by(self, policies: Sequence[PolicyLike]) -> Self:
        """This assembler with policies behind all of its chain.

        Args:
            policies: The policies, in order.

        Raises:
            ConfigurationError: As for the constructor.
        """
        return self._with((*self.policies, *policies))

    def _with(self, policies: Sequence[PolicyLike]) -> Self:
        own = copy.copy(self)
        own.policies = checked_chain(policies)
        own._kinds = tuple(map(policy_kind, own.policies))  # noqa: SLF001  # a copy of ourselves
        for warning in validate_order(own.policies):
            logger.warning("assembly policy ordering: %s", warning)
        return own

    async def assemble(self, prompts: Sequence[str], events: Sequence[Any], context: Context | None = None) -> Assembly:
        """Work out what the model gets to see on this turn.

        Args:
            prompts: The system-level texts in front of the events.
            events: A `History`, or a list of events of any described types; nothing in it is changed.
            context: What the policies may ask of the run.

        Raises:
            HaltedError: The conversation is halted, or this assembly halted it, and `on_halt` is ``raise``; or a policy
                raised it. No policy starts after a halt, and nothing is to be sent.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
            PolicyContractError: A policy changed its input, or returned something else than two sequences.
            DescribeError: An event cannot be read, or has a part that nobody knows and `strict` is asked for.
        """
        if context is None:
            context = Context()
        elif type(context) is not Context:
            of_type("context", context, Context, "give Context(conversation_id=..., agent_name=..., model=...)")
        given = () if isinstance(prompts, str) else tuple(prompts)
        if isinstance(prompts, str) or (given and not all(isinstance(prompt, str) for prompt in given)):
            raise ConfigurationError("prompts must be a sequence of strings, one for each system-level text")
        guards: tuple[HaltGuard, ...]
        if isinstance(events, History):
            context.adopt(events.conversation)
            theirs = events.conversation.guard
            guards = (context.guard,) if context.guard is theirs else (context.guard, theirs)
        else:
            guards = (context.guard,)
        model = self.model or context.model
        started_ns = time.time_ns()
        meter = self._meter(model, context.client)
        asked = context
        if not meter.ready:
            if not is_ready(meter.counter):
                asked = copy.copy(context)  # another turn of the conversation may be given something else meanwhile
                await ready(meter.counter)
            meter.ready = True
        ledger = self._ledger(events, context)
        ledger_input = await ledger.open_in_slices(events)
        self._ledgers.weigh(ledger, context, self._whose, self._recorded_by())
        if self.strict and (unknown := ledger_input.view.history.unknown) is not None:
            raise unknown_part(*unknown)
        if (billed := ledger_input.view.history.billed) is not None:
            self._calibrate(billed, ledger, ledger_input, model)
        await self._arrive(ledger_input.view, meter)
        recording = self._recorded_by().begin(self.name, model, asked, started_ns)
        for guard in guards[1:]:
            guard.last, guard.whose = context.guard.last, context.guard.whose
        record = Record(
            name=self.name,
            model=model,
            turn=ledger.turn(),
            ledger=ledger,
            ledger_input=ledger_input,
            context=asked.for_assembly(
                meter, recording.watch if recording is not None else None, ledger_input.view, model
            ),
            meter=meter,
            prompts_in=given,
            window=self.model_window,
            guards=guards,
            named=named_conversation(context.conversation_id, self._recorded_by()),
        )
        assembly = OpenAssembly(record, NULL_RECORDING if recording is None else recording)
        try:
            token = record.context.begin(guards)
            try:
                await self._run(assembly)
                await self._note(assembly, assembly.recording)
            finally:
                record.context.end(token)
            self._heed_halt(record)
            if assembly.recording.measured:
                await count_estimates(record.view_out, meter)
        except BaseException as error:
            self._failed(assembly, error)
            if isinstance(error, ContextOverflowError):
                await self._note(assembly, NULL_RECORDING)
            raise
        await assembly.succeeded_in_slices()
        record.context.done(succeeded=True)
        return Assembly(record)

    @property
    def compacts(self) -> bool:
        """Whether a policy of the chain makes texts shorter, and does not only leave them out."""
        return any(getattr(policy, "compacts", False) for policy in self.policies)

    async def compact_ahead(self, prompts: Sequence[str], history: History, context: Context) -> bool:
        """Have the policies that compact do so ahead of need, as an `Agent` does between model calls.

        What they make stands in the next prompt that needs it, and nobody waits for it there. No assembly is open
        meanwhile: each attempt is a span of its own, under the caller's.

        Args:
            prompts: The system-level texts in front of the conversation.
            history: The conversation.
            context: Its `budget_ratio` is the share of the budgets from which on they compact.

        Returns:
            Whether there was anything to compact.
        """
        found = False
        meter = self._meter(self.model or context.model, context.client)
        for policy in self.policies:
            if not getattr(policy, "compacts", False):
                continue
            recording = self._recorded_by().begin_compaction(policy.name, context.agent_name)
            with recording or nullcontext():
                own = context.for_assembly(meter, recording.watch if recording is not None else None)
                try:
                    outcome = await policy.decide(tuple(prompts), history.view(), own)  # type: ignore[attr-defined]
                except ContextOverflowError:
                    continue  # the assembly says so, with all that stands in front of the policy
            found = found or bool(outcome.compactions)
        return found

    async def _arrive(self, view: View, meter: TokenMeter) -> None:
        """Count what is new."""
        await arrive(view, meter)

    @property
    def _whose(self) -> tuple[object, ...]:
        return type(self), self.name

    def _ledger(self, events: Sequence[Any], context: Context) -> Ledger:
        return self._ledgers.of(events, context, self._whose, self._recorded_by())

    def _recorded_by(self) -> Recorder:
        return self._recorder if self._recorder is not None else DEFAULT.recorder

    def _meter(self, model: str | None, client: ClientRules | None = None) -> TokenMeter:
        asked = model, client
        if self._last_meter is None or self._last_meter[0] != asked:
            rules = client or rules_of_unknown_client(model)
            counter = self._counter
            key = f"{rules}{'' if counter is not None else model}"
            made = self._meters.of(key, lambda: self._new_meter(counter or counter_for(model), rules))
            self._last_meter = asked, made
        return self._last_meter[1]

    def _new_meter(self, counter: TokenCounter, client: ClientRules) -> TokenMeter:
        return TokenMeter(counter, self.framing.for_client(client, counter.count))

    async def _run(self, assembly: OpenAssembly) -> None:
        record, recording = assembly.record, assembly.recording
        for policy, kind in zip(self.policies, self._kinds, strict=True):
            self._heed_halt(record)
            step = assembly.begin_step(
                policy.name, kind, config_of(policy, record.context) if recording.measured else {}
            )
            with recording.policy(policy.name, step.index):
                try:
                    await assembly.apply(policy, step)
                    if step.created:
                        await arrive(step.view_out, record.meter)
                except BaseException as error:
                    step.error = error
                    if not isinstance(error, Exception):
                        raise
                    if not self._passes_over(error, policy, step, record):
                        if isinstance(error, PolicyError | HaltedError | ContextOverflowError):
                            raise
                        said = f"raised {type(error).__name__}; its own error is the cause of this one"
                        raise PolicyFailedError(policy.name, step.index, said) from error
            if step.overflow is not None and (record.overflow is None or step.overflow.unit == "tokens"):
                record.overflow = step.overflow

    def _heed_halt(self, record: Record) -> None:
        """Look whether the conversation is halted; where nothing may be sent then, the assembly ends here."""
        for guard in record.guards:
            record.halt = record.halt or guard.halt
        if record.halt is not None and self.on_halt == "raise":
            raise HaltedError(record.halt.reason, record.halt.source)

    def _passes_over(self, error: Exception, policy: AssemblyPolicy, step: Step, record: Record) -> bool:
        """Whether the chain goes on without a policy that raised; a budget that could not hold is written down."""
        if isinstance(error, ContextOverflowError):
            step.budget, step.fixed, step.report = error.budget, error.fixed, error.report
            record.overflow = step.overflow = Overflow(error.budget, error.needed, OverflowCause(error.cause))
            if error.policy is None:
                error.policy = policy.name
            return False
        if self.on_policy_error != "skip" or isinstance(error, HaltedError) or trait(policy, "skippable") is False:
            return False
        logger.warning("policy %r (index %d) was skipped: it raised %s", policy.name, step.index, type(error).__name__)
        return True

    def _calibrate(self, billed: tuple[int, int], ledger: Ledger, ledger_input: LedgerInput, model: str | None) -> None:
        """Compare what was counted for the last prompt with what the provider has billed for it by now."""
        with ledger.lock:
            usage = ledger.pending_usage
            if usage is None or usage.numbered is not ledger_input.numbered or billed[0] < usage.seen:
                return
            ledger.pending_usage = None
        self._observe_usage(usage.tokens, billed[1], model, usage.generation)

    def observe_usage(
        self, counted: int, billed: int, *, model: str | None = None, generation: int | None = None
    ) -> None:
        """Tell what the provider billed for a prompt of ours.

        An estimating counter is calibrated by it; the ratio goes to the metric ``assembly.tokens.calibration``. It is
        called for you where a response in the history says its usage.

        Args:
            counted: ``assembly.totals.tokens_out``.
            billed: The input tokens of the provider's bill, cached ones included.
            model: The model that was called; by default the assembler's.
            generation: The counter's generation when it counted, where that is known.

        Raises:
            ConfigurationError: `counted` or `billed` is not a whole number, or is below 0.
        """
        whole_number("observe_usage: counted", counted, least=0, unit="tokens (assembly.totals.tokens_out)")
        whole_number("observe_usage: billed", billed, least=0, unit="tokens (the provider's input tokens)")
        self._observe_usage(counted, billed, model, generation)

    def _observe_usage(self, counted: int, billed: int, model: str | None, generation: int | None) -> None:
        counter = self._meter(model or self.model).counter
        if isinstance(counter, CalibratedCounter):
            counter.observe(counted, billed, generation=generation)
        self._recorded_by().calibrated(model or self.model, counted, billed)

    def observe_refusal(self, error: ModelContextLengthError, context: Context | None = None) -> None:
        """Tell that the model's provider refused a prompt of ours as too long, where it was caught.

        It is an overflow, cause ``provider``: on the model call's span, where that is the current one and records, else
        in a log record; and always in the metric ``assembly.budget.overflows``. What helps is one more assembly, with
        less: ``context.with_budget_ratio(assembly.ratio_for_less())``.

        Args:
            error: What the client raised.
            context: The context of the assembly that was refused.
        """
        whose = context.whose if context is not None else Whose()
        self._recorded_by().refused(whose, error.window, error.tokens)

    def _failed(self, assembly: OpenAssembly, error: BaseException) -> None:
        record = assembly.record
        record.context.done(succeeded=False)
        if isinstance(error, HaltedError) and record.halt is None:
            record.halt = vocabulary.HaltEvent(reason=error.reason, source=error.source)
        assembly.failed(error)
        if isinstance(error, ContextOverflowError | HaltedError):
            error.assembly = Assembly(record)

    async def _note(self, assembly: OpenAssembly, recording: Recording) -> None:
        """Let observers of budgets know, which may halt; the tokens are counted only where one may be subscribed."""
        record = assembly.record
        stream = record.context.stream
        if stream is None or not listens(stream, vocabulary.AssemblyCompleted):
            return
        totals = assembly.totals()
        if totals is None:
            return
        try:
            overflow = record.overflow
            with recording.observers():
                await stream.send(
                    vocabulary.AssemblyCompleted(
                        assembly=record.assembly_id,
                        turn=record.turn,
                        tokens=totals.tokens_out,
                        budget=totals.budget,
                        fixed=totals.fixed,
                        overflow_tokens=overflow.excess if overflow is not None and overflow.unit == "tokens" else 0,
                        overflow_cause=overflow.cause.value if overflow is not None else "",
                    )
                )
        except Exception as error:  # noqa: BLE001  # the assembly is done; a stream that fails must not undo it
            logger.warning("the stream refused the note on an assembly: %s", type(error).__name__)
