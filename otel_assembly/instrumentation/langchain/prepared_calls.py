"""Model calls that are known by their messages, where no context variable says which one is being prepared.

A framework that runs each step in a context of its own hands nothing on but messages: a reducer goes on with what one
before it let out, and the call is made when a model is sent what the last of them let out. What is prepared in a place,
such as one execution of a node, is that place's until it is handed on to the steps that come after it. Whoever goes on
with what a call has let out earlier, or with one that was made, begins a call of its own with what was done by then.
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
from otel_assembly.instrumentation.prompts import in_front
from otel_assembly.instrumentation.rendered import is_rendered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.lazy_runs import LazyRun
    from otel_assembly.instrumentation.model_call import ClientRequest
    from otel_assembly.instrumentation.reductions import Reduction

#: Calls that wait for their model, at most: those that were handed on in a run, and those outside of any.
_HANDED_ON: Final = 64
_OUTSIDE: Final = 16


class PreparedCall(ModelCall):
    """One that is known by its messages.

    Attributes:
        place: What prepares it; None once that has handed it on.
        step_at: The step of its run at which it was handed on.
        last_output: What its last reducer let out, which may be a part of its messages.
        taken: Whether a model is being called with it.
        branches: The parallel branches that it is prepared in, as `Where` has them.
        exactly: Whether its messages are known by the very objects alone.
    """

    def __init__(self, instrumentation: Instrumentation, invoking_agent: InvokingAgent = InvokingAgent()) -> None:  # noqa: B008  # a tuple
        super().__init__(instrumentation, invoking_agent)
        self.place: str | None = None
        self.step_at: int | None = None
        self.last_output: Sequence[Any] = ()
        self.taken = False
        self.branches: Mapping[object, object] = {}
        self.exactly = False

    @property
    def is_made(self) -> bool:
        """Whether a model was called with it, or is; or no model ever will be."""
        return self.taken or self.ended

    def reduced(self, policy: str, before: Sequence[Any], after: Sequence[Any], **said: Any) -> bool:
        """As `ModelCall`."""
        told, self.last_output, self.problem = super().reduced(policy, before, after, **said), list(after), None
        return told

    def end(self, error: BaseException | None = None, *, stays: bool = False) -> None:
        """As `ModelCall`; what its last reducer raised is why no model is called with it."""
        super().end(error or self.problem, stays=stays)

    def why(self, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Verdict]:
        """Why messages left that have ids, where whatever is new is a copy of one that was there."""
        known, there = identity_keys(before), identity_keys(after)
        objects = set(map(id, before))
        copies = [message for message in after if id(message) not in objects]
        if not copies or not all(identity_keys([message]) & known for message in copies):
            return ()  # of the same objects, the reason alone says it
        gone = [message for message in before if not identity_keys([message]) & there]
        return [Verdict(gone, DecisionOutcome.DROPPED, DecisionReason.POLICY)] if gone else ()

    def state_of(self, messages: Sequence[Any], *, first: bool = False) -> int | None:
        """Return the index in `states` at which its messages were last these.

        Args:
            messages: The messages.
            first: Return the first index instead. A reducer that runs after the call was made belongs to another call:
                steps that changed nothing are not repeated in that.
        """
        equal, states = same_objects if self.exactly else same, self.states
        if first:
            at = next((at for at, state in enumerate(states) if equal(state, messages)), None)
            if at is not None:
                return at
        if states[1:] and equal(self.last_output, messages):
            return len(states) - 1
        return next((at for at in range(len(states) - 1, -1, -1) if equal(states[at], messages)), None)


class PreparedCalls:
    """The calls that are being prepared in one run.

    Args:
        around: Those of the run around this one.
        step: The step of that run in which this one runs.

    Attributes:
        conversation: What stands for the run's conversation, where that has no id.
    """

    #: Whether messages are known by the very objects alone.
    exactly = False

    def __init__(self, around: PreparedCalls | None = None, step: int = 0) -> None:
        self.around = around
        self.step = step
        self.conversation: object = None
        self._calls: list[PreparedCall] = []
        self.lock = new_lock()

    def keep(self, call: PreparedCall, place: str) -> None:
        """A reducer works for this call in this place, whose it is from here on."""
        with self.lock:
            call.place, call.exactly = place, self.exactly
            if call not in self._calls:
                self._calls.append(call)

    def hand_on(self, call: PreparedCall, step: int) -> None:
        """What the call has let out is handed on at this step of the run: a later one calls the model with it."""
        with self.lock:
            call.place, call.step_at = None, step
            over = [one for one in self._calls if one.step_at is not None][:-_HANDED_ON]
        self._end(over)

    def of(self, place: str) -> list[PreparedCall]:
        """The calls of a place."""
        return [call for call in self._calls if call.place == place]

    def leave(self, place: str) -> None:
        """No model is called with what a place has left; of what came to it from others, they may make calls yet."""
        calls = self.of(place)
        for call in calls:
            call.place = None
        self._end([call for call in calls if call.step_at is None])
        _end(calls)

    def end(self) -> None:
        """No model is called with any of them."""
        self._end([*self._calls])

    def forget(self) -> None:
        """Let go of all, which in a forked child are its parent's."""
        self._calls.clear()

    def _end(self, calls: Sequence[PreparedCall]) -> None:
        _end(calls)
        with self.lock:
            self._calls[:] = [one for one in self._calls if one not in calls]

    def open_to(self, place: str, step: int) -> Iterator[tuple[PreparedCall, bool]]:
        """Calls of this place, and those that an earlier step handed on, in a run around this one too; newest first."""
        for call in reversed(self.of(place)):
            yield call, True
        run: PreparedCalls | None = self
        while run is not None:
            if run.exactly and run is not self:  # whatever was prepared outside of the run around all others
                yield from ((call, True) for call in reversed([*run._calls]))  # noqa: SLF001  # of this class
                return
            for call in reversed([*run._calls]):  # noqa: SLF001  # of this class
                if call.step_at is not None and call.step_at < step:
                    yield call, run is self and call.step_at + 1 == step
            step, run = run.step, run.around


