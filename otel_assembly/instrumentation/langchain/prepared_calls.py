"""Model calls that are being prepared in a graph: each is identified by its messages, not by a context variable.

LangGraph runs each node in a copied context, and passes only messages from one node to the next. So a reducer works for
the call whose last reducer returned the messages that it gets, and a request to a model belongs to the call whose last
reducer returned the messages of the request. What one execution of a node prepares can be used only in that node until
it ends; then the node passes its calls on to the later steps. Code that continues from an earlier state of a call, or
from a call whose model was already called, gets a fork: a new call with the steps up to that state.
"""

from __future__ import annotations

import atexit
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly._internal.fork_safety import after_fork_in_child, new_lock
from otel_assembly.decision import DecisionOutcome, DecisionReason, Verdict
from otel_assembly.instrumentation.conversation import ConversationsByFirstMessage, InvokingAgent
from otel_assembly.instrumentation.instrumented import context_value
from otel_assembly.instrumentation.message_alignment import identity_keys, same, same_content, same_objects
from otel_assembly.instrumentation.model_call import ModelCall
from otel_assembly.instrumentation.rendered import is_rendered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ClientRequest
    from otel_assembly.instrumentation.reductions import Reduction
    from otel_assembly.instrumentation.run_types import LazyRun
    from otel_assembly.observe.assembly import ObservedStep
    from otel_assembly.observe.step_report import StepReport

#: The most calls that are kept after a node passed them on, per run. The oldest are ended first.
_MAX_PASSED_ON: Final = 64
#: The most calls that are kept outside of any run.
_MAX_OUTSIDE: Final = 16


class PreparedCall(ModelCall):
    """A model call that is identified by its messages.

    Attributes:
        position_key: The key of the position that prepares it; None after that position has passed it on.
        passed_on_at: The number of the step that passed it on; None before.
        last_output: The output of its last reducer, which may be only a part of the call's messages.
        is_requested: Whether a model is being called with it.
        branches: The parallel branches in which it is prepared, as in `Where.branches`.
        by_identity: Whether only the same message objects identify it, and not copies of them.
    """

    position_key: str | None = None
    passed_on_at: int | None = None
    last_output: Sequence[Any] = ()
    is_requested = False
    branches: Mapping[object, object] = {}  # never written to
    by_identity = False

    @property
    def is_made(self) -> bool:
        """Whether a model was or is being called with it, or the call ended without."""
        return self.is_requested or self.ended

    def reduced(
        self,
        report: StepReport,
        *,
        step: ObservedStep | None = None,
        since: Sequence[Any] | None = None,
        started_ns: int | None = None,
    ) -> bool:
        """Record a reduction, as `ModelCall.reduced`, and keep its output; an earlier reducer's error is cleared."""
        is_recorded = super().reduced(report, step=step, since=since, started_ns=started_ns)
        self.last_output, self.problem = list(report.before if report.after is None else report.after), None
        return is_recorded

    def end(self, error: BaseException | None = None, *, stays: bool = False) -> None:
        """End the call without calling a model; the default for `error` is what its last reducer raised."""
        super().end(error or self.problem, stays=stays)

    def verdicts_on(self, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Verdict]:
        """Return verdicts on messages that code without a hook dropped, if it replaced others by copies.

        Copies would otherwise count as new messages, into which the dropped ones are compacted.
        """
        before_keys, after_keys = identity_keys(before), identity_keys(after)
        objects = set(map(id, before))
        new = [message for message in after if id(message) not in objects]
        if not new or not all(identity_keys([message]) & before_keys for message in new):
            return ()
        dropped = [message for message in before if not identity_keys([message]) & after_keys]
        return [Verdict(dropped, DecisionOutcome.DROPPED, DecisionReason.POLICY)] if dropped else ()

    def state_of(self, messages: Sequence[Any], *, first: bool = False) -> int | None:
        """Return the last index in `states` that equals these messages; None if no state does.

        A call that continues from these messages then repeats only the steps up to this index. With `first`, the result
        is the first index: a reducer that runs after the model was called works for another call, which must not repeat
        steps that changed nothing.
        """
        equal, states = same_objects if self.by_identity else same, self.states
        if first:
            for index, state in enumerate(states):
                if equal(state, messages):
                    return index
        if states[1:] and equal(self.last_output, messages):  # the last reducer got only a part of the call's messages
            return len(states) - 1
        for index in range(len(states) - 1, -1, -1):
            if equal(states[index], messages):
                return index
        return None


