"""`Assembler`: an ordered chain of policies, applied before a model call."""

from __future__ import annotations

import copy
import logging
import os
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

from otel_assembly._internal.arguments import OnError, OnHalt, counts, instance, of_type, one_of, whole_number, window
from otel_assembly._internal.current_recorder import assembly_listeners
from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.assembly import Assembly
from otel_assembly.chain.open_assembly import AssemblerBase, OpenAssembly, config_of
from otel_assembly.context import Context, listens
from otel_assembly.conversation_state import RUNNING, Running
from otel_assembly.decision import Overflow, OverflowCause
from otel_assembly.errors import (
    ConfigurationError,
    ContextOverflowError,
    HaltedError,
    PolicyError,
    PolicyFailedError,
    TokenizerError,
)
from otel_assembly.history.history import History, unknown_part_error
from otel_assembly.history.token_counts import arrive, count_estimates
from otel_assembly.ledger.ledger import Ledgers, named_conversation
from otel_assembly.ledger.record import Record
from otel_assembly.policies.base import INJECTION, DecidingPolicy
from otel_assembly.policies.registry import checked_chain, policy_kind, trait, validate_order
from otel_assembly.recorder import NULL_RECORDING, AgentIdentity
from otel_assembly.tokens import CalibratedCounter, MessageFraming, counter_for
from otel_assembly.tokens.models import is_ready, prepare, ready

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from otel_assembly import events as event_types
    from otel_assembly._internal import sync_calls
    from otel_assembly.chain import config as chain_config
    from otel_assembly.conversation_state import HaltGuard
    from otel_assembly.errors import ModelContextLengthError
    from otel_assembly.history.view import View
    from otel_assembly.ledger.ledger import Ledger
    from otel_assembly.ledger.snapshot import LedgerInput, Step
    from otel_assembly.policies.base import AssemblyPolicy, PolicyLike
    from otel_assembly.recorder import Recorder, Recording
    from otel_assembly.tokens import TokenCounter, TokenMeter
else:
    event_types, chain_config = LazyModule("otel_assembly.events"), LazyModule("otel_assembly.chain.config")
    sync_calls = LazyModule("otel_assembly._internal.sync_calls")

logger = logging.getLogger("otel_assembly")


