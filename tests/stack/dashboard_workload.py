"""Work that moves every metric of the contract, in processes whose numbers are known."""

from __future__ import annotations

import time
import uuid

import pytest
from counting import WordCounter
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyError,
    Context,
    ContextOverflowError,
    History,
    ModelRequest,
    ModelResponse,
    OpenTelemetryRecorder,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    instrument,
    uninstrument,
)
from otel_assembly.errors import AccessDeniedError
from otel_assembly.events import Usage
from otel_assembly.recorder import using_recorder
from otel_assembly.sessions import EV_TEXT, ConversationAdapter, Envelope, Expectation, Hub, MemorySessionLog
from otel_assembly.telemetry import AlertSignal, TelemetrySettings
from otel_assembly.testing import conversation

LONG = "No refund without a receipt. " * 120


def refuses(text):
    raise ValueError("a redaction hook with a mistake in it")


class Broken:
    """A policy with a mistake in it."""

    name = "broken"

    async def apply(self, prompts, events, context):
        raise LookupError("nothing is remembered")


class Talker(GenericFakeChatModel):
    """A chat model that answers."""

    def bind_tools(self, tools, **others):
        return self


class Process:
    """What one process exports, under a service of its own."""

    def __init__(self, collector, name, namespace):
        self.job = f"{namespace}/{name}"
        self.service = name
        who = {"service.name": name, "service.namespace": namespace, "service.instance.id": str(uuid.uuid4())}
        resource = Resource.create(who)
        self.tracers = TracerProvider(resource=resource)
        self.tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector.otlp_http}/v1/traces")))
        # Exports when it is told to: the tests say after which turns.
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{collector.otlp_http}/v1/metrics"), export_interval_millis=float("inf")
        )
        self.meters = MeterProvider([reader], resource=resource)
        self.logs = LoggerProvider(resource)
        self.logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{collector.otlp_http}/v1/logs")))
        self.recorder = OpenTelemetryRecorder(
            tracer_provider=self.tracers,
            meter_provider=self.meters,
            logger_provider=self.logs,
            settings=TelemetrySettings(alert_signal=AlertSignal.BOTH, redact=refuses),
        )
        self.turns = 0
        self.traces = 0
        self.model_calls = 0

    def as_default(self):
        """The recorder of whoever is given none, until the block ends."""
        return using_recorder(self.recorder)

    def flush(self):
        for provider in (self.tracers, self.logs, self.meters):
            assert provider.force_flush()

    def shutdown(self):
        for provider in (self.tracers, self.logs, self.meters):
            provider.shutdown()

    async def turn(self, policies, prompts, events, context):
        self.turns += 1
        self.traces += 1
        return await Assembler(policies, recorder=self.recorder, model="gpt-4o").assemble(prompts, events, context)

    async def overflow(self, context):
        with pytest.raises(ContextOverflowError):
            await self.turn([TokenBudgetPolicy(60)], [LONG], conversation("ask"), context)

    async def fail(self, policy, context):
        with pytest.raises(AssemblyError):
            await self.turn([policy], [], conversation("ask"), context)

    async def converse(self, context, *words):
        """Two turns of one trace: with what observers said, and with the bill for the first."""
        policies = [AlertPolicy(), SlidingWindowPolicy(4), TokenBudgetPolicy(400)]
        assembler = Assembler(policies, on_halt="return", recorder=self.recorder, model="gpt-4o")
        history = History(conversation(*words))
        with self.tracers.get_tracer("an.agent").start_as_current_span("ask"):
            first = await assembler.assemble(["Be kind."], history, context)
            history.append(ModelResponse(content="Gladly.", usage=Usage(input_tokens=first.totals.tokens_out)))
            history.extend([ModelRequest(content=f"And question {number}?") for number in range(6)])
            await assembler.assemble(["Be kind."], history, context)
        self.turns += 2
        self.traces += 1

    async def clear_in_vain(self, agent_name):
        """A LangChain agent, whose middleware finds nothing to summarise."""
        instrument("langchain", tracer_provider=self.tracers, meter_provider=self.meters, logger_provider=self.logs)
        try:
            model = Talker(messages=iter([AIMessage("Gladly."), AIMessage("Indeed.")]))
            middleware = [SummarizationMiddleware(model, trigger=("messages", 100))]
            agent = create_agent(model, [], middleware=middleware, name=agent_name)
            await agent.ainvoke({"messages": [("user", "Is my parcel on its way?")]})
            self.turns += 1
            self.traces += 1
        finally:
            uninstrument("langchain")

    def call_models(self, times, *, newer):
        """GenAI's client metrics as instruments of one generation or the other emit them, without anything of ours."""
        meter = self.meters.get_meter("an.instrumentation")
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai"}
        if newer:
            seconds = meter.create_histogram("gen_ai.client.inference.duration", "s")
            tokens = meter.create_counter("gen_ai.client.inference.usage.input_tokens", "{token}")
            billed = tokens.add
        else:
            seconds = meter.create_histogram("gen_ai.client.operation.duration", "s")
            tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")
            billed = tokens.record
            seconds.record(0.01, attributes | {"gen_ai.operation.name": "embeddings"})
            billed(1, attributes | {"gen_ai.token.type": "output"})
        kind = {} if newer else {"gen_ai.token.type": "input"}
        for _ in range(times):
            seconds.record(0.2, attributes)
            billed(100, attributes | kind)
        self.model_calls += times


