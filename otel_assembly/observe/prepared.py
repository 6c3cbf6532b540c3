"""An assembly whose model call is not known yet: its steps are told as they run, and all the rest at its end.

A framework's reducers may run long before the call that they work for, somewhere else, and not know whose it will be.
Spans, times and attempts to compact are recorded while they run, so that what they call stands under them. The ledger
is opened, and what came out of each step is read, once the call is there, or it is certain that none will come.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from otel_assembly.decision import Overflow, OverflowCause
from otel_assembly.observe.step import Compacting, ObservedStep, started_attempt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from otel_assembly.observe.assembler import ObservedAssembler
    from otel_assembly.observe.assembly import ObservedAssembly
    from otel_assembly.recorder import PolicyTime, Recording


class PreparedAssembly:
    """One assembly of a framework, while reducers prepare a model call.

    Attributes:
        recording: What is told of it.
        model: The model whose tokenizer counts until the end.
        steps: What ran so far.
        done_ns: When the last of them was done.
    """

    __slots__ = ("_assembler", "_broken", "done_ns", "model", "recording", "steps")

    def __init__(self, assembler: ObservedAssembler, recording: Recording, model: str | None) -> None:
        self._assembler = assembler
        self.recording = recording
        self.model = model
        self.steps: list[PreparedStep] = []
        self.done_ns = 0
        self._broken = False

    def step(
        self,
        policy: str,
        *,
        kind: str | None = None,
        config: Mapping[str, Any] | None = None,
        started_ns: int | None = None,
    ) -> PreparedStep:
        """One policy or reducer, as in `ObservedAssembly.step`."""
        time_of: PolicyTime | None = None
        if self.recording.measured:
            try:
                time_of = self.recording.policy(policy, len(self.steps), started_ns)
            except Exception as problem:  # noqa: BLE001
                self.fail(problem)
        step = PreparedStep(self, policy, kind, config or {}, time_of)
        self.steps.append(step)
        return step

    def count(self, text: str) -> int:
        """Tokens of a text; nothing is counted where nobody is told of it."""
        return self._assembler.meter(self.model).prompt(text) if self.recording.measured else 0

    def end(
        self,
        conversation: Any,
        events: Sequence[Any],
        *,
        prompts: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        model: str | None = None,
        error: BaseException | None = None,
        called: bool = True,
    ) -> None:
        """It came to its end, and what it began with is known.

        Args:
            conversation: Whose ledger it is, as in `ObservedAssembler.begin`.
            events: What the first step took in.
            prompts: The system-level texts in front of it.
            tools: The schemas of the tools that the model is offered.
            model: The model that is called.
            error: What went wrong, so that nothing was sent.
            called: Whether a model is called with it now. If not, it was over when its last step was done.
        """
        if self._broken:
            self.recording.abandon()
            return
        try:
            assembly = self._assembler.assembly(
                self.recording, conversation, events, prompts=prompts, tools=tools, model=model or self.model
            )
            for step in self.steps:
                step.replay(assembly)
        except Exception as problem:  # noqa: BLE001  # who only looks on must not be felt
            self._assembler.failed(self.recording, problem)
            return
        assembly.end(error, called=called, over_ns=None if called else self.done_ns)

    def fail(self, problem: Exception) -> None:
        """What is known of this assembly is not to be told."""
        self._broken = True
        self._assembler.failed(None, problem)


class PreparedStep(ObservedStep):
    """One policy or reducer of such an assembly, while it runs; what it said is read at the assembly's end.

    Attributes:
        events: What came out; None where that is what came in.
    """

    __slots__ = ("_config", "_error", "_kind", "_overflow", "_policy", "_prepared", "_said", "_spoke", "events")

    def __init__(
        self,
        prepared: PreparedAssembly,
        policy: str,
        kind: str | None,
        config: Mapping[str, Any],
        time_of: PolicyTime | None,
    ) -> None:
        self._prepared = prepared
        self._policy = policy
        self._kind = kind
        self._config = config
        self._time = time_of
        self._attempts = []
        self._current = None
        self._error: BaseException | None = None
        self._overflow: Overflow | None = None
        self.events: list[Any] | None = None
        self._spoke = False
        self._said: dict[str, Any] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind, error, trace)
        self._error = error
        self._prepared.done_ns = time.time_ns()

    def out(self, events: Sequence[Any] | None = None, **said: Any) -> None:
        """Say what came out, as `ObservedStep.out` is told; the time that the policy took ends here."""
        self._over()
        self.events = None if events is None else list(events)
        self._spoke, self._said = True, said
        self._prepared.done_ns = time.time_ns()

    def overflow(
        self, *, budget: int, needed: int, cause: OverflowCause = OverflowCause.FRAMEWORK, unit: str = "tokens"
    ) -> None:
        """A limit could not hold; the time that the policy took ends here."""
        self._over()
        self._overflow = Overflow(budget, needed, cause, unit)

    def failed(self, error: BaseException | None) -> None:
        """It failed, as `ObservedStep.failed` is told."""
        self._error = error

    def compacting(self, compactor: str, *, kind: str = "summary", target: int = 0, tokens_in: int = 0) -> Compacting:
        """Around one attempt to compact; no span where nobody is told of it."""
        recording = self._prepared.recording
        attempt = started_attempt(self._attempts, compactor, target, tokens_in)
        return Compacting.of(attempt, recording, kind)

    def count(self, text: str) -> int:
        """Tokens of a text, by what counts for this assembly so far."""
        if not self._attempts:
            self._over()
        return self._prepared.count(text)

    def replay(self, assembly: ObservedAssembly) -> None:
        """Say it all to the assembly that this was a step of."""
        step = assembly.take(self._policy, self._kind, self._config, self._time, self._attempts)
        step.failed(self._error)
        overflow = self._overflow
        if overflow is not None:
            step.overflow(budget=overflow.budget, needed=overflow.needed, cause=overflow.cause, unit=overflow.unit)
        if self._spoke:
            step.out(self.events, **self._said)
