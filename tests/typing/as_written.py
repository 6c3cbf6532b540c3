"""What users write, as a type checker reads it. Nothing here is run.

What is wrong on purpose is marked, and a mark that is not needed is an error itself.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_assembly import (
    AlertPolicy,
    AnthropicModel,
    Assembler,
    AssemblyPolicy,
    Block,
    BudgetPolicy,
    Context,
    ContextAssembler,
    ConversationPolicy,
    ModelRequest,
    ObserverAlert,
    OpenAIModel,
    Severity,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    WorkingMemoryPolicy,
    allocate,
    attach,
    to_anthropic,
    to_openai,
    validate_order,
)
from otel_assembly.budget import order_for_attention_and_cache
from otel_assembly.knowledge import (
    AggregateTrigger,
    ConversationSummaryAggregate,
    KnowledgeStore,
    MemoryKnowledgeStore,
    WorkingMemoryAggregate,
)
from otel_assembly.runtime import AggregateObserver, LoopDetector, ModelClient, Stream, TokenMonitor
from otel_assembly.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI


class AsTheReadmeHasIt:
    name = "drop_thinking"

    async def apply(self, prompts, events, context):
        return prompts, [event for event in events if event]


class Typed:
    name: str = "typed"

    async def apply(self, prompts: list[str], events: list[Any], context: Context) -> tuple[list[str], list[Any]]:
        return prompts, events


class NamedByItsInstance:
    def __init__(self, name: str) -> None:
        self.name = name

    async def apply(self, prompts: Sequence[str], events: Sequence[Any], context: Any) -> tuple[list[str], list[Any]]:
        return list(prompts), list(events)


@dataclass(frozen=True)
class Frozen:
    name: str = "frozen"

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        return prompts, events


class NamedByAProperty:
    @property
    def name(self) -> str:
        return "property"

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        return prompts, events


class Derived(AssemblyPolicy):
    name = "derived"

    async def apply(self, prompts: list[str], events: list[Any], context: Any) -> tuple[list[str], list[Any]]:
        return prompts, events


class Watcher:
    name = "watcher"
    watches = (ModelRequest,)

    async def process(self, event: Any, context: Context) -> ObserverAlert | None:
        return ObserverAlert(source=self.name, severity="fatal", message="too much")


def chains(stream: Stream, context: Context) -> list[str]:
    chain: list[AssemblyPolicy] = [AlertPolicy(), WorkingMemoryPolicy(), Typed(), Derived(), AsTheReadmeHasIt()]
    Assembler(chain)
    Assembler([AlertPolicy(), ConversationPolicy(), AsTheReadmeHasIt(), BudgetPolicy(8_000, 500)])
    Assembler([Frozen(), NamedByAProperty(), BudgetPolicy(8_000, 500)])
    Assembler([Typed(), NamedByItsInstance("mine"), SlidingWindowPolicy(5)], on_policy_error="skip")
    with attach(
        stream, [Watcher(), TokenMonitor(alert_severity="fatal"), LoopDetector(severity=Severity.INFO)], context
    ):
        ObserverAlert(source="me", severity=Severity.FATAL, message="stop", data={"why": 1})
    return validate_order(chain)


class Kept:
    async def aggregate(self, events: Iterable[Any], context: Context, store: KnowledgeStore) -> None:
        await store.append("/log", str(len(list(events))))


async def kept(stream: Stream) -> None:
    store, trigger = MemoryKnowledgeStore(), AggregateTrigger(every_n_turns=5, on_end=True)
    observers = [
        AggregateObserver(WorkingMemoryAggregate(str.upper), trigger, store=store),
        AggregateObserver(ConversationSummaryAggregate(str.lower), trigger),
        AggregateObserver(Kept(), trigger),
    ]
    attach(stream, observers)
    await observers[0].end(stream)
    await observers[0].end(Context(stream=stream))
    await store.replace("/log", None, "new")
    AggregateObserver(Typed(), trigger)  # type: ignore[arg-type]
    AggregateObserver(Kept(), "on_end")  # type: ignore[arg-type]


def shorter(text: str, target_tokens: int) -> str:
    return text[:target_tokens]


def blocks() -> list[str]:
    allocation = allocate([Block("system", 1, "You are support.", cuttable=False)], 1_000, 100, compact=shorter)
    prompt = order_for_attention_and_cache(allocation)
    return [block.name for block in allocation] + [block.name for block in prompt]


def clients() -> list[ModelClient]:
    return [OpenAIModel("gpt-4o"), AnthropicModel("claude-sonnet-5"), ScriptedModel("yes")]


async def rendered(openai: AsyncOpenAI, anthropic: AsyncAnthropic, assembler: Assembler, events: list[Any]) -> None:
    assembly = await assembler.assemble(["Be brief."], events, Context())
    await openai.chat.completions.create(model="gpt-4o", messages=to_openai(*assembly))
    await anthropic.messages.create(model="claude-sonnet-5", max_tokens=9, **to_anthropic(*assembly))
    to_anthropic(*assembly, breakpoints=assembly.breakpoints)
    to_anthropic(assembly.prompts, assembly.events, pending=None)
    for client in clients():
        await client(*assembly, tool_choice="auto")


def closed_sets() -> None:
    BudgetPolicy(8_000, 500, on_overflow="drop", compact="extractive")
    BudgetPolicy(8_000, 500, compact=shorter)
    Assembler([], on_policy_error="ignore")  # type: ignore[arg-type]
    Assembler([BudgetPolicy])  # type: ignore[list-item]
    TokenBudgetPolicy(8_000, on_overflow="cut")  # type: ignore[arg-type]
    BudgetPolicy(8_000, 500, on_overflow="cut")  # type: ignore[arg-type]
    BudgetPolicy(8_000, 500, compact="extract")  # type: ignore[arg-type]
    TokenMonitor(alert_severity="deadly")  # type: ignore[arg-type]
    ContextAssembler(
        system="",
        window=10,
        output_reserve=1,
        scopes=lambda user, task: {"public"},
        on_retriever_error="pass",  # type: ignore[arg-type]
    )