class Constant:
    """What every prompt of `constant` is like."""

    prompts = 120
    tokens = 5_003
    budget = 100_060  # a twentieth is used
    fixed = 3_003
    calibration = 1.04


def desk(agent_name="desk"):
    return Context(agent_name=agent_name, framework="ours")


async def long_lived(process):
    """Six overflows, of which the first comes before the first export; one halt; one policy that fails."""
    await process.overflow(desk())
    await process.turn([SlidingWindowPolicy(4)], ["Be kind."], conversation("ask"), desk("calm"))
    await process.converse(desk(), "ask", "alert", "answer")
    process.call_models(3, newer=False)
    process.flush()
    # The second export has to be of another time for a rate to be seen.
    time.sleep(1.1)
    for _ in range(5):
        await process.overflow(desk())
    await process.converse(desk(), "ask", "alert", "fatal", "answer")
    await process.fail(Broken(), desk())
    await process.clear_in_vain("desk")
    await talk(process)
    process.call_models(4, newer=False)
    process.flush()


async def constant(process):
    """Prompts of one size, which begin with the same half as the one before, and what each of them cost."""
    assembler = Assembler(
        [TokenBudgetPolicy(Constant.budget)], recorder=process.recorder, model="gpt-4o", counter=WordCounter()
    )
    quiet = Assembler(assembler.policies, counter=WordCounter())
    context, words = desk("constant"), {"first": 1_500, "second": 1_000, "asked": 1, "answered": 1}

    def prompt(number):
        prompts = ["fixed " * words["first"], ("alpha ", "bravo ")[number % 2] * words["second"]]
        return prompts, conversation(f"ask: {'why ' * words['asked']}", f"answer: {'so ' * words['answered']}")

    empty = (await quiet.assemble(*prompt(0), Context())).totals
    words["asked"] += Constant.fixed - empty.fixed
    words["answered"] += Constant.tokens - Constant.fixed - (empty.tokens_out - empty.fixed)
    made = []
    for number in range(Constant.prompts):
        if number == Constant.prompts // 2:
            process.flush()
            time.sleep(1.1)
        made.append(await assembler.assemble(*prompt(number), context))
        process.recorder.calibrated("gpt-4o", 1_040, 1_000)
    assert {(assembly.totals.tokens_out, assembly.totals.fixed) for assembly in made} == {
        (Constant.tokens, Constant.fixed)
    }
    process.turns += len(made)
    process.flush()
    return made


async def talk(process):
    """A session whose posts are accepted and refused, whose inboxes are read, and which waits in vain."""
    now = 0.0
    expects = [Expectation("reply_within", 60, "audit")]
    hub = Hub(MemorySessionLog(), [ConversationAdapter(expects)], clock=lambda: now)
    with process.as_default():
        name = (await hub.create("conversation", "ann", ["ann", "bob"])).session_id
        process.flush()
        time.sleep(1.1)
        await hub.join(name, "bob")
        await hub.post(Envelope(name, "ann", EV_TEXT, {"text": "well?"}))
        with pytest.raises(AccessDeniedError):
            await hub.post(Envelope(name, "eve", EV_TEXT, {"text": "me too"}))
        with process.tracers.get_tracer("an.agent").start_as_current_span("read"):
            await hub.inbox(name, "bob")
        now = 61.0
        assert len(await hub.sweep()) == 1
        process.flush()
        time.sleep(1.1)
        with process.tracers.get_tracer("an.agent").start_as_current_span("read"):
            await hub.inbox(name, "bob")
    process.flush()


async def short_lived(process):
    """One overflow of another agent, one of an agent without a name, one export: a process of a second."""
    await process.overflow(desk("courier"))
    await process.overflow(Context())
    await process.converse(desk("courier"), "ask", "answer")
    process.call_models(2, newer=True)
    process.flush()
    process.shutdown()