class PreparedCalls:
    """The calls that are being prepared in one run.

    Args:
        outer: The calls of the outer run.
        step: The number of the outer run's step that contains this run.

    Attributes:
        conversation: Identifies the run's conversation if it has no id.
    """

    #: Whether only the same message objects identify a call, and not copies of them.
    by_identity = False

    def __init__(self, outer: PreparedCalls | None = None, step: int = 0) -> None:
        self.outer = outer
        self.step = step
        self.conversation: object = None
        self._calls: list[PreparedCall] = []
        self.lock = new_lock()

    def keep(self, call: PreparedCall, position_key: str) -> None:
        """Keep a call for which a reducer works at this position; only this position may use it from now on."""
        with self.lock:
            call.position_key, call.by_identity = position_key, self.by_identity
            if call not in self._calls:
                self._calls.append(call)

    def pass_on(self, call: PreparedCall, step: int) -> None:
        """Make a call available to the steps after this one, because a node returned the call's last output."""
        with self.lock:
            call.position_key, call.passed_on_at = None, step
            excess = [kept for kept in self._calls if kept.passed_on_at is not None][:-_MAX_PASSED_ON]
        self._discard(excess)

    def at(self, position_key: str) -> list[PreparedCall]:
        return [call for call in self._calls if call.position_key == position_key]

    def close(self, position_key: str) -> None:
        """End the calls of a position whose code has ended; those that an earlier step passed on stay available."""
        calls = self.at(position_key)
        for call in calls:
            call.position_key = None
        self._discard([call for call in calls if call.passed_on_at is None])
        _end_each(calls)  # those that stay available end, too: a later step continues with a fork

    def end(self) -> None:
        """End all calls; no model will be called with them."""
        self._discard([*self._calls])

    def forget(self) -> None:
        """Discard all calls without recording them: in a forked child, the parent process records them."""
        self._calls.clear()

    def _discard(self, calls: Sequence[PreparedCall]) -> None:
        _end_each(calls)
        with self.lock:
            self._calls[:] = [call for call in self._calls if call not in calls]

    def available_to(self, position_key: str, step: int) -> Iterator[tuple[PreparedCall, bool]]:
        """Yield the calls that a position in this step may continue, and whether a part of their messages is enough.

        It is for the position's own calls, those of the step directly before, and those prepared outside of any run.
        """
        for call in reversed([*self._calls]):
            if call.position_key == position_key:
                yield call, True
        calls: PreparedCalls | None = self
        while calls is not None:
            if calls.by_identity and calls is not self:  # those prepared outside of any run
                yield from ((call, True) for call in reversed([*calls._calls]))  # noqa: SLF001  # of this class
                return
            for call in reversed([*calls._calls]):  # noqa: SLF001  # of this class
                if call.passed_on_at is not None and call.passed_on_at < step:
                    yield call, calls is self and call.passed_on_at + 1 == step
            step, calls = calls.step, calls.outer


class PreparedOutside(PreparedCalls):
    """The calls that are being prepared outside of any run."""

    by_identity = True

    def __init__(self) -> None:
        super().__init__()
        self._is_registered = False
        after_fork_in_child(self.forget)

    def keep(self, call: PreparedCall, position_key: str) -> None:
        """Keep a call, and end others: those of its conversation, and the oldest ones if there are too many.

        No run ends these calls. So they end at the process's exit, and when LangChain is uninstrumented.
        """
        conversation, kept = call.invoking_agent.conversation, [known for known in self._calls if known is not call]
        replaced = [known for known in kept if known.invoking_agent.conversation is conversation]
        self._discard(replaced + kept[: 1 - _MAX_OUTSIDE])  # one place is for this call
        # Registered late: exit handlers run in reverse order, and this one must run before those of the exporters.
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.end)
        call.instrumentation.ends.add(self.end)
        super().keep(call, position_key)


def _end_each(calls: Sequence[PreparedCall]) -> None:
    for call in calls:
        with call.instrumentation.suppress_errors():
            call.end()


