"""Walk one message from its arrival to its spans, and print which modules of the package it enters.

python scripts/route.py assemble         # a chat dict, from `history.append` through `assembler.assemble` to its spans
python scripts/route.py trim_messages    # LangChain's `trim_messages`, instrumented
python scripts/route.py                  # both

A module is entered when one of its functions is called. Two modules that call each other are printed as a pair: who
reads one of them has to know the other. Both walks are steady turns: what is done once a process or a conversation
(reading vocabularies, making instruments) is over.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_assembly
from otel_assembly import Assembler, BudgetPolicy, Context, ConversationPolicy, History

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = str(Path(otel_assembly.__file__).parent)
TURNS = 6


@dataclass
class Route:
    """The modules that were entered, in order, with the functions called in each.

    Attributes:
        modules: By module, the names of the functions that were called.
        calls: How many calls were made.
        crossings: Calls from one module into another, by both names.
    """

    modules: dict[str, set[str]] = field(default_factory=dict)
    calls: int = 0
    crossings: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Modules that call each other both ways."""
        return sorted(
            (item, other) for item, other in self.crossings if item < other and (other, item) in self.crossings
        )

    def walk(self, step: Callable[[], object]) -> None:
        """Follow what a step calls."""
        sys.setprofile(self._called)
        try:
            step()
        finally:
            sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        module = _module(frame)
        if event != "call" or module is None:
            return
        self.calls += 1
        self.modules.setdefault(module, set()).add(frame.f_code.co_qualname)
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return  # who asks a generator for the next one has been handed it, and does not know where it is from
        above = frame.f_back
        while above is not None and _module(above) is None:
            above = above.f_back
        caller = _module(above) if above is not None else None
        if caller is not None and caller != module:
            self.crossings[caller, module] = self.crossings.get((caller, module), 0) + 1

    def __str__(self) -> str:
        functions = sum(map(len, self.modules.values()))
        crossings = sum(self.crossings.values())
        head = (
            f"{len(self.modules)} modules, {functions} functions, {self.calls} calls, {crossings} from module to module"
        )
        rows = [f"  {name:40} {len(called):3}" for name, called in self.modules.items()]
        pairs = [f"  both ways: {item} and {other}" for item, other in self.pairs]
        return "\n".join([head, *rows, *pairs])


def _module(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename  # a wrapper's has a mark behind the path
    return path[len(PACKAGE) + 1 :].partition(".py")[0] if path.startswith(PACKAGE) else None


def _provider() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    return provider


def assemble() -> Route:
    """A chat dict arrives, and is assembled under two policies of ours; every span is recorded."""
    otel_assembly.configure(tracer_provider=_provider())
    chain = [ConversationPolicy(), BudgetPolicy(window=1_000, output_reserve=900)]
    assembler, history, context = Assembler(chain, model="gpt-4o"), History(), Context(agent_name="desk")
    route, loop = Route(), asyncio.new_event_loop()

    def turn(number: int) -> None:
        history.append({"role": "user", "content": f"question {number} " * 8})
        loop.run_until_complete(assembler.assemble(["be kind"], history, context))

    for number in range(TURNS):
        turn(number)
        history.append({"role": "assistant", "content": f"answer {number} " * 8})
    route.walk(lambda: turn(TURNS))
    loop.close()
    return route


def trim_messages() -> Route:
    """An agent's code calls LangChain's `trim_messages`; every span is recorded."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    otel_assembly.instrument("langchain", tracer_provider=_provider())
    from langchain_core.messages import trim_messages as trim

    messages: list[Any] = [SystemMessage("be kind")]
    route = Route()

    def turn(number: int) -> None:
        messages.append(HumanMessage(f"question {number} " * 8, id=f"h{number}"))
        trim(messages, max_tokens=4, token_counter=len, strategy="last", include_system=True, start_on="human")
        messages.append(AIMessage(f"answer {number}", id=f"a{number}"))

    for number in range(TURNS):
        turn(number)
    route.walk(lambda: turn(TURNS))
    otel_assembly.uninstrument("langchain")
    return route


WALKS = {"assemble": assemble, "trim_messages": trim_messages}

if __name__ == "__main__":
    for name in sys.argv[1:] or WALKS:
        print(f"{name}: {WALKS[name]()}\n")
