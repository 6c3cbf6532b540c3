"""What an AutoGen assembly belongs to: the agent's model call, and what memories have put into the context for it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from otel_assembly.instrumentation.conversation import LEDGER_KEYS
from otel_assembly.instrumentation.hooks import ByIdentity
from otel_assembly.instrumentation.instrumented import bound
from otel_assembly.instrumentation.reducers import same_objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.observe.assembly import ObservedAssembly


_AGENT_NAME: Final = "gen_ai.agent.name"
#: So many clients stand around a client, at most.
_AROUND: Final = 8


@dataclass(slots=True)
class NestedRuns:
    """What ran inside the time of the outermost reducer, or of a memory: no assemblies of their own."""

    inner: list[Any] = field(default_factory=list)

    def of(self, context: Any) -> list[Any]:
        """What ran on a context, the innermost first."""
        return [one for one in self.inner if one.context is context]

    def other_than(self, context: Any) -> Any:
        """The whole of what ran on the one other context that was asked; None where none was, or several were."""
        others = [one for one in self.inner if one.context is not context]
        return others[-1] if others and all(one.context is others[-1].context for one in others) else None


class ModelCall:
    """What an agent passes to its model beside what the context gives.

    Attributes:
        context: The context that is asked.
        agent_name: The agent's name.
        model: The model's name, where its client tells.
        prompts: The system messages' texts.
        tools: The schemas of the tools that are offered, as far as they are known without asking for them.
        removes_images: Whether `images_removed` will be asked before the model is called.
    """

    def __init__(
        self,
        context: Any,
        client: Any,
        *,
        agent_name: str | None,
        system_messages: Sequence[Any] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        removes_images: bool = False,
    ) -> None:
        self.context = context
        self.agent_name = agent_name
        self.model = model_of(client)
        self.prompts = [message.content for message in system_messages]
        self.tools = tools
        self.removes_images = removes_images
        self._held: ObservedAssembly | None = None

    def take(self, assembly: ObservedAssembly) -> None:
        """The context has answered: the assembly ends now, or once images were removed from the answer."""
        if self.removes_images and self._held is None:
            self._held = assembly
        else:
            assembly.end()

    def release(self) -> ObservedAssembly | None:
        """Hand over the assembly that is still open, if any; the caller ends it."""
        held, self._held = self._held, None
        return held

    @contextmanager
    def current(self) -> Iterator[None]:
        """What runs in this block is this call; never left open across a ``yield``."""
        try:
            with bound(_CALL, self), bound(NESTED, None):
                yield
        finally:
            held = self.release()
            if held is not None:
                held.end()

    def end(self, error: BaseException | None = None) -> None:
        """The call is over."""


_CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_autogen_call", default=None)

#: The reducers that run inside another one's time, or inside a memory's: they are no assemblies of their own.
NESTED: Final[ContextVar[NestedRuns | None]] = ContextVar("otel_assembly_autogen_within", default=None)


def current_call() -> ModelCall | None:
    """The model call that is being made here."""
    return _CALL.get()


def current_agent() -> str | None:
    """The agent whose span is current: AutoGen's own spans carry its name."""
    attributes: Mapping[str, Any] = getattr(trace.get_current_span(), "attributes", None) or {}
    name = attributes.get(_AGENT_NAME)
    return name if isinstance(name, str) else None


def model_of(client: Any) -> str | None:
    """The model that a client calls; its family where the client keeps the name to itself."""
    for _ in range(_AROUND):
        inner = getattr(client, "client", None)
        if not hasattr(inner, "model_info"):
            break
        client = inner  # a cache stood in front of it
    arguments = getattr(client, "_create_args", None)
    model = arguments.get("model") if isinstance(arguments, dict) else None
    if isinstance(model, str):
        return model
    info = getattr(client, "model_info", None)
    family = info.get("family") if isinstance(info, dict) else None
    return str(family) if isinstance(family, str) and family not in {"unknown", "any"} else None