@dataclass(frozen=True, slots=True)
class GraphPosition:
    """The position of running code in a graph, for example one execution of a node, or outside of any run.

    Attributes:
        calls: The calls that are prepared in the run, or outside of any run.
        key: Identifies the position in the run.
        step: The number of the run's step that contains the position.
        invoking_agent: The agent of model calls at this position. Its `name` lacks the node's name, and its
            `conversation` is None if the conversation has no id.
        conversations: The conversations without an id, by their first message.
        branches: The parallel branches that contain the position, as in `Where.branches`.
        messages: The messages in the graph's state, if they are known.
        outside_node: The name of the code that calls a model at this position, if that is not the node but, for
            example, a middleware.
    """

    calls: PreparedCalls
    key: str
    step: int
    run: LazyRun | None
    invoking_agent: InvokingAgent
    node: str
    conversations: ConversationsByFirstMessage
    branches: Mapping[object, object] = field(default_factory=dict)
    messages: Sequence[Any] = ()
    outside_node: str | None = None

    def invoking_agent_for(self, messages: Sequence[Any], node: str | None = None) -> InvokingAgent:
        """Return the invoking agent of a model call with these messages, by a node or by the node at this position.

        If the conversation has no id, it is identified by the object of its first message, or by the run.
        """
        invoking_agent = self.invoking_agent._replace(name=f"{self.invoking_agent.name}{node or self.node}")
        if invoking_agent.conversation is not None:
            return invoking_agent
        conversation = self.conversations.of(messages, self.calls.conversation)
        if not self.calls.by_identity:  # a run has one conversation; outside of any run there may be several
            self.calls.conversation = self.calls.conversation or conversation
        return invoking_agent._replace(conversation=conversation)

    def is_source_of(self, messages: Sequence[Any]) -> bool:
        """Return True if messages come from the graph's state."""
        return bool(self.messages) and _overlaps(self.messages, messages)

    def call_for_reducer(
        self, instrumentation: Instrumentation, messages: Sequence[Any], since_ns: int, node: str | None = None
    ) -> tuple[PreparedCall, Sequence[Any] | None]:
        """Return the call that a reducer with this input works for, and the call's messages when it began (`since_ns`).

        `node` is the node that calls the model, by default the node at this position.
        """
        continued = self._continue_call(messages, since_ns=since_ns)
        call, state = continued or (PreparedCall(instrumentation), None)
        if continued is None and self.is_source_of(messages):  # perhaps the reducer got only a part of the state
            call.set_input(self.messages)
            state = call.out
        call.run, call.invoking_agent = self.run, self.invoking_agent_for(call.messages or messages, node)
        call.branches = self.branches
        self.calls.keep(call, self.key)
        return call, state

    def call_for_request(self, instrumentation: Instrumentation, messages: Sequence[Any], prompts: int) -> PreparedCall:
        """Return the call that a request to a model belongs to.

        If no call was prepared for it, a new call begins with the messages of the graph's state. If the request shares
        no message with them, the call begins with the request's messages, and is a separate conversation. The first
        `prompts` messages may be system prompts which no reducer got.
        """
        rest = messages[prompts:]
        continued = self._continue_call(rest, is_request=True)
        if continued is None and prompts:
            continued = self._continue_call(messages, is_request=True)
        call = continued[0] if continued is not None else PreparedCall(instrumentation)
        is_from_state = continued is not None or (self.outside_node is None and self.is_source_of(rest))
        if continued is None:
            call.set_input(self.messages if is_from_state else rest)
        call.run = self.run
        call.invoking_agent = self.invoking_agent_for(call.messages or (), self.outside_node)
        if self.messages and not is_from_state:
            call.invoking_agent = call.invoking_agent._replace(conversation=None)
        elif self.invoking_agent.conversation is None:  # a later request may contain only these messages
            self.conversations.of(messages, call.invoking_agent.conversation)
        return call

    def restarted(self, instrumentation: Instrumentation, before: Sequence[Any], after: Sequence[Any]) -> Self:
        """Return the position after a plug-in of otel-assembly, which has recorded its own assembly.

        The call that was prepared before the plug-in ends, and a call with the plug-in's output `after` begins.
        """
        known = self._find_call(before, is_request=True)
        if known is not None:
            known[0].end()
        call = PreparedCall(instrumentation, self.invoking_agent_for(before))
        call.replaced_by_plugin(after)
        call.last_output, call.run = after, self.run
        self.calls.keep(call, self.key)
        return replace(self, messages=after, outside_node=None)

    def finish(self, outputs: Sequence[Sequence[Any]]) -> None:
        """Pass on the calls whose messages are among a node's outputs, and end its others; the node has ended."""
        for call in self.calls.at(self.key):
            if not call.ended and any(same(output, call.out) or same(output, call.last_output) for output in outputs):
                self.calls.pass_on(call, self.step)
        self.calls.close(self.key)

    def fail(self) -> None:
        """End the calls of a node that raised; they are kept, because a retry of the node continues from them."""
        _end_each(self.calls.at(self.key))

    def _find_call(self, messages: Sequence[Any], *, is_request: bool) -> tuple[PreparedCall, int] | None:
        """Return the call that these messages belong to, and the index of the state that they continue.

        It is the newest call that had exactly these messages, or else a call whose last output overlaps with them. Of
        several, one whose model was not called yet is preferred, then one whose whole output is among the messages,
        then the one with the largest overlap, then the newest.

        An overlap is not enough in two cases. A reducer does not continue a call whose model was called: it works for
        the next call, whose messages the program or the graph's state contains. A request by code outside of the node
        does not continue what the node prepares.
        """
        nearest: tuple[PreparedCall, int] | None = None
        best: tuple[bool, bool, int] | None = None
        message_ids = set(map(id, messages))
        for call, allows_overlap in self.calls.available_to(self.key, self.step):
            # A call in another branch of the same parallel runnable or batch is not continued.
            if call.branches and any(self.branches.get(key, branch) != branch for key, branch in call.branches.items()):
                continue
            is_made = call.is_made
            state = call.state_of(messages, first=is_made and not is_request)
            if state is not None:
                return call, state
            is_excluded = self.outside_node if is_request else is_made
            if not allows_overlap or not call.last_output or is_excluded:
                continue
            if (_uses_output if is_request else _continues_output)(call, messages):
                shared = sum(map(message_ids.__contains__, map(id, call.last_output)))
                rank = not is_made, shared == len(call.last_output), shared
                if best is None or rank > best:
                    nearest, best = (call, call.last_state), rank
        return nearest

    def _continue_call(
        self, messages: Sequence[Any], *, is_request: bool = False, since_ns: int | None = None
    ) -> tuple[PreparedCall, Sequence[Any]] | None:
        """Return the call that these messages continue, or a fork of it, and its state; None if there is none."""
        with self.calls.lock:
            known = self._find_call(messages, is_request=is_request)
            if known is None:
                return None
            (call, state), messages_at_state = known, known[0].states[known[1]]
            # Steps that ended after `since_ns` are no later states: they ran inside of the reducer that began then.
            has_inner_steps = since_ns is not None and call.assembly is not None and call.assembly.done_ns >= since_ns
            if call.is_made or (state < call.last_state and not has_inner_steps):
                call = call.fork(state)
            call.is_requested = is_request
            return call, messages_at_state


