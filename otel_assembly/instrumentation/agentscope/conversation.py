"""What is remembered of each AgentScope agent, and the assembly of its next model call while that is prepared."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_assembly.instrumentation.hooks import ByIdentity
from otel_assembly.instrumentation.reducers import FRAMEWORK
from otel_assembly.observe.conversations import reported_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.instrumentation.agentscope.messages import Part, Parts
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly


#: Contexts whose parts are remembered; beyond it the least recently used are read anew when they come back.
SESSIONS: Final = 100


class PromptChange(NamedTuple):
    """What one middleware made of a prompt, and how long it took."""

    middleware: str
    prompt_in: str
    prompt_out: str | None  # None: it raised
    took_ns: int


class Change(NamedTuple):
    """What one reducer made of a context, once it is done or has failed."""

    policy: str
    before: Sequence[Part]
    after: Sequence[Part]
    started_ns: int
    kind: str | None = None
    config: Mapping[str, Any] | None = None
    prompts: Sequence[str] | None = None
    error: BaseException | None = None
    #: Whether what came in stays as it was where it failed.
    stays: bool = True


class Remembered:
    """One agent: its context in parts, and what was reported of it."""

    __slots__ = (
        "assembly",
        "changes",
        "compressions",
        "done_ns",
        "failures",
        "images",
        "prompt",
        "replies",
        "reported",
        "tools",
    )

    def __init__(self) -> None:
        #: The system prompt as it was last made.
        self.prompt = ""
        #: The schemas of the tools that it last offered.
        self.tools: Sequence[Mapping[str, Any]] = ()
        #: What middlewares made of the prompt then.
        self.changes: tuple[PromptChange, ...] = ()
        #: The reply in which what they make of it was last reported, and what that was.
        self.reported: tuple[str, tuple[Any, ...]] | None = None
        #: How often AgentScope compressed its context.
        self.compressions = 0
        #: How often that failed.
        self.failures = 0
        self.images = Images()
        #: The assembly of the model call that is prepared, and when its last step was done.
        self.assembly: ObservedAssembly | None = None
        self.done_ns = 0
        #: Replies that run: outside of any, no model call is prepared.
        self.replies = 0

    def events(self, agent: Any) -> list[Part]:
        """What follows the system prompt: the summary of what was compressed, and the context."""
        return _parts_of(agent.state.session_id, agent.name).of(agent.state.context, agent.state.summary)


@lru_cache(maxsize=2 * SESSIONS)
def _parts_of(session: str, agent: str, what: str = "context") -> Parts:
    """The parts of an agent's context: an agent that is made anew goes on with the context of its session."""
    from otel_assembly.instrumentation.agentscope.messages import Parts, block_parts

    return Parts(block_parts)


def parts_sent(agent: Any, messages: Sequence[Any], summary: Any) -> list[Part]:
    """The parts of what an agent's model is to be sent, or of a context that it had."""
    return _parts_of(agent.state.session_id, agent.name, "sent").of(messages, summary)


_AGENTS: Final[ByIdentity[Remembered]] = ByIdentity()


def remembered(agent: Any) -> Remembered:
    """What is remembered of an agent; it goes when the agent goes."""
    known = _AGENTS.get(agent)
    if known is None:
        known = _AGENTS.put(agent, Remembered())
    return known


def prepare(
    instrumentation: Instrumentation,
    agent: Any,
    events: Sequence[Part],
    *,
    prompt: str | None = None,
    started_ns: int,
) -> ObservedAssembly | None:
    """The assembly that something that takes in this context is a step of; None where no provider is configured.

    It is that of the model call that comes next. Where there is more in the context than the last step let out, no
    model was called with that, and another assembly begins.

    A session may have several agents, each with a context of its own, so the ledger is that of an agent in a session.

    Args:
        instrumentation: Where it is reported.
        agent: Whose context it is.
        events: The context in parts.
        prompt: The system prompt, where it is not the one that was last made.
        started_ns: When the step began.
    """
    session, known = agent.state.session_id, remembered(agent)
    assembly = known.assembly
    if assembly is not None and assembly.recording.measured and ids_of(assembly.events) != ids_of(events):
        not_called(agent)
        assembly = None
    if assembly is None:
        prompt = prompt if prompt is not None else _prompt(agent)
        assembly = known.assembly = instrumentation.observed.begin(
            f"{session}/{agent.name}",
            events,
            prompts=(prompt,) if prompt else (),
            tools=known.tools,
            agent_name=agent.name,
            model=agent.model.model,
            conversation_id=session,
            started_ns=started_ns,
        )
    return assembly