class Assembler(AssemblerBase):
    """Run a chain of policies in order; each policy gets the output of the previous policy (as in AG2).

    One assembler can serve any number of conversations, tasks and threads.

    Args:
        policies: The chain. Injection comes before reduction; the problems that `validate_order` finds are logged as
            warnings.
        name: The name of this assembler in telemetry; None: no name.
        model: The model whose tokenizer counts; None: the model of the context (`Context.model`).
        model_window: The model's context window, in tokens. It is informational: telemetry records the share of it that
            a prompt uses, and the prompts that exceed it, but no policy enforces it. None: the value in `genai-prices`
            (extra ``prices``), if assemblies are recorded.
        on_policy_error: ``raise``, or ``skip`` to continue without a policy that raised. An `AlertPolicy`, an exceeded
            budget and a halt are never skipped.
        on_halt: What happens if the conversation is halted, before or during the assembly: ``raise`` a `HaltedError`,
            so that no model is called, or ``return`` the assembly with `Assembly.halt` set.
        counter: Counts the tokens; None: the model's tokenizer.
        framing: The tokens that a provider adds to the texts of each message, such as for its role; None: the values of
            the OpenAI cookbook.
        strict: True to raise `DescribeError` for an event with a part of an unknown type; False to count the JSON of
            that part.
        recorder: Receives the record of each assembly; None: the default recorder, which uses OpenTelemetry's global
            providers unless `configure` was called.

    Raises:
        ConfigurationError: A policy has no name or no ``apply``, or is a class; or a setting has an invalid value.
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
        self._set_policies(policies)
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
        super().__init__(recorder, counter, framing if framing is not None else MessageFraming())
        self.name = name
        self.model = model
        self.model_window = model_window
        self.on_policy_error = on_policy_error
        self.on_halt: OnHalt = on_halt
        self.strict = strict
        self._ledgers = Ledgers()
        with suppress(TokenizerError):  # raised when tokens are counted
            prepare(self._counter if self._counter is not None else counter_for(self.model))

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | PathLike[str], **settings: Any) -> Self:
        """Return an assembler from a mapping, or from a YAML or JSON file.

        The form is ``{name, model, model_window, on_policy_error, on_halt, strict, framing: {per_message: 4, …},
        policies: [{sliding_window: {max_events: 5}}, alert, …]}``. The constructor also gets the arguments `settings`.

        Raises:
            ConfigurationError: The configuration cannot be read or contains an unknown name; the message has the file,
                the place and the most similar known name.
        """
        chain = chain_config.chain_from_config(config)
        return cls(chain.policies, **{**chain.settings, **settings})

    def to_config(self) -> dict[str, Any]:
        """Return the mapping from which `from_config` makes an assembler with the same policies and settings.

        It does not contain `counter` and `recorder`, which are objects. A policy that is not built in is written by its
        import path.

        Raises:
            ConfigurationError: A policy cannot be imported, or has a setting that no configuration can contain.
        """
        names = ("name", "model", "model_window", "on_policy_error", "on_halt", "framing")
        settings = {name: getattr(self, name) for name in names}
        return chain_config.chain_to_config(self.policies, {**settings, "strict": self.strict or None})

    def reducing_first(self, policies: Sequence[PolicyLike]) -> Self:
        """Return a copy of this assembler with policies inserted before its first reduction.

        A reduction is a policy that removes content. Injections (policies that add content) in front of it stay first.

        Raises:
            ConfigurationError: As for the constructor.
        """
        first = next((index for index, kind in enumerate(self._kinds) if kind != INJECTION), len(self.policies))
        return self._with((*self.policies[:first], *policies, *self.policies[first:]))

    def followed_by(self, policies: Sequence[PolicyLike]) -> Self:
        """Return a copy of this assembler with policies appended to its chain.

        Raises:
            ConfigurationError: As for the constructor.
        """
        return self._with((*self.policies, *policies))

    def _with(self, policies: Sequence[PolicyLike]) -> Self:
        assembler = copy.copy(self)
        assembler._set_policies(policies)  # noqa: SLF001  # a copy of this object
        return assembler

    def _set_policies(self, policies: Sequence[PolicyLike]) -> None:
        self.policies: tuple[AssemblyPolicy, ...] = checked_chain(policies)
        self._kinds = tuple(map(policy_kind, self.policies))
        for warning in validate_order(self.policies):
            logger.warning("assembly policy ordering: %s", warning)

    async def assemble(self, prompts: Sequence[str], events: Sequence[Any], context: Context | None = None) -> Assembly:
        """Assemble the prompt of one model call.

        Args:
            prompts: The system-level texts in front of the events.
            events: A `History`, or a list of events of any registered types. This argument is not changed.
            context: The properties of the run, for the policies. None: an empty `Context`. If `events` is a list, the
                context identifies its conversation, so that without a context each call is a first turn.

        Raises:
            HaltedError: The conversation is halted, or this assembly halted it, and `on_halt` is ``raise``; or a policy
                raised this error. No policy starts after a halt, and the prompt must not be sent.
            ContextOverflowError: The content that must not be dropped exceeds a policy's budget.
            PolicyFailedError: A policy raised.
            PolicyContractError: A policy changed its input, or did not return two sequences.
            DescribeError: An event cannot be read, or it has a part of an unknown type and `strict` is set.
        """
        return await self._assemble(prompts, events, context, in_place=False)

    def assemble_sync(self, prompts: Sequence[str], events: Sequence[Any], context: Context | None = None) -> Assembly:
        """Assemble the prompt of one model call as `assemble` does, for a loop without ``await``.

        The arguments, the result, the errors and the recorded data are those of `assemble`. The built-in policies run
        in place, and need neither an event loop nor a thread. An event loop is started for a policy that may wait: one
        whose function is ``async``, that reads a knowledge store, or that compacts with `BudgetPolicy.compact`; and for
        the stream of the context. If this thread runs an event loop already, also that of trio, the new one runs in a
        daemon thread, with a copy of the caller's context variables.

        The call blocks its thread, and an event loop that runs in it, until the assembly is complete. An interrupt
        (Ctrl-C) cancels the policy that waits.

        Example:
            >>> from otel_assembly import ModelRequest, SlidingWindowPolicy
            >>> events = [ModelRequest(content="1"), ModelRequest(content="2")]
            >>> Assembler([SlidingWindowPolicy(1)]).assemble_sync(["Be brief."], events).events[0].content
            '2'
        """
        return sync_calls.run_in_place(self._assemble(prompts, events, context, in_place=True))

    async def _assemble(
        self, prompts: Sequence[str], events: Sequence[Any], context: Context | None, *, in_place: bool
    ) -> Assembly:
        started_ns = time.time_ns()
        texts, context = _arguments(prompts, context)
        history = events if isinstance(events, History) else None
        conversation = context.adopt(history.conversation if history is not None else None)
        guards: tuple[HaltGuard, ...] = (conversation.guard,)
        if history is not None and history.conversation is not conversation:
            guards = conversation.guard, history.conversation.guard
        model, recorder = self.model or context.model, self.recorder
        meter = self.meter(model, context.client)
        run_context = context
        if not meter.ready:
            meter.ready = is_ready(meter.counter)
            if not meter.ready and not in_place:  # in place, the first count waits
                run_context = copy.copy(context)  # the caller may change the context during the wait
                await ready(meter.counter)
                meter.ready = True
        ledger = self._ledger(events, context)
        source = ledger.open_in_place(events) if in_place else await ledger.open_in_slices(events)
        if context.conversation_id is not None:
            self._ledgers.weigh(ledger, context, (type(self), self.name), recorder)
        if self.strict and (unknown := source.view.history.unknown) is not None:
            raise unknown_part_error(*unknown)
        self._calibrate(ledger, source, model)
        await self._arrive(source.view, meter, in_place=in_place)
        recording = recorder.begin(self.name, model, run_context, started_ns)
        for guard in guards[1:]:  # a halt by this guard is recorded on the span of this assembly, too
            guard.last, guard.identity = conversation.guard.last, conversation.guard.identity
        watch = recording.watch if recording is not None else None
        record = Record(
            assembly_id=os.urandom(16).hex(),
            name=self.name,
            model=model,
            turn=ledger.turn(),
            ledger=ledger,
            ledger_input=source,
            context=run_context.for_assembly(meter, watch, source.view, model),
            meter=meter,
            prompts_in=texts,
            window=self.model_window,
            guards=guards,
        )
        if context.conversation_id is not None:
            record.named = named_conversation(context.conversation_id, recorder)
        assembly = OpenAssembly(record, NULL_RECORDING if recording is None else recording, in_place=in_place)
        try:
            is_current = await self._run(assembly)
        except BaseException as error:
            if isinstance(error, HaltedError) and record.halt is None:
                record.halt = event_types.HaltEvent(reason=error.reason, source=error.source)
            assembly.close(error)
            record.context.done(succeeded=False)
            if isinstance(error, ContextOverflowError | HaltedError):
                error.assembly = Assembly(record)
            if isinstance(error, ContextOverflowError):
                await self._notify_observers(assembly, NULL_RECORDING)
            raise
        if not is_current:
            return await self._start_again(assembly, prompts, events, context)
        return await self._end(assembly)

    async def _end(self, assembly: OpenAssembly) -> Assembly:
        """Record an assembly whose policies succeeded, and return its result."""
        record = assembly.record
        try:
            await assembly.close_in_slices()
        except BaseException:  # the caller does not get the prompt
            record.context.done(succeeded=False)
            raise
        record.context.done(succeeded=True)
        made = Assembly(record)
        for listener in assembly_listeners:
            listener(made)
        return made

    async def _start_again(
        self, assembly: OpenAssembly, prompts: Sequence[str], events: Sequence[Any], context: Context
    ) -> Assembly:
        """Assemble again: the policies decided on an old version of a message that was changed in place."""
        assembly.record.context.done(succeeded=False)
        assembly.recording.abandon()
        assembly.record.ledger.repeat_turn(assembly.record.turn)
        return await self._assemble(prompts, events, context, in_place=assembly.in_place)

    def recheck_messages(self, context: Context) -> None:
        """Compare all messages of the conversation with the content that was read, at its next assembly.

        Use it after a change of older messages in place, if the conversation is a list of more than 1,024 messages. Of
        such a list, each assembly compares the messages that it sends, and 256 others in rotation, so that counts of
        dropped messages can be outdated for a few assemblies. A `History` and shorter lists do not need it.

        Args:
            context: The context of the conversation's assemblies.

        Example:
            >>> context, messages = Context(conversation_id="support-7"), [{"role": "user", "content": "Hello"}]
            >>> assembler = Assembler([])
            >>> assembler.assemble_sync([], messages, context).totals.tokens_out
            8
            >>> messages[0]["content"] = "Hello, and good morning"
            >>> assembler.recheck_messages(context)
            >>> assembler.assemble_sync([], messages, context).totals.tokens_out
            12
        """
        self._ledger((), context).compare_all()

    @property
    def compacts(self) -> bool:
        """Whether a policy of the chain compacts content instead of only dropping it."""
        return any(getattr(policy, "compacts", False) for policy in self.policies)

    async def compact_ahead(self, prompts: Sequence[str], history: History, context: Context) -> bool:
        """Summarize content before a budget requires it, as an `Agent` does between model calls.

        The next assembly then does not have to wait for the summary. This call is not an assembly: each attempt to
        compact content is a child span of the caller's span.

        A policy compacts content if the conversation exceeds the share `Context.budget_ratio` of the policy's budget.
        It gets the events without those that filters of the chain drop by their kind.

        Returns:
            True if a policy compacted content.
        """
        has_compacted = False
        meter, texts = self.meter(self.model or context.model, context.client), tuple(prompts)
        events: Sequence[Any] = history.view()
        for policy in self.policies:
            if isinstance(policy, DecidingPolicy) and policy.filters is not None:
                filtered = await policy.decide(texts, events, context.for_assembly(meter))
                events = filtered.events
            if not getattr(policy, "compacts", False):
                continue
            recording = self.recorder.begin_compaction(policy.name, context.agent_name)
            with recording or nullcontext():
                policy_context = context.for_assembly(meter, recording.watch if recording is not None else None)
                try:
                    outcome = await policy.decide(texts, events, policy_context)  # type: ignore[attr-defined]
                except ContextOverflowError:
                    continue  # the next assembly raises it, with the whole chain applied
            has_compacted = has_compacted or bool(outcome.compactions)
        return has_compacted

    async def _arrive(self, view: View, meter: TokenMeter, *, in_place: bool) -> None:
        """Count the tokens of new events; a `ContextAssembler` counts only new turns here."""
        await arrive(view, meter, in_place=in_place)

    def _ledger(self, events: Sequence[Any], context: Context) -> Ledger:
        return self._ledgers.of(events, context, (type(self), self.name), self.recorder)

    async def _run(self, assembly: OpenAssembly) -> bool:
        """Apply the policies in order, notify observers, and return `_is_current`."""
        record, recording = assembly.record, assembly.recording
        token = RUNNING.set(Running(record.guards, record.context.emitted))  # halts are attributed to this assembly
        try:
            for policy, kind in zip(self.policies, self._kinds, strict=True):
                self._check_halt(record)
                config = config_of(policy, record.context) if recording.measured else {}
                step = assembly.begin_step(policy.name, kind, config)
                with recording.policy(policy.name, step.index) if recording.measured else nullcontext():
                    await self._apply(assembly, policy, step)
                if step.overflow is not None and (record.overflow is None or step.overflow.unit == "tokens"):
                    record.overflow = step.overflow
            record.end_chain()
            is_current = self._is_current(record)
            if is_current:
                await self._notify_observers(assembly, recording)
        finally:
            with suppress(ValueError):  # a coroutine that was not awaited to its end is closed in another context
                RUNNING.reset(token)
        self._check_halt(record)
        if recording.measured:
            await count_estimates(record.sent.view, record.meter, in_place=assembly.in_place)
        return is_current

    def _is_current(self, record: Record) -> bool:
        """Return whether all messages to send have the content that the policies decided on."""
        source = record.ledger_input
        return not source.given or record.ledger.verify(source, record.sent)

    async def _apply(self, assembly: OpenAssembly, policy: AssemblyPolicy, step: Step) -> None:
        """Apply one policy. If it raises, record the error in the step, and raise it unless the policy is skipped."""
        record = assembly.record
        try:
            await assembly.apply(policy, step)
            if step.created:
                await arrive(step.after.view, record.meter, in_place=assembly.in_place)
        except BaseException as error:
            step.error, name = error, type(error).__name__
            if isinstance(error, ContextOverflowError):
                step.budget, step.fixed, step.report = error.budget, error.fixed, error.report
                record.overflow = step.overflow = Overflow(error.budget, error.needed, OverflowCause(error.cause))
                error.policy = policy.name if error.policy is None else error.policy
            if isinstance(error, ContextOverflowError | HaltedError) or not isinstance(error, Exception):
                raise
            if self.on_policy_error == "skip" and trait(policy, "skippable") is not False:
                logger.warning("policy %r (index %d) was skipped: it raised %s", policy.name, step.index, name)
                return
            if isinstance(error, PolicyError):
                raise
            problem = f"raised {name}; its own error is the cause of this one"
            raise PolicyFailedError(policy.name, step.index, problem) from error

    def _check_halt(self, record: Record) -> None:
        """Store a halt of the conversation in the record; raise `HaltedError` if `on_halt` is ``raise``."""
        for guard in record.guards:
            record.halt = record.halt or guard.halt
        if record.halt is not None and self.on_halt == "raise":
            raise HaltedError(record.halt.reason, record.halt.source)

    def _calibrate(self, ledger: Ledger, ledger_input: LedgerInput, model: str | None) -> None:
        """Report the tokens that the provider billed for the previous prompt, if the newest response states them."""
        billed = ledger_input.view.history.billed  # the response's position, and the input tokens
        if billed is None:
            return
        with ledger.lock:
            usage = ledger.pending_usage
            if usage is None or usage.numbered is not ledger_input.numbered or billed[0] < usage.input_end:
                return
            ledger.pending_usage = None
        self._observe_usage(usage.tokens, billed[1], model, usage.generation)

    def observe_usage(
        self, counted: int, billed: int, *, model: str | None = None, generation: int | None = None
    ) -> None:
        """Report the tokens that the provider billed for an assembled prompt.

        The numbers calibrate the counter of a model without a public tokenizer, which only estimates. The metric
        ``assembly.tokens.calibration`` records the ratio of billed to counted tokens. Call this method only if the
        events contain no usage: the assembler reads the usage of a response that is among the events.

        Args:
            counted: The prompt's tokens as the assembler counted them, ``assembly.totals.tokens_out``.
            billed: The input tokens that the provider billed, including cached ones.
            model: The model that was called; None: the assembler's.
            generation: The value of the counter's attribute `generation` when the prompt was counted. A calibrated
                counter increases that number each time it changes its correction. None: the current value.

        Raises:
            ConfigurationError: `counted` or `billed` is not a whole number, or is below 0.
        """
        whole_number("observe_usage: counted", counted, least=0, unit="tokens (assembly.totals.tokens_out)")
        whole_number("observe_usage: billed", billed, least=0, unit="tokens (the provider's input tokens)")
        self._observe_usage(counted, billed, model, generation)

    def _observe_usage(self, counted: int, billed: int, model: str | None, generation: int | None) -> None:
        counter = self.meter(model or self.model).counter
        if isinstance(counter, CalibratedCounter):
            counter.observe(counted, billed, generation=generation)
        self.recorder.calibrated(model or self.model, counted, billed)

    def observe_refusal(self, error: ModelContextLengthError, context: Context | None = None) -> None:
        """Report that the model's provider refused an assembled prompt as too long.

        The refusal is recorded as an overflow with the cause ``provider``: on the span of the model call if that span
        is current and recorded, else in a log record, and in the metric ``assembly.budget.overflows``. To continue,
        assemble again with a smaller budget: ``context.with_budget_ratio(assembly.ratio_for_less())``.

        Args:
            error: The exception of the model client.
            context: The context of the refused assembly, from which telemetry reads the agent; None: an empty context.
        """
        identity = context.identity if context is not None else AgentIdentity()
        self.recorder.refused(identity, error.window, error.tokens)

    async def _notify_observers(self, assembly: OpenAssembly, recording: Recording) -> None:
        """Send an `AssemblyCompleted` event, whose subscribers may halt the conversation.

        The tokens are counted only if the stream may have a subscriber for this event.
        """
        record = assembly.record
        stream = record.context.stream
        if stream is None or not listens(stream, event_types.AssemblyCompleted):
            return
        if (totals := assembly.totals()) is None:
            return
        try:
            overflow = record.overflow
            with recording.observers():
                sending = stream.send(
                    event_types.AssemblyCompleted(
                        assembly=record.assembly_id,
                        turn=record.turn,
                        tokens=totals.tokens_out,
                        budget=totals.budget,
                        fixed=totals.fixed,
                        overflow_tokens=overflow.excess if overflow is not None and overflow.unit == "tokens" else 0,
                        overflow_cause=overflow.cause.value if overflow is not None else "",
                    )
                )
                if assembly.in_place:
                    sync_calls.run_blocking(sending)
                else:
                    await sending
        except Exception as error:  # noqa: BLE001  # an exception of the stream must not fail a completed assembly
            logger.warning("the stream raised %s for the event of a completed assembly", type(error).__name__)


def _arguments(prompts: Sequence[str], context: Context | None) -> tuple[tuple[str, ...], Context]:
    """Return the checked arguments of `Assembler.assemble`."""
    if context is None:
        context = Context()
    elif type(context) is not Context:
        of_type("context", context, Context, "give Context(conversation_id=..., agent_name=..., model=...)")
    texts = () if isinstance(prompts, str) else tuple(prompts)
    if isinstance(prompts, str) or ({*map(type, texts)} - {str} and not all(isinstance(text, str) for text in texts)):
        raise ConfigurationError("prompts must be a sequence of strings, one for each system-level text")
    return texts, context
