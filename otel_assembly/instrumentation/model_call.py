"""The model call that is being prepared, in whatever framework: who asks, what its messages were, what reduced them.

A model call is one assembly. It begins with the first thing that is done to its messages, and ends as the model's
client receives them: so what came in is what the framework held, each reduction on the way is a step, and what came out
is what was sent. What no hook explains is a last step, `framework`. Which model call something works for is known by a
context variable while it is prepared; what reduces outside of any waits for the next call of its conversation and
asker.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace

from otel_assembly.instrumentation.conversation import InvokingAgent
from otel_assembly.instrumentation.deferred import DEFERRED_REDUCTIONS, DeferredReductions, RecordedStep, remap_verdicts
from otel_assembly.instrumentation.instrumented import context_value, on_exit
from otel_assembly.instrumentation.message_alignment import insert_gaps, locate, replace_at, same, same_objects
from otel_assembly.instrumentation.reducers import FRAMEWORK
from otel_assembly.instrumentation.rendered import find_rendering
from otel_assembly.observe.conversations import suppress_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from otel_assembly.decision import Verdict
    from otel_assembly.instrumentation.deferred import DeferredReduction
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.lazy_runs import LazyRun
    from otel_assembly.instrumentation.rendered import Rendering
    from otel_assembly.messages.provider_rules import ClientRules
    from otel_assembly.observe.assembly import ObservedAssembly, ObservedStep

#: What of a call changes as its messages are prepared, beside the steps.
_STATE: Final = ("messages", "out", "prompts", "_prompts_out", "_whole", "_stage")


class ClientRequest(NamedTuple):
    """What a model's client is given.

    Attributes:
        messages: The messages behind the system prompts, in the framework's own types.
        prompts: The system prompts in front of them; None where they are those that the call was prepared with.
        tools: The schemas of the tools that are offered, where they are known.
        model: The model's name.
        window: The model's limit in tokens, where the framework knows it: a `ListedWindow` where nobody can set that.
        invoking_agent: Who asks, where no call is being prepared that says so.
        call: The call that these messages were prepared for, where the client is not called inside of it.
        client: What the client adds to messages; None if only the model's name is known.
        unknown: Whether the provider holds earlier messages, so that nobody here can know the model's input.
    """

    messages: Sequence[Any]
    prompts: Sequence[str] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    model: str | None = None
    window: int | None = None
    invoking_agent: InvokingAgent = InvokingAgent()
    call: ModelCall | None = None
    client: ClientRules | None = None
    unknown: bool = False


class ModelCall:
    """The assembly of one model call, from the first thing that is done to its messages until the client has them.

    Attributes:
        invoking_agent: Who asks.
        messages: What the framework held; None until something of it was seen.
        out: What the last step let out.
        prompts: The system prompts before any step changed them; None until they are known.
        tools: The schemas of the tools.
        model: The model's name.
        window: The model's limit in tokens.
        name: What tells it from the framework's other assemblies, such as the care of a history.
        sent: How often a client has received it.
        unknown: Whether nobody can know what the framework held; what comes out is then taken for what came in.
        client: What the client adds to messages; None if it is not known.
        run: The run that it is a part of, where that may get its span only with what is told in it.
        problem: What its last reducer raised, for whose caller that need not have been the end.
        ends_before_client_span: Whether its assembly ends with the last step, not when the model is called: where that
            call's span may be open by then.
    """

    ends_before_client_span = False

    def __init__(
        self,
        instrumentation: Instrumentation,
        invoking_agent: InvokingAgent = InvokingAgent(),  # noqa: B008  # a tuple
        *,
        messages: Sequence[Any] | None = None,
        prompts: Sequence[str] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        model: str | None = None,
        window: int | None = None,
        name: str | None = None,
    ) -> None:
        self.instrumentation = instrumentation
        self.invoking_agent = invoking_agent
        self.messages: list[Any] | None = None
        self.out: list[Any] = []
        self.prompts = prompts
        self.tools = tools
        self.model = model
        self.window = window
        self.name = name
        self.sent = 0
        self.unknown = False
        self.client: ClientRules | None = None
        self.run: LazyRun | None = None
        self.problem: BaseException | None = None
        self._prompts_out: Sequence[str] | None = prompts
        #: Whether the first messages were all that the framework held, and not perhaps a part of it.
        self._whole = False
        self._stage = 0
        self._prepared: ObservedAssembly | None = None
        self._told: list[RecordedStep] = []
        self._ended = False
        if messages is not None:
            self.set_input(messages)

    def set_input(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None) -> None:
        """The framework holds these: all that comes in to the call."""
        self._restart()
        if self.messages is None:
            self._first_observation(messages)
        else:
            self.observe_messages(messages)
        self._whole = True
        if self.prompts is None:
            self.prompts = self._prompts_out = prompts

    def set_model_info(
        self, *, tools: Sequence[Mapping[str, Any]] = (), model: str | None = None, window: int | None = None
    ) -> None:
        """What the model is called with beside messages, as far as it was not known."""
        self.tools = self.tools or tools
        self.model = self.model or model
        self.window = self.window or window

    def open(self, started_ns: int | None = None) -> None:
        """Open its assembly's span here, if that is not open yet."""
        self._restart()
        self._assembly(started_ns)

    def count(self, text: str) -> int:
        """Tokens of a text, while a step goes on; 0 where nothing is recorded."""
        return self._prepared.count(text) if self._prepared is not None else 0

    def step(
        self,
        policy: str,
        before: Sequence[Any],
        *,
        kind: str | None = None,
        config: Mapping[str, Any] | None = None,
        started_ns: int | None = None,
    ) -> ObservedStep | None:
        """A reducer of these messages begins, or began; steps follow one another. None where nothing is recorded.

        It is a context manager around what the reducer does, and `reduced` says what came out of it.
        """
        self._restart()
        self._first_observation(before)
        return self._step(policy, kind, config, started_ns)

    def reduced(
        self,
        policy: str,
        before: Sequence[Any],
        after: Sequence[Any],
        *,
        step: ObservedStep | None = None,
        since: Sequence[Any] | None = None,
        kind: str | None = "reduction",
        config: Mapping[str, Any] | None = None,
        started_ns: int | None = None,
        prompts: Sequence[str] | None = None,
        **said: Any,
    ) -> bool:
        """A reducer made these messages of those, wherever they stand among the call's.

        Args:
            policy: Its name, of low cardinality.
            before: What it took in.
            after: What it let out.
            step: Its step, where that is open.
            since: What the call's messages were when it began, where others have reduced them meanwhile.
            kind: ``reduction`` or ``injection``.
            config: Its settings.
            started_ns: When it began, where no step is open.
            prompts: The system prompts, where it changed them.
            said: What else `ObservedStep.out` is told.

        Returns:
            Whether it was told; not where the messages are none of this call's.
        """
        self._restart()
        self._first_observation(before)
        whole = self.out if since is None else since
        places = locate(whole, before)
        if places is None:
            places = [place for one in before for place in locate(whole, [one]) or ()]
            if not places:
                return False
            if step is None:
                self.observe_messages(before)
                whole, places = self.out, list(range(len(before)))
        if step is None:
            step = self._step(policy, kind, config, started_ns)
        if step is None:
            return False
        if len(places) == len(before):
            said = remap_verdicts(said, dict(zip(map(id, before), map(whole.__getitem__, places), strict=True)))
        self._tell(RecordedStep(policy, kind, config or {}, step, replace_at(whole, places, after), prompts, said))
        return True

    def replay_deferred(self, waiting: DeferredReduction) -> None:
        """What a reducer did before anybody knew this call is told as a step of it."""
        self._restart()
        self._first_observation(waiting.before)
        step = self._attempted(waiting)
        if step is not None:
            about = {"kind": waiting.kind, "config": waiting.config, **waiting.said}
            self.reduced(waiting.policy, waiting.before, waiting.after, step=step, **about)

    def fork(self, state: int | None = None) -> Self:
        """A call of its own that begins as this one stands now, or stood: with what came in, and what was done to it.

        An agent that reduces its history once for all calls of a run begins each of them so.

        Args:
            state: Which of `states` it begins with; by default the last.
        """
        made = copy(self)
        made._begins_with(list(map(replace, self._told[:state])))  # noqa: SLF001  # of this class
        return made

    def apply_deferred(self, invoking_agent: InvokingAgent) -> None:
        """What waits for this asker was done since to what it begins with, one after another."""
        for one in DEFERRED_REDUCTIONS.take(invoking_agent):
            self._restart()
            self.observe_messages(one.before)
            said = remap_verdicts(one.said, dict(zip(map(id, one.before), self.out, strict=True)))
            self._apply_deferred_step(one._replace(said=said), list(one.after))

    def observe_messages(
        self,
        messages: Sequence[Any],
        *,
        prompts: Sequence[str] | None = None,
        policy: str = FRAMEWORK,
        kind: str | None = None,
        verdicts: Sequence[Verdict] = (),
    ) -> None:
        """These are sent, or reduced, next: report what changed since the last step let something out.

        Args:
            messages: The messages.
            prompts: The system prompts, where they are known.
            policy: What has changed them, where that is known.
            kind: ``reduction`` or ``injection``, likewise.
            verdicts: Why messages left, where that is known.
        """
        self._first_observation(messages)
        if not self._whole and not same(self.out, messages):
            self._widen(messages)
        changed = prompts is not None and self.prompts is not None and list(prompts) != list(self._prompts_out or ())
        if prompts is not None and self.prompts is None:
            self.prompts = self._prompts_out = prompts
        if changed or not same(self.out, messages):
            step = self._step(policy, kind)
            if step is not None:
                verdicts = verdicts or self.why(self.out, messages)
                said = {"verdicts": verdicts} if verdicts else {}
                self._tell(RecordedStep(policy, kind, {}, step, list(messages), prompts if changed else None, said))

    @contextmanager
    def scoped(self) -> Iterator[None]:
        """What is done to the messages in this block holds until its end, where the assembly ends too, if it has not.

        So it is with a middleware that stands around the next one, down to the client: one in front of it may call it
        again, and then it does its work once more.
        """
        self._restart()
        rollback = self.checkpoint()
        try:
            with on_exit(self.end):
                yield
        finally:
            rollback()

    def checkpoint(self) -> Callable[[], None]:
        """Remember its messages and steps as they are now; the function that is returned puts them back.

        That does nothing while its assembly is open.
        """
        held, told = {name: getattr(self, name) for name in _STATE}, [*self._told]

        def rollback() -> None:
            if self._prepared is None or self._ended:
                self._told, self._ended = [*told], True
                for name, value in held.items():
                    setattr(self, name, value)

        return rollback

    def replaced_by_plugin(self, messages: Sequence[Any], *, prompts: Sequence[str] | None = None) -> None:
        """A plug-in of ours has made an assembly of its own, and these are what it let out.

        What was done before it is told as a call that no model is called with; only what is done behind it is told
        from here on.
        """
        self.end()
        self._prepared, self._ended, self._stage = None, False, self._stage + 1
        self.messages, self.out, self._whole = list(messages), list(messages), True
        self._told, self._prompts_out, self.prompts, self.sent = [], prompts, prompts, 0

    def client_called(self, given: ClientRequest) -> None:
        """The model's client is called with these: tell what became of the messages, and end the assembly."""
        self._restart()
        self.model, self.tools = given.model or self.model, given.tools or self.tools
        self.window = given.window or self.window
        self.client = given.client or self.client
        self.unknown = self.unknown or given.unknown
        if self._stage and not self.sent and not self._told and self._is_out(given):
            self.sent += 1
            return  # it is told by the plug-in that made it
        assembly = self._assembly()
        if assembly is None:
            return
        with suppress_errors(assembly.fail):
            rendering = self._rendering(given)
            if rendering is None:
                self.observe_messages(given.messages, prompts=given.prompts)
            else:
                if not self._whole:  # the program's next message came in with those that were rendered
                    self._widen([*self.out, *rendering.beside])
                self.observe_messages(rendering.messages, prompts=rendering.prompts, verdicts=rendering.verdicts)
        self._end(called=True)

    def _rendering(self, given: ClientRequest) -> Rendering | None:
        """Whether messages of the call were rendered into the text of a prompt that is sent."""
        if not self.out or self.unknown or same_objects(self.out, given.messages):
            return None
        return find_rendering(self.out, given.messages, given.prompts or (), self._prompts_out or ())

    @property
    def ended(self) -> bool:
        """Whether it was told; what is done for it from now on is done for another call."""
        return self._ended

    @property
    def prompts_out(self) -> Sequence[str] | None:
        """The system prompts as the last step left them; None until they are known."""
        return self._prompts_out

    @property
    def states(self) -> list[Sequence[Any]]:
        """What its messages were: as they came in, and after each step."""
        return [self.messages or (), *(told.events for told in self._told)]

    def end(self, error: BaseException | None = None, *, stays: bool = False) -> None:
        """No model is called with it any more; what was done for it is told, where something was.

        Args:
            error: What went wrong.
            stays: Whether what the last step let out stays whatever went wrong, as `ObservedAssembly.end` takes it.
        """
        if self._prepared is not None and not self._ended:
            self._end(error, stays=stays)

    @contextmanager
    def current(self) -> Iterator[None]:
        """What runs in this block prepares this call, or makes it; never left open across a ``yield``."""
        with context_value(CALL, self):
            yield

    def fail(self, problem: Exception) -> None:
        """Report nothing of it: what is known of it is broken."""
        if self._prepared is not None:
            self._prepared.fail(problem)

    def why(self, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Verdict]:
        """Why messages left that no hook saw leave; by default it is for the step itself to tell."""
        return ()

    def calling(self) -> AbstractContextManager[Any]:
        """Where the client runs that has received it: in its run, else where it is called."""
        return self.run.inside_unless_traced() if self.run is not None else nullcontext()

    @property
    def done_ns(self) -> int:
        """When the last step was done."""
        return self._prepared.done_ns if self._prepared is not None else 0

    @property
    def assembly_reference(self) -> object:
        """What is remembered of its last assembly, for a halt that comes after it; None where there is none."""
        return self._prepared.recording.assembly_reference if self._prepared is not None else None

    def _is_out(self, given: ClientRequest) -> bool:
        if (
            given.prompts is not None
            and self._prompts_out is not None
            and list(given.prompts) != list(self._prompts_out)
        ):
            return False
        return same(self.out, given.messages)

    def _assembly(self, started_ns: int | None = None) -> ObservedAssembly | None:
        if self._prepared is None:
            with self.run.with_span() if self.run is not None else nullcontext():
                self._prepared = self.instrumentation.observed.prepare(
                    name=self.name,
                    agent_name=self.invoking_agent.agent_name,
                    model=self.model,
                    conversation_id=self.invoking_agent.conversation_id,
                    started_ns=started_ns,
                )
        return self._prepared

    def _first_observation(self, messages: Sequence[Any]) -> None:
        """Something of what the framework holds is seen: the first time, what has waited for it comes before it."""
        if self.messages is not None:
            return
        came: list[Any] = list(messages)
        waited: list[tuple[DeferredReduction, list[Any]]] = []
        for one in reversed(DEFERRED_REDUCTIONS.take(self.invoking_agent)):
            after, places = came, locate(came, one.after)
            if places:
                came = replace_at(after, places, one.before)
                waited.append((one, after))
        self.messages = self.out = came
        for one, after in reversed(waited):
            self._apply_deferred_step(one, after)
        self.out = list(messages)

    def _apply_deferred_step(self, one: DeferredReduction, after: list[Any]) -> None:
        """What a reducer did before is a step of this call."""
        step = self._attempted(one)
        if step is not None:
            self._tell(RecordedStep(one.policy, one.kind, one.config, step, after, None, one.said))

    def _attempted(self, one: DeferredReduction) -> ObservedStep | None:
        """The step of what a reducer did before, with what it had summarisers do."""
        began = one.attempts[0].attempt.started_ns if one.attempts else None
        run_began = getattr(trace.get_current_span(), "start_time", None)
        if began is not None and (run_began is None or began < run_began):  # made between runs: no part of this one
            began = None
        step = self._step(one.policy, one.kind, one.config, began)
        if step is not None:
            with step:
                for attempt in one.attempts:
                    attempt.told(self.count, step)
        return step

    def _step(
        self,
        policy: str,
        kind: str | None = None,
        config: Mapping[str, Any] | None = None,
        started_ns: int | None = None,
    ) -> ObservedStep | None:
        assembly = self._assembly(started_ns)
        if assembly is None:
            return None
        began = max(started_ns or 0, assembly.done_ns) or None
        return assembly.step(policy, kind=kind, config=config, started_ns=began)

    def _tell(self, told: RecordedStep) -> None:
        """A step is done, and this is what it let out."""
        self.out = told.events
        self._told.append(told)
        if told.prompts is not None:
            self._prompts_out = told.prompts
        if self._prepared is not None:
            with suppress_errors(self._prepared.fail):
                told.tell()

    def _widen(self, messages: Sequence[Any]) -> None:
        """Take what stands around the messages that were reduced, and between them, for held by the framework too."""
        places = locate(messages, self.out) if self.out else None
        if places is None or any(one >= other for one, other in pairwise(places)):
            return
        gaps = [list(messages[start + 1 : end]) for start, end in pairwise((-1, *places, len(messages)))]
        reduced = self.out
        self.messages = insert_gaps(self.messages or (), reduced, gaps)
        self.out = insert_gaps(reduced, reduced, gaps)
        for told in self._told:
            told.widen(reduced, gaps)

    def _restart(self) -> None:
        """A call that was made is made once more: its messages came in, and its steps let out, what they did before."""
        if not self._ended:
            return
        earlier, self._told = self._told, []
        self._prepared, self._ended = None, False
        self.out, self._prompts_out = list(self.messages or ()), self.prompts
        for told in earlier:
            step = self._step(told.policy, told.kind, told.config)
            if step is not None:
                self._tell(told.again(step))

    def _begins_with(self, told: list[RecordedStep]) -> None:
        self.messages = None if self.messages is None else list(self.messages)
        self._told, self._prepared, self._ended, self.sent = told, None, True, 0
        self.out = list(self.states[-1])

    def _end(self, error: BaseException | None = None, *, called: bool = False, stays: bool = False) -> None:
        assembly, self._ended = self._prepared, True
        if assembly is None:
            return
        self.sent += called
        self.instrumentation.observed.open(
            assembly,
            self.invoking_agent.ledger(self._stage),
            self.messages or (),
            prompts=self.prompts or (),
            tools=self.tools,
            model=self.model,
            window=self.window,
            name=self.name,
            unknown_input=self.unknown,
            client=self.client,
        )
        over_ns = None if called and not self.ends_before_client_span else self.done_ns or None
        assembly.end(error, stays=stays, called=called, over_ns=over_ns)


#: The name of an assembly that no model is called with: the compaction of a history when a run is over.
COMPACTION: Final = "compaction"


def _record(
    instrumentation: Instrumentation, invoking_agent: InvokingAgent, waiting: Sequence[DeferredReduction]
) -> None:
    call = ModelCall(instrumentation, invoking_agent, name=COMPACTION)
    for reduction in waiting:
        # Attempts that wait for the reducer that will use their summary have no policy's name yet.
        call.replay_deferred(reduction if reduction.policy else reduction._replace(policy=COMPACTION))
    call.end()


DeferredReductions.record = staticmethod(_record)


CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_model_call", default=None)


def current_model_call() -> ModelCall | None:
    """The model call that is being prepared here."""
    return CALL.get()
