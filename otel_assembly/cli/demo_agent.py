"""The demonstration's agent: a loop of our own around a scripted model, offline, with real policies and observers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_assembly.assembler import Assembler
from otel_assembly.context import Context
from otel_assembly.errors import HaltedError
from otel_assembly.events import ModelRequest, ModelResponse, Severity, ToolCallEvent, ToolResultEvent, Usage
from otel_assembly.knowledge import WORKING_MEMORY_PATH, KnowledgeStore, MemoryKnowledgeStore
from otel_assembly.policies import AlertPolicy, BudgetPolicy, ConversationPolicy, WorkingMemoryPolicy
from otel_assembly.runtime import BudgetMonitor, LoopDetector, Observer, Stream, TokenMonitor, attach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_assembly.assembly import Assembly
    from otel_assembly.telemetry import OpenTelemetryRecorder

AGENT: Final = "support"
MODEL: Final = "gpt-4o"
WINDOW: Final = 1_200
OUTPUT_RESERVE: Final = 300
BUDGET: Final = WINDOW - OUTPUT_RESERVE
SYSTEM: Final = (
    "You are the support agent of a small shop for bicycle parts. Look orders up before you answer. Never promise a "
    "date that the carrier has not given. A refund of more than 50 euros needs a colleague's approval."
)
MEMORY: Final = "- The customer's name is Noor. She prefers short answers.\n- Her order 1042 is late."


def _find_order(arguments: dict[str, str]) -> str:
    return json.dumps({"order": arguments["order"], "item": "chain, 11-speed", "paid": 38.90, "carrier": "Kolibri"})


def _carrier_log(arguments: dict[str, str]) -> str:
    scans = [
        f"2026-03-{day:02d}T{hour:02d}:00Z depot-{(day * hour) % 17:02d} scan parcel=KB-1042 belt={hour} in-transit"
        for day in range(2, 9)
        for hour in range(6, 20)
    ]
    scans.append("2026-03-09T06:00Z depot-04 scan parcel=KB-1042 status=address-unreadable, waiting for the shop")
    return "\n".join(scans[-int(arguments["last"]) :] if "last" in arguments else scans)


def _search_orders(arguments: dict[str, str]) -> str:  # it finds nothing, whatever is asked
    return "[]"


TOOLS: Final[dict[str, Callable[[dict[str, str]], str]]] = {
    "find_order": _find_order,
    "carrier_log": _carrier_log,
    "search_orders": _search_orders,
}

#: What the user asks, and what the model answers, call by call; a pair is a tool call.
SCRIPT: Final[list[tuple[str, list[str | tuple[str, dict[str, str]]]]]] = [
    (
        "Hi, order 1042 has not come. Where is it?",
        [
            ("find_order", {"order": "1042"}),
            ("carrier_log", {"parcel": "KB-1042"}),
            ("carrier_log", {"parcel": "KB-1042", "last": "3"}),
            "Your parcel waits in depot 04: the label is unreadable. I have sent the carrier your address again.",
        ],
    ),
    (
        "Thank you! Are other customers' parcels stuck in depot 04 too?",
        [
            ("search_orders", {"status": "address-unreadable"}),
            ("search_orders", {"status": "address-unreadable"}),
            ("search_orders", {"status": "address-unreadable"}),
            ("search_orders", {"status": "address-unreadable"}),
            ("search_orders", {"status": "address-unreadable"}),
        ],
    ),
]


@dataclass(slots=True)
class Line:
    """Something that happened, for the terminal."""

    who: str
    text: str


@dataclass(slots=True)
class SupportAgent:
    """The agent and everything around it."""

    recorder: OpenTelemetryRecorder
    lines: list[Line] = field(default_factory=list)
    assemblies: list[Assembly] = field(default_factory=list)

    async def run(self) -> None:
        """Play the script until it is over, or halted."""
        stream = Stream()
        store = MemoryKnowledgeStore()
        await store.write(WORKING_MEMORY_PATH, MEMORY)
        context = Context(agent_name=AGENT, dependencies={KnowledgeStore: store}, stream=stream)
        assembler = Assembler(
            [
                WorkingMemoryPolicy(),
                AlertPolicy(),
                ConversationPolicy(),
                BudgetPolicy(WINDOW, OUTPUT_RESERVE, on_overflow="drop"),
            ],
            name="demo",
            model=MODEL,
            recorder=self.recorder,
        )
        observers: list[Observer] = [
            BudgetMonitor(),
            LoopDetector(),
            TokenMonitor(1_500, 2_400, alert_severity=Severity.FATAL),
        ]
        with attach(stream, observers, context):
            for question, answers in SCRIPT:
                self.lines.append(Line("user", question))
                with self.recorder.invoke_agent(AGENT):
                    await stream.send(ModelRequest(content=question))
                    try:
                        await self._answer(iter(answers), assembler, stream, context)
                    except HaltedError as halted:
                        self.lines.append(Line("halted", halted.reason))
                        return

    async def _answer(
        self,
        answers: Iterator[str | tuple[str, dict[str, str]]],
        assembler: Assembler,
        stream: Stream,
        context: Context,
    ) -> None:
        for number, answer in enumerate(answers):
            assembly = await assembler.assemble([SYSTEM], stream.history, context)
            self.assemblies.append(assembly)
            context.guard.check()
            response = _model(answer, assembly, f"{len(self.assemblies)}-{number}")
            self.lines.append(Line("agent", response.content or _spelled(response.tool_calls[0])))
            await stream.send(response)
            for call in response.tool_calls:
                context.guard.check()
                result = TOOLS[call.name](json.loads(call.arguments))
                self.lines.append(Line("tool", result))
                await stream.send(ToolResultEvent(parent_id=call.id, name=call.name, content=result))


def _model(answer: str | tuple[str, dict[str, str]], assembly: Assembly, number: str) -> ModelResponse:
    usage = Usage(input_tokens=assembly.totals.tokens_out, output_tokens=24)
    if isinstance(answer, str):
        return ModelResponse(content=answer, usage=usage)
    name, arguments = answer
    call = ToolCallEvent(id=f"call-{number}", name=name, arguments=json.dumps(arguments))
    return ModelResponse(tool_calls=(call,), usage=usage)


def _spelled(call: ToolCallEvent) -> str:
    arguments = ", ".join(f"{name}={value}" for name, value in json.loads(call.arguments).items())
    return f"{call.name}({arguments})"