def schemas_of(workbenches: Sequence[Any], tools: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The schemas of an agent's tools; those of a workbench that would have to be asked for them stay unknown."""
    found = [schema for bench in workbenches for schema in _static_schemas(bench)]
    return found + [_schema(tool) for tool in tools]


def _static_schemas(bench: Any) -> Iterator[Mapping[str, Any]]:
    tools, overrides = getattr(bench, "_tools", None), getattr(bench, "_tool_overrides", None)
    if not isinstance(tools, list) or not isinstance(overrides, dict):
        return
    for tool in tools:
        schema, override = _schema(tool), overrides.get(tool.name)
        if override is not None:
            said = {name: getattr(override, name, None) for name in ("name", "description")}
            schema = {**schema, **{name: text for name, text in said.items() if text is not None}}
        yield schema


#: A schema is made of a tool's signature, which takes longer than all the rest of an assembly.
_SCHEMAS: Final[ByIdentity[Mapping[str, Any]]] = ByIdentity()


def _schema(tool: Any) -> Mapping[str, Any]:
    if isinstance(tool, dict):
        return tool
    schema = _SCHEMAS.get(tool)
    return schema if schema is not None else _SCHEMAS.put(tool, tool.schema)


@dataclass(frozen=True, slots=True)
class Injection:
    """What one memory put into a context.

    Attributes:
        policy: The name of its step.
        started_ns: When the memory was asked.
        at: How many messages stood in front of it.
        messages: What it put there.
    """

    policy: str
    started_ns: int
    at: int
    messages: list[Any]


@dataclass(frozen=True, slots=True)
class _Stage:
    """One memory's injection, between two states of a context: without it and what came after it, and with it."""

    policy: str
    started_ns: int
    before: Sequence[Any]
    after: Sequence[Any]


_PENDING: Final[ByIdentity[list[Injection]]] = ByIdentity()


def remember(context: Any, injection: Injection) -> None:
    """The next assembly of this context has an injection to report."""
    held = _PENDING.get(context)
    if held is None:
        held = _PENDING.put(context, [])
    held.append(injection)


def begin(
    instrumentation: Instrumentation,
    context: Any,
    events: Sequence[Any],
    *,
    call: ModelCall | None = None,
    started_ns: int | None = None,
    unknown: bool = False,
) -> ObservedAssembly | None:
    """An assembly of a context begins; None where no provider is configured.

    Args:
        instrumentation: Where it is reported.
        context: Whose messages they are.
        events: The messages.
        call: The model call that they are for, where that is known.
        started_ns: When it began, if that was earlier.
        unknown: What came in cannot be known.
    """
    stages = _stages(context, events)
    if unknown or not stages:
        stages = []
    else:
        started_ns = stages[0].started_ns
    agent_name = call.agent_name if call is not None else current_agent()
    assembly = instrumentation.observed.begin(
        LEDGER_KEYS.of(context, agent_name or ""),
        stages[0].before if stages else events,
        prompts=call.prompts if call is not None else (),
        tools=call.tools if call is not None else (),
        agent_name=agent_name,
        model=call.model if call is not None else model_of(getattr(context, "_model_client", None)),
        started_ns=started_ns,
        unknown_input=unknown,
    )
    if assembly is None:
        return None
    for stage in stages:
        with assembly.step(stage.policy, kind="injection", started_ns=stage.started_ns) as step:
            step.out(stage.after)
    return assembly


def _stages(context: Any, events: Sequence[Any]) -> list[_Stage]:
    """What memories put into a context since its last assembly, as far as it is still where they put it."""
    found = [one for one in _PENDING.pop(context) or () if _stands(one, events)]
    stages: list[_Stage] = []
    after = list(events)
    for one in reversed(found):
        before = [*after[: one.at], *after[one.at + len(one.messages) :]]
        stages.append(_Stage(one.policy, one.started_ns, before, after))
        after = before
    return stages[::-1]


def _stands(injection: Injection, events: Sequence[Any]) -> bool:
    there = events[injection.at : injection.at + len(injection.messages)]
    return same_objects(there, injection.messages)