class Where(NamedTuple):
    """A position in a graph, as the framework describes it.

    Attributes:
        key: Identifies one execution of a node in its run.
        nodes: The names of the nodes that contain the position, the outermost first; the last is the node itself.
        step: The number of the step in its run.
        branches: The parallel branches that contain the position: the branch by what runs the branches. Calls that
            are prepared in one branch are not available in others.
        store: Identifies the store of the conversation, if ids are unique only in that store; else empty.
    """

    key: str
    nodes: Sequence[str]
    step: int
    conversation_id: str | None
    branches: Mapping[object, object] = {}  # never written to
    store: str = ""


class GraphContext:
    """The runs, positions and prepared calls of a framework.

    Args:
        role: Returns the role of a message; see `ConversationsByFirstMessage`.
        text: Returns the text of a system message.
        where: Returns the position that the framework's arguments describe; without arguments, the current one.

    Attributes:
        current_position: The position of the running code, if a hook has set it.
        outside: The calls that are prepared outside of any run.
    """

    def __init__(
        self, framework: str, role: Callable[[Any], str], text: Callable[[Any], str], where: Callable[..., Where]
    ) -> None:
        self.run: ContextVar[Any] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self.current_position: ContextVar[GraphPosition | None]
        self.current_position = ContextVar(f"otel_assembly_{framework}_position", default=None)
        self._role = role
        self._text = text
        self._where = where
        self._conversations = ConversationsByFirstMessage(role)
        self.outside = PreparedOutside()

    def position(self, *described_by: Any) -> GraphPosition:
        """Return the current position, or the one that the framework's arguments describe.

        If a hook has set this position, that object is returned, because it has the messages of the graph's state.
        """
        key, nodes, step, conversation, branches, store = self._where(*described_by)
        run, current = self.run.get(), self.current_position.get()
        run = None if run is None or run.ended else run
        if current is not None and current.run is run and current.key == key:
            return current if current.branches == branches else replace(current, branches=branches)
        invoking_agent, node = InvokingAgent.of(conversation), ""
        if run is not None:
            *outer_nodes, node = nodes
            agent_name = run.name if run.is_named or not node else node
            # Ends in "/": the position appends the name of the node that calls the model.
            path = "/".join([f"{run.scope}{store}\0", *outer_nodes, ""])
            invoking_agent = invoking_agent._replace(name=path, agent_name=agent_name)
        return GraphPosition(
            calls=self.outside if run is None else run.calls,
            key=key,
            step=step,
            run=run,
            invoking_agent=invoking_agent,
            node=node,
            conversations=self._conversations,
            branches=branches,
        )

    def call_for_reducer(
        self, instrumentation: Instrumentation, messages: Sequence[Any], since_ns: int, node: str | None = None
    ) -> tuple[ModelCall, Sequence[Any] | None]:
        return self.position().call_for_reducer(instrumentation, messages, since_ns, node)

    def client_called(self, instrumentation: Instrumentation, request: ClientRequest) -> ModelCall:
        """Record a request to a model at the current position, and end the call that it belongs to.

        System messages at the start that are no output of a reducer are recorded as system prompts.
        """
        messages = list(request.messages)
        prompts = 0
        while prompts < len(messages) and self._role(messages[prompts]) == "system":
            prompts += 1
        call = self.position().call_for_request(instrumentation, messages, prompts)
        output_ids = set(map(id, call.out))
        # A reducer that got the system messages has returned them as messages, so they are no prompts of the call.
        while prompts and id(messages[prompts - 1]) in output_ids:
            prompts -= 1
        texts = [self._text(message) for message in messages[:prompts]]
        call.client_called(request._replace(messages=messages[prompts:], prompts=texts))
        return call

    @contextmanager
    def node(self, position: GraphPosition, reduction: Reduction) -> Iterator[None]:
        """Run a node in the block, whose changes are recorded as a reduction; errors are recorded and raised again."""
        try:
            with context_value(self.current_position, position), reduction.running():
                yield
        except BaseException as error:
            reduction.failed(error)
            position.fail()
            raise

    @contextmanager
    def model_call_after_plugin(self, before: Sequence[Any], after: Sequence[Any]) -> Iterator[None]:
        """Call the model in the block, after a plug-in of otel-assembly made `after` of the messages `before`."""
        position = self.position()
        run = position.run
        if run is not None and run.instrumentation.is_enabled():  # outside of a run, no call was prepared
            with run.instrumentation.suppress_errors():
                position = position.restarted(run.instrumentation, before, after)
        with context_value(self.current_position, position):
            yield