class PreparedOutside(PreparedCalls):
    """The calls that are being prepared outside of any run.

    Of a conversation that is reduced anew, no model is called any more with what was let out before.
    """

    exactly = True

    def __init__(self) -> None:
        super().__init__()
        self._used = False
        after_fork_in_child(self.forget)

    def keep(self, call: PreparedCall, place: str) -> None:
        """As `PreparedCalls`; there is a limit to what may wait."""
        others = [one for one in self._calls if one is not call]
        own = [one for one in others if one.invoking_agent.conversation is call.invoking_agent.conversation]
        self._end(own + others[: 1 - _OUTSIDE])
        if not self._used:  # what is to record it ends at exit too, and the last to ask is the first to end
            self._used = True
            atexit.register(self.end)
        call.instrumentation.ends.add(self.end)
        super().keep(call, place)


def _end(calls: Sequence[PreparedCall]) -> None:
    for call in calls:
        with call.instrumentation.suppress_errors():
            call.end()


@dataclass(frozen=True, slots=True)
class GraphPosition:
    """Where something prepares or makes a call.

    Attributes:
        calls: The calls that are prepared in its run, or outside of any.
        key: What tells it from any other place in that, such as one execution of a node.
        step: The step of the run that it is in.
        run: The run; None outside of any.
        invoking_agent: Who asks a model there, without the name of the node; its conversation is None if it has no id.
        node: The node's name.
        openings: Conversations that have no id.
        branches: The parallel branches that it is in, as `Where` has them.
        messages: What the framework holds there, where that is known.
        outside_node: Who asks a model there, where that is not the node, such as a middleware.
    """

    calls: PreparedCalls
    key: str
    step: int
    run: LazyRun | None
    invoking_agent: InvokingAgent
    node: str
    openings: ConversationsByFirstMessage
    branches: Mapping[object, object] = field(default_factory=dict)
    messages: Sequence[Any] = ()
    outside_node: str | None = None

    def asked(self, messages: Sequence[Any], node: str | None = None) -> InvokingAgent:
        """Who asks a model there that holds these messages: the node that runs there, or another one."""
        invoking_agent, calls = (
            self.invoking_agent._replace(name=f"{self.invoking_agent.name}{node or self.node}"),
            self.calls,
        )
        if invoking_agent.conversation is not None:
            return invoking_agent
        conversation = self.openings.of(messages, calls.conversation)
        if not calls.exactly:
            calls.conversation = calls.conversation or conversation
        return invoking_agent._replace(conversation=conversation)

    def holds(self, messages: Sequence[Any]) -> bool:
        """Whether these are made of what the framework holds there."""
        return bool(self.messages) and _share(self.messages, messages)

    def prepares(
        self, instrumentation: Instrumentation, messages: Sequence[Any], since_ns: int, node: str | None = None
    ) -> tuple[PreparedCall, Sequence[Any] | None]:
        """The call that a reducer of these messages works for, and what its messages were when that began.

        Args:
            instrumentation: Where it is reported.
            messages: What the reducer takes in.
            since_ns: When it began, of one in which others may have run: what they did meanwhile is its work.
            node: The node that asks a model, where that is not the one that runs there.
        """
        found = self._goes_on(messages, since_ns=since_ns)
        call, since = found or (PreparedCall(instrumentation), None)
        if found is None and self.holds(messages):
            call.set_input(self.messages)
            since = call.out
        call.run, call.invoking_agent = self.run, self.asked(call.messages or messages, node)
        call.branches = self.branches
        self.calls.keep(call, self.key)
        return call, since

    def sends(self, instrumentation: Instrumentation, messages: Sequence[Any], prompts: int) -> PreparedCall:
        """The call that is made with these messages.

        If nothing was done for any call, the framework held them, or all that they are made of; a prompt that is made
        of nothing that it holds is a conversation of its own.

        Args:
            instrumentation: Where it is reported.
            messages: What a model is sent.
            prompts: How many of them, in front, may be system prompts that no reducer has seen.
        """
        rest = messages[prompts:]
        found = self._goes_on(rest, sent=True) or (self._goes_on(messages, sent=True) if prompts else None)
        call = found[0] if found is not None else PreparedCall(instrumentation)
        whole = found is not None or (self.outside_node is None and self.holds(rest))
        if found is None:
            call.set_input(self.messages if whole else rest)
        call.run, call.invoking_agent = self.run, self.asked(call.messages or (), self.outside_node)
        if self.messages and not whole:
            call.invoking_agent = call.invoking_agent._replace(conversation=None)
        elif self.invoking_agent.conversation is None:  # it goes on with what is sent
            self.openings.of(messages, call.invoking_agent.conversation)
        return call

    def after_plugin(self, instrumentation: Instrumentation, came: Sequence[Any], out: Sequence[Any]) -> Self:
        """The place behind a plug-in of ours that has made an assembly of its own, with what came out."""
        before = self._holding(came, sent=True)
        if before is not None:
            before[0].end()
        call = PreparedCall(instrumentation, self.asked(came))
        call.replaced_by_plugin(out)
        call.last_output, call.run = out, self.run
        self.calls.keep(call, self.key)
        return replace(self, messages=out, outside_node=None)

    def left(self, record_forwarded: Sequence[Sequence[Any]]) -> None:
        """What ran there is over, and has handed on these messages."""
        for call in self.calls.of(self.key):
            if not call.ended and any(same(one, call.out) or same(one, call.last_output) for one in record_forwarded):
                self.calls.hand_on(call, self.step)
        self.calls.leave(self.key)

    def failed(self) -> None:
        """What ran there raised; it may be tried again, and goes on with what was done by then."""
        _end(self.calls.of(self.key))

    def _holding(self, messages: Sequence[Any], *, sent: bool) -> tuple[PreparedCall, int] | None:
        """Return the call that these messages belong to, and the index of the state that it goes on from.

        That is the newest call that had exactly these messages. Otherwise it is the call that let out some of them: one
        that no model was called with yet, before one that was made; one whose messages are all there, before one of
        which a part is; one with more messages there, before one with fewer; then the newest.

        A reducer never goes on with a part of a call that was made: it works for the next call, whose own messages the
        program or the framework holds by now. What is sent by somebody else than the place itself is made of nothing
        that is prepared there.
        """
        nearest: tuple[PreparedCall, int] | None = None
        best: tuple[bool, bool, int] | None = None
        there = set(map(id, messages))
        for call, is_next in self.calls.open_to(self.key, self.step):
            if _in_other_branch(call.branches, self.branches):
                continue
            made = call.is_made
            state = call.state_of(messages, first=made and not sent)
            if state is not None:
                return call, state
            may = is_next and call.last_output and not (self.outside_node if sent else made)
            if may and self._takes(call, messages, sent=sent):
                shared = sum(id(message) in there for message in call.last_output)
                rank = not made, shared == len(call.last_output), shared
                if best is None or rank > best:
                    nearest, best = (call, len(call.states) - 1), rank
        return nearest

    def _goes_on(
        self, messages: Sequence[Any], *, sent: bool = False, since_ns: int | None = None
    ) -> tuple[PreparedCall, Sequence[Any]] | None:
        """The call that goes on with these messages, and what they were.

        Of a reducer that began at `since_ns`, what others did meanwhile is its work.
        """
        with self.calls.lock:
            held = self._holding(messages, sent=sent)
            if held is None:
                return None
            call, state = held
            inside = since_ns is not None and call.done_ns >= since_ns
            if call.is_made or (state < len(call.states) - 1 and not inside):
                call = call.fork(state)
            call.taken = sent
            return call, call.states[state]

    def _takes(self, call: PreparedCall, messages: Sequence[Any], *, sent: bool) -> bool:
        """Whether these are made of what a call let out.

        A reducer that takes in what was dropped works for another call. A model that is sent all that was dropped is
        not sent what the reducers made.
        """
        if sent:
            left = set(map(id, call.messages or ())).difference(map(id, call.last_output))
            if left and left.issubset(map(id, messages)):
                return False
            if _share(call.last_output, messages, exactly=call.exactly):
                return True
            return not call.is_made and is_rendered(call.last_output, messages)
        known, among = set(map(id, call.last_output)), set(map(id, messages))
        return among <= known or (known <= among and (among - known).isdisjoint(map(id, call.messages or ())))