def _prompt(agent: Any) -> str:
    """The system prompt as it is before what middlewares make of it, where that is yet to be reported in this reply."""
    known = remembered(agent)
    made = [change for change in known.changes if change.prompt_in != change.prompt_out]
    if made and known.replies and (known.reported is None or known.reported[0] != agent.state.reply_id):
        return made[0].prompt_in
    return known.prompt or str(agent._system_prompt)  # noqa: SLF001  # what the first prompt will begin with


def step_done(agent: Any, error: BaseException | None = None, *, stays: bool = False) -> None:
    """Note that a step is done: others may follow before the model is called, unless it failed or none will be."""
    known = remembered(agent)
    known.done_ns = time.time_ns()
    if error is not None:
        assembly, known.assembly = known.assembly, None
        if assembly is not None:
            assembly.end(error, stays=stays)
    elif not known.replies:
        not_called(agent)


def report(instrumentation: Instrumentation, agent: Any, change: Change) -> None:
    """Report a change as a step of the model call that is prepared."""
    assembly = prepare(instrumentation, agent, change.before, started_ns=change.started_ns)
    if assembly is None:
        return
    started_ns = max(change.started_ns, remembered(agent).done_ns)
    with assembly.step(change.policy, kind=change.kind, config=change.config, started_ns=started_ns) as step:
        known = {part.facts.id: part for part in change.before}
        after = as_known(assembly, [known.get(part.facts.id, part) for part in change.after])
        step.out(after, prompts=change.prompts)
    step.failed(change.error)
    step_done(agent, change.error, stays=change.stays)


def arrives(agent: Any, events: Sequence[Part]) -> None:
    """Report what changed between the last step's output and these parts, with which the model is called."""
    known = remembered(agent)
    assembly = known.assembly
    if assembly is not None and assembly.recording.measured and ids_of(assembly.events) != ids_of(events):
        with reported_whole(assembly), assembly.step(FRAMEWORK) as step:
            step.out(as_known(assembly, events))


def as_known(assembly: ObservedAssembly, events: Sequence[Part]) -> list[Part]:
    """These parts, and those of them that an assembly holds as it holds them."""
    known = {part.facts.id: part for part in assembly.events}
    return [known.get(part.facts.id, part) for part in events]


def model_called(agent: Any) -> None:
    """End the assembly of the model call, which is made now, as of when its last step was done.

    A middleware may have opened the call's span before this one was sure to be the call.
    """
    known = remembered(agent)
    assembly, known.assembly = known.assembly, None
    if assembly is not None:
        assembly.end(over_ns=known.done_ns)


def not_called(agent: Any) -> None:
    """End an assembly with which no model is called: it was over when its last step was done."""
    known = remembered(agent)
    assembly, known.assembly = known.assembly, None
    if assembly is not None:
        assembly.end(called=False, over_ns=known.done_ns)


def ids_of(parts: Sequence[Part]) -> list[str | None]:
    """What tells parts apart: a part that reads as it did has the id that it had."""
    return [part.facts.id for part in parts]


class Images:
    """How many images a context holds, counted as it grows: a check in every round must not read all of it."""

    __slots__ = ("_context", "_held", "_read")

    def __init__(self) -> None:
        self._context: list[Any] | None = None
        self._read = 0
        self._held = 0

    def count(self, context: list[Any]) -> int:
        """The images in a context; its last message is read again, for it may have grown."""
        if context is not self._context or len(context) < self._read:
            self._context, self._read, self._held = context, 0, 0
        last = max(len(context) - 1, 0)
        for message in context[self._read : last]:
            self._held += sum(map(_images, message.content))
        self._read = last
        return self._held + sum(_images(block) for message in context[last:] for block in message.content)

    def forget(self) -> None:
        """Images were replaced: count anew."""
        self._context = None


def _images(block: Any) -> int:
    kind = block.type
    if kind == "data":
        return int(block.source.media_type.startswith("image/"))
    held = block.output if kind == "tool_result" else block.hint if kind == "hint" else ()
    return sum(map(_images, held)) if isinstance(held, list) else 0