def _continues_output(call: PreparedCall, messages: Sequence[Any]) -> bool:
    """Return True if a reducer's input is a part of a call's last output, or that output with new messages.

    A reducer that gets messages which the call dropped works for another call.
    """
    output_ids, message_ids = set(map(id, call.last_output)), set(map(id, messages))
    if message_ids <= output_ids:  # a program may pass only a part of the messages to a reducer
        return True
    added_ids = message_ids - output_ids
    return output_ids <= message_ids and added_ids.isdisjoint(map(id, call.messages or ()))


def _uses_output(call: PreparedCall, messages: Sequence[Any]) -> bool:
    """Return True if a request contains messages of a call's last output (which is not empty), or its text.

    A request with all messages that the reducers dropped was made without their output. One with some of them may have
    been made of the output: a program can add a dropped message again, such as the first one.
    """
    output_ids, message_ids = set(map(id, call.last_output)), set(map(id, messages))
    dropped_ids = set(map(id, call.messages or ())) - output_ids
    if dropped_ids and dropped_ids <= message_ids:
        return False
    if _overlaps(call.last_output, messages, by_identity=call.by_identity):
        return True
    return not call.is_made and is_rendered(call.last_output, messages)  # requests after a call may quote its messages


def _overlaps(sources: Sequence[Any], messages: Sequence[Any], *, by_identity: bool = False) -> bool:
    """Return True if messages contain an object of `sources` (not empty), or a copy of the last one near their end.

    A program may copy the newest message into a prompt, and add one message after it. Older messages are not compared
    by content, because short texts recur in a conversation.
    """
    source_ids = set(map(id, sources))
    return any(map(source_ids.__contains__, map(id, messages))) or (
        not by_identity and any(same_content(sources[-1], message) for message in messages[-2:])
    )
