"""``make stack``: start everything, say where it answers, and stop it on Ctrl-C."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from local_stack.builds import BuildError, programs
from local_stack.stack import Stack


def main() -> int:
    """Run until Ctrl-C; 1 where a server cannot be built, does not start, or ends by itself."""
    parser = argparse.ArgumentParser(prog="make stack", description=__doc__)
    parser.add_argument("--build-only", action="store_true", help="build what is missing, and stop")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where its data is kept (default: a new folder, which goes with Ctrl-C and stays where a server died)",
    )
    arguments = parser.parse_args()
    # `kill` is as good as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = None
    try:
        found = programs()
        if arguments.build_only:
            return 0
        folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="otel-assembly-stack-"))).absolute()
        with Stack(found, folder, preferred=True) as stack:
            print(_described(stack, folder), flush=True)
            try:
                _watch(stack)
            finally:
                print("\nstopping (Jaeger takes ten seconds) ...", file=sys.stderr)
    except KeyboardInterrupt:
        if folder is not None and arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        print("stopped", file=sys.stderr)
        return 0
    except (BuildError, RuntimeError) as error:
        print(error, file=sys.stderr)
        if folder is not None:
            print(f"\nLogs and data are kept in {folder}, and go on with:", file=sys.stderr)
            print(f"  make stack STACK='--folder {folder}'", file=sys.stderr)
        return 1
    return 1


def _watch(stack: Stack) -> None:
    """Return never: wait until one of the servers ends, and raise with its name, its end and its last words."""
    while True:
        for server in stack.servers:
            if not server.running:
                raise RuntimeError(f"{server.name} {server.end}. The end of {server.log}:\n\n{server.said()}")
        time.sleep(1)


def _program() -> str:
    """How to call ours from here: as it lies in this environment, which need not be on the path."""
    installed = Path(sys.executable).parent / "otel-assembly"
    if not installed.exists():
        return "otel-assembly"
    return str(installed.relative_to(Path.cwd()) if installed.is_relative_to(Path.cwd()) else installed)


def _described(stack: Stack, folder: Path) -> str:
    collector, jaeger = stack.collector, stack.jaeger
    program = _program()
    return f"""
The stack runs (Ctrl-C stops it; logs and data are in {folder}):

  OTLP, for your agents   {collector.otlp_http} (HTTP), http://{collector.otlp_grpc} (gRPC)
  Jaeger                  {jaeger.url}/api/v3/services
  Prometheus              {stack.prometheus.url}/api/v1/alerts
  Alertmanager            http://{stack.alertmanager.address}/api/v2/alerts

These are built from Go modules, which hold no web pages: their APIs answer, and
`{program} view --jaeger {jaeger.url}` draws a page. For the pages of Jaeger, Prometheus and Grafana:
docker compose -f collectors/compose.yaml up

Something to look at, from another terminal (the first prints the alerts that would wake somebody, as they come):

  python examples/alert_receiver.py
  OTEL_EXPORTER_OTLP_ENDPOINT=http://{collector.otlp_grpc} OTEL_METRICS_EXPORTER=otlp {program} demo
  OTEL_EXPORTER_OTLP_ENDPOINT=http://{collector.otlp_grpc} {program} doctor --jaeger {jaeger.url} \\
      --prometheus {stack.prometheus.url} --alertmanager http://{stack.alertmanager.address}
"""


if __name__ == "__main__":
    sys.exit(main())
