"""Programs and applications that assemble 41 turns, and are ended by SIGTERM.

``python flush_programs.py SETUP END``: SETUP says how telemetry is set up, END what the program does then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import warnings

import otel_assembly as oa
from otel_assembly.telemetry import FlushOnShutdown, flush_on_sigterm

TURNS = 41
assembler = oa.Assembler([oa.AlertPolicy(), oa.ConversationPolicy(), oa.SlidingWindowPolicy(10)], model="gpt-4o")
tight = oa.Assembler([oa.ConversationPolicy(), oa.BudgetPolicy(window=20, output_reserve=1)], model="gpt-4o")


def configure(exporter=None):
    from opentelemetry import metrics, trace
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    processor = BatchSpanProcessor(exporter or OTLPSpanExporter(insecure=True))
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    if exporter is None:
        metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(insecure=True))]))
    return processor


async def turn(number):
    """One turn, and with the last of them an overflow, which is to page somebody."""
    messages = [{"role": "user", "content": f"turn {number}"}]
    await assembler.assemble(["You are support."], messages, oa.Context(agent_name="desk", conversation_id="c"))


async def overflow():
    try:
        await tight.assemble(["word " * 50], [{"role": "user", "content": "hi"}], oa.Context(agent_name="desk"))
    except oa.ContextOverflowError:
        return


async def turns():
    for number in range(TURNS - 1):
        await turn(number)
    await overflow()


if os.environ.get("CONFIGURE"):
    configure()

asked = 0


async def one_more():
    global asked
    asked += 1
    await (turn(asked) if asked % TURNS else overflow())


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{step}"
            await send({"type": f"lifespan.{step}.complete"})
        return
    await one_more()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"fine"})


async def http_only(scope, receive, send):
    assert scope["type"] == "http"
    await app(scope, receive, send)


flushing = FlushOnShutdown(app)
without_lifespan = FlushOnShutdown(http_only)


def wsgi(environ, start):
    asyncio.run(one_more())
    start("200 OK", [("Content-Length", "4")])
    return [b"fine"]


class Hanging:
    """An exporter whose Collector does not answer."""

    def export(self, spans):
        print("exporting", flush=True)
        time.sleep(3600)

    def shutdown(self):
        pass

    def force_flush(self, timeout_millis=0):
        return True


def sleep():
    print("ready", flush=True)
    while True:
        time.sleep(3600)


def handler(said):
    def handle(number, frame):
        print(said, flush=True)
        raise SystemExit(0)

    return handle


def exits(number, frame):
    sys.exit(3)


async def until_sigterm():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print("ready", flush=True)
    await ended.wait()
    print("asyncio after", flush=True)


def fork():
    from opentelemetry import trace

    ready, told = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12: threads are running
        pid = os.fork()
    if pid == 0:
        asyncio.run(turns())
        os.write(told, b"1")
        while True:
            time.sleep(3600)
    os.read(ready, 1)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    print("ready", flush=True)
    trace.get_tracer_provider().force_flush()
    os._exit(os.WTERMSIG(status))


def main(setup, end):
    if end == "handler before":
        signal.signal(signal.SIGTERM, handler(end))
    elif end == "exits before":
        signal.signal(signal.SIGTERM, exits)
    elif end == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if setup == "configured":
        configure()
        assert flush_on_sigterm(60.0) is (end != "ignores")
        assert flush_on_sigterm(30.0) is (end != "ignores")  # a second call adds no second handler
    elif setup.startswith("hanging"):
        configure(Hanging())
        flush_on_sigterm(0.5 if setup == "hanging" else 3600)
    elif setup == "locked":
        spans = configure()
        flush_on_sigterm(0.5)
    asyncio.run(turns())
    if end == "uses default after":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if end == "asyncio after":
        asyncio.run(until_sigterm())
    elif end == "forks":
        fork()
    elif end == "ignores":
        print("ready", flush=True)
        signal.sigtimedwait([signal.SIGUSR1], 0.2)
        print("still here", flush=True)
        sleep()
    elif end == "holds the lock":
        # As if the signal had come in the middle of an export: the thread that handles it holds the lock.
        with spans._batch_processor._export_lock:
            print("ready", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(3600)
    else:
        sleep()


if __name__ == "__main__":
    main(*sys.argv[1:])