class Where(NamedTuple):
    """Where a framework says that something runs.

    Attributes:
        key: What tells one execution of a node from any other in its run.
        nodes: The names of the nodes around it, in nested runs, and its own: who asks a model there.
        step: The step of its run.
        conversation_id: The conversation's real id, if it has one.
        branches: The parallel branches around it: which branch of what. What one branch prepares is no other branch's.
        store: What tells where the conversation is kept from others in which there may be one of the same id.
    """

    key: str
    nodes: Sequence[str]
    step: int
    conversation_id: str | None
    branches: Mapping[object, object] = {}  # never written to
    store: str = ""


class GraphContext:
    """Where in one framework something runs.

    Args:
        framework: Its name.
        role: Whose a message is, as `ConversationsByFirstMessage` takes it.
        text: The text of a system message.
        where: Where something runs, by what the framework hands it; without that, what runs here.

    Attributes:
        run: The `PreparedRun` that goes on here.
        place: The place that was found, or made, for what runs here.
        outside: The calls that are prepared outside of any run.
    """

    def __init__(
        self, framework: str, role: Callable[[Any], str], text: Callable[[Any], str], where: Callable[..., Where]
    ) -> None:
        self.run: ContextVar[Any] = ContextVar(f"otel_assembly_{framework}_run", default=None)
        self.place: ContextVar[GraphPosition | None] = ContextVar(f"otel_assembly_{framework}_place", default=None)
        self._role = role
        self._text = text
        self._where = where
        self._openings = ConversationsByFirstMessage(role)
        self.outside = PreparedOutside()

    def here(self, *handed: Any) -> GraphPosition:
        """The place of what runs here, or of what the framework hands this; the one that is bound where it is that."""
        (key, nodes, step, conversation, branches, store), run = self._where(*handed), self.run.get()
        run, known = None if run is None or run.ended else run, self.place.get()
        if known is not None and known.run is run and known.key == key:
            return known if known.branches == branches else replace(known, branches=branches)
        invoking_agent = InvokingAgent.of(conversation)
        if run is None:
            return GraphPosition(self.outside, key, step, None, invoking_agent, "", self._openings, branches)
        *around, node = nodes
        name = run.name if run.is_named or not node else node
        invoking_agent = invoking_agent._replace(name="/".join([f"{run.scope}{store}\0", *around, ""]), agent_name=name)
        return GraphPosition(run.calls, key, step, run, invoking_agent, node, self._openings, branches)

    def prepared(
        self, instrumentation: Instrumentation, messages: Sequence[Any], since_ns: int, node: str | None = None
    ) -> tuple[ModelCall, Sequence[Any] | None]:
        """The call that a reducer works for which runs here, as `GraphPosition.prepares`."""
        return self.here().prepares(instrumentation, messages, since_ns, node)

    def tell(self, instrumentation: Instrumentation, sent: ClientRequest) -> ModelCall:
        """A model is sent these messages here: the end of the call that was prepared for them, or of one nothing was.

        System messages in front that no reducer has seen are its prompts.
        """
        messages = list(sent.messages)
        front = len(in_front(messages, lambda one: self._role(one) == "system")[0])
        call = self.here().sends(instrumentation, messages, front)
        known = set(map(id, call.out))
        while front and id(messages[front - 1]) in known:
            front -= 1
        call.client_called(
            sent._replace(messages=messages[front:], prompts=[self._text(one) for one in messages[:front]])
        )
        return call

    @contextmanager
    def node(self, place: GraphPosition, reduction: Reduction) -> Iterator[None]:
        """A node runs there in this block, which may reduce; what it raises is told of that, and goes through."""
        try:
            with context_value(self.place, place), reduction.running():
                yield
        except BaseException as error:
            reduction.failed(error)
            place.failed()
            raise

    @contextmanager
    def after_plugin(self, came: Sequence[Any], out: Sequence[Any]) -> Iterator[None]:
        """A plug-in of ours has made an assembly of its own here; what came out is sent in this block."""
        place = self.here()
        if place.run is not None and place.run.instrumentation.is_enabled():
            with place.run.instrumentation.suppress_errors():
                place = place.after_plugin(place.run.instrumentation, came, out)
        with context_value(self.place, place):
            yield


def _share(one: Sequence[Any], other: Sequence[Any], *, exactly: bool = False) -> bool:
    """Whether messages are made of others: some are the very objects, or the last of those stands near their end."""
    known = set(map(id, one))
    return any(map(known.__contains__, map(id, other))) or (
        not exactly and any(same_content(one[-1], message) for message in other[-2:])
    )


def _in_other_branch(one: Mapping[object, object], other: Mapping[object, object]) -> bool:
    """Whether two places are in different branches of one thing that runs branches in parallel."""
    return any(of in other and other[of] != branch for of, branch in one.items())
