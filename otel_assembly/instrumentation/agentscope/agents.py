"""What is remembered of each agent between its assemblies, and how one of them begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.wrapping import ByIdentity, told_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.instrumentation.agentscope.messages import Part, Parts
    from otel_assembly.instrumentation.agentscope.prompts import Change
    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observed import ObservedAssembly


class Remembered:
    """One agent: its context in parts, and what was told of it."""

    __slots__ = ("_parts", "changes", "compressions", "failures", "images", "prompt", "told", "tools")

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        #: The system prompt as it was last made.
        self.prompt = ""
        #: The schemas of the tools that it last offered.
        self.tools: Sequence[Mapping[str, Any]] = ()
        #: What middlewares made of the prompt then.
        self.changes: tuple[Change, ...] = ()
        #: The reply in which what they make of it was last told, and what that was.
        self.told: tuple[str, tuple[Any, ...]] | None = None
        #: How often AgentScope compressed its context.
        self.compressions = 0
        #: How often it was told that this failed.
        self.failures = 0
        self.images = Images()

    def events(self, agent: Any) -> list[Part]:
        """What stands behind the system prompt: the summary of what was compressed, and the context."""
        return self._parts.of(agent.state.context, agent.state.summary)


_AGENTS: Final[ByIdentity[Remembered]] = ByIdentity()


def remembered(agent: Any) -> Remembered:
    """What is remembered of an agent; it goes when the agent goes."""
    known = _AGENTS.get(agent)
    if known is None:
        from otel_assembly.instrumentation.agentscope.messages import Parts, block_parts

        known = _AGENTS.put(agent, Remembered(Parts(block_parts)))
    return known


def begin(
    instrumentation: Instrumentation,
    agent: Any,
    events: Sequence[Part],
    *,
    prompt: str | None = None,
    sized: bool = False,
    started_ns: int,
) -> ObservedAssembly | None:
    """An assembly of an agent's context begins, or began; None where nobody listens.

    A session may have several agents, each with a context of its own, so the ledger is that of an agent in a session.

    Args:
        instrumentation: Where it is told.
        agent: Whose context it is.
        events: The context in parts.
        prompt: The system prompt, where it is not the one that was last made.
        sized: Whether the tokens of every part are counted here, because what leaves was in no prompt that was counted.
        started_ns: When it began.
    """
    session, known = agent.state.session_id, remembered(agent)
    if prompt is None:
        prompt = known.prompt or agent._system_prompt  # noqa: SLF001  # what the first prompt will begin with
    assembly = instrumentation.observed.begin(
        f"{session}/{agent.name}",
        events,
        prompts=(prompt,) if prompt else (),
        tools=known.tools,
        agent_name=agent.name,
        model=agent.model.model,
        conversation_id=session,
        started_ns=started_ns,
    )
    if assembly is not None and sized and assembly.recording.measured:
        with told_whole(assembly):
            assembly.record.count(assembly.record.opening.view)
    return assembly


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
