"""What is queued is exported before a process ends by SIGTERM: a plain program, servers, and handlers of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_assembly import ConfigurationError
from otel_assembly.telemetry import FlushOnShutdown, flush, flush_on_sigterm

HERE = Path(__file__).parent
PROGRAM = str(HERE / "flush_programs.py")
TURNS = 41
INSTRUMENTED = [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable]

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no signals of POSIX here")


@contextmanager
def process(receiver, *arguments, **variables):
    """A process that exports to the receiver once an hour, unless it is told to flush."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env = clean | {
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
        **variables,
    }
    pipe = subprocess.PIPE
    command = arguments if arguments[0] in INSTRUMENTED else [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def ended(started, *signals):
    """Send signals once the process is ready; how it ended, and what it wrote after that."""
    assert started.stdout.readline() == "ready\n", started.communicate()
    for number in signals:
        started.send_signal(number)
    said, errors = started.communicate()
    return started.returncode, said, errors


def turns(receiver):
    return sum(span.name == "assemble_context" for span in receiver.spans())


def counted(receiver):
    """The overflows that were exported: what pages somebody."""
    metric = receiver.metrics().get("assembly.budget.overflows")
    return None if metric is None else sum(point.as_int for point in metric.sum.data_points)


# With a call, the handler of another that was installed before shows the same.
@pytest.mark.parametrize("by", ["the variable", pytest.param("a call", marks=pytest.mark.slow)])
def test_a_plain_process_exports_its_turns_and_ends_by_the_signal(receiver, by):
    before = [] if by == "a call" else INSTRUMENTED
    variables = {} if by == "a call" else {"OTEL_ASSEMBLY_FLUSH_ON_SIGTERM": "true"}
    kind = "configured" if by == "a call" else "instrumented"
    with process(receiver, *before, PROGRAM, kind, "sleep", **variables) as started:
        assert ended(started, signal.SIGTERM) == (-signal.SIGTERM, "", "")
    assert (turns(receiver), counted(receiver)) == (TURNS, 1)


def test_without_the_variable_nothing_changes(receiver):
    with process(receiver, *INSTRUMENTED, PROGRAM, "instrumented", "sleep") as started:
        assert ended(started, signal.SIGTERM) == (-signal.SIGTERM, "", "")
    assert turns(receiver) == 0


@pytest.mark.parametrize(
    ("kind", "said", "code"),
    [
        ("handler before", "handler before\n", 0),
        pytest.param("exits before", "", 3, marks=pytest.mark.slow),
        ("asyncio after", "asyncio after\n", 0),
        pytest.param("uses default after", "", -signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_handlers_of_others_do_what_they_did(receiver, kind, said, code):
    """A handler that was there is called; one that is installed later takes the signal, and the exit exports."""
    with process(receiver, PROGRAM, "configured", kind) as started:
        assert ended(started, signal.SIGTERM) == (code, said, "")
    assert turns(receiver) == (0 if kind == "uses default after" else TURNS)


def test_a_signal_that_is_ignored_stays_ignored(receiver):
    with process(receiver, PROGRAM, "configured", "ignores") as started:
        assert started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGTERM)
        assert started.stdout.readline() == "still here\n"
        assert turns(receiver) == 0


def test_a_forked_child_exports_what_it_did(receiver):
    with process(receiver, PROGRAM, "configured", "forks") as started:
        assert ended(started) == (signal.SIGTERM, "", "")  # what the child ended by
    assert turns(receiver) == 2 * TURNS


def test_an_export_that_hangs_holds_the_process_up_for_no_longer_than_told(receiver):
    with process(receiver, PROGRAM, "hanging", "sleep") as started:
        code, _, errors = ended(started, signal.SIGTERM)
    assert code == -signal.SIGTERM
    assert "telemetry was not exported completely before the process ended by SIGTERM" in errors


def test_a_second_signal_does_not_wait_for_the_export(receiver):
    with process(receiver, PROGRAM, "hanging for ever", "sleep") as started:
        assert started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGTERM)
        assert started.stdout.readline() == "exporting\n"
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == -signal.SIGTERM


def test_a_signal_that_finds_the_main_thread_inside_the_sdk_s_lock_ends_the_process(receiver):
    with process(receiver, PROGRAM, "locked", "holds the lock") as started:
        assert ended(started)[0] == -signal.SIGTERM


def test_only_the_main_thread_can_install_it(caplog):
    found = []
    thread = threading.Thread(target=lambda: found.append(flush_on_sigterm()))
    thread.start()
    thread.join()
    assert found == [False]
    assert "only the main thread" in caplog.text


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_an_export_takes_time(seconds):
    with pytest.raises(ConfigurationError, match="seconds"):
        flush_on_sigterm(seconds)
    with pytest.raises(ConfigurationError, match="seconds"):
        FlushOnShutdown(lifespan, seconds=seconds)


def test_with_nothing_to_flush_flush_returns_true():
    assert flush(0.1) is True


# --- servers


def answered(started, address_line="running on http://"):
    """The address that a server prints."""
    for line in started.stderr:
        if address_line in line.lower():
            return line.lower().partition("http://")[2].split()[0].rstrip("/")
    raise AssertionError(started.communicate())


def asked(address, count=TURNS):
    from urllib.request import urlopen

    for _ in range(count):
        with urlopen(f"http://{address}/") as response:
            response.read()


@pytest.mark.parametrize(
    "by",
    [
        "the variable",
        "the middleware",
        pytest.param("the middleware around no lifespan", marks=pytest.mark.slow),
    ],
)
def test_uvicorn_exports_its_turns(receiver, by):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    app = {"the variable": "app", "the middleware": "flushing", "the middleware around no lifespan": "without_lifespan"}
    before = INSTRUMENTED if by == "the variable" else []
    variables = {"OTEL_ASSEMBLY_FLUSH_ON_SIGTERM": "30"} if by == "the variable" else {"CONFIGURE": "1"}
    command = [*before, "-m", "uvicorn", "--port", "0", f"flush_programs:{app[by]}"]
    with process(receiver, *command, **variables) as started:
        asked(answered(started))
        started.send_signal(signal.SIGTERM)
        started.communicate()
        assert started.returncode == -signal.SIGTERM
    assert (turns(receiver), counted(receiver)) == (TURNS, 1)


@pytest.mark.parametrize(
    "preload", [pytest.param([], id="own", marks=pytest.mark.slow), pytest.param(["--preload"], id="preloaded")]
)
def test_gunicorn_exports_its_turns_without_more(receiver, preload):
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    command = ["-m", "gunicorn", "--bind", "127.0.0.1:0", "--workers", "2", *preload, "flush_programs:wsgi"]
    with process(receiver, *INSTRUMENTED, *command) as started:
        asked(answered(started, "listening at: http://"))
        started.send_signal(signal.SIGTERM)
        started.communicate()
        assert started.returncode == 0
    assert turns(receiver) == TURNS
    assert counted(receiver) <= 1  # a worker exports its counter after the last turn, if it answered all of them


async def lifespan(app, *types):
    """Run an application's lifespan; the messages that it sent."""
    given = [{"type": f"lifespan.{kind}"} for kind in types]
    sent = []

    async def receive():
        return given.pop(0)

    async def send(message):
        sent.append(message["type"].removeprefix("lifespan."))

    await app({"type": "lifespan", "state": {}}, receive, send)
    return sent


async def test_an_application_that_fails_to_start_fails_as_without_the_middleware():
    async def fails(scope, receive, send):
        await receive()
        raise RuntimeError("no database")

    with pytest.raises(RuntimeError, match="no database"):
        await lifespan(FlushOnShutdown(fails), "startup")


async def test_an_application_without_a_lifespan_is_answered_for():
    async def http_only(scope, receive, send):
        assert scope["type"] == "http"

    assert await lifespan(FlushOnShutdown(http_only), "startup", "shutdown") == [
        "startup.complete",
        "shutdown.complete",
    ]


async def test_other_connections_go_to_the_application_as_they_are():
    seen = []

    async def app(*given):
        seen.append(given)

    scope = {"type": "http"}
    await FlushOnShutdown(app)(scope, "receive", "send")
    assert seen == [(scope, "receive", "send")]
    assert seen[0][0] is scope
