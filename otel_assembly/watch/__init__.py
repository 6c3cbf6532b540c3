"""Receive OTLP over HTTP and show assemblies on a live page, optionally while a command runs."""

from otel_assembly.watch.application import TOKEN_HEADER, application
from otel_assembly.watch.child import Child, ChildError, PythonProgram, end_like, python_program
from otel_assembly.watch.environment import child_environment
from otel_assembly.watch.feed import Feed, PageEvent
from otel_assembly.watch.forward import Forwarder
from otel_assembly.watch.server import WatchServer, listen

__all__ = [
    "TOKEN_HEADER",
    "Child",
    "ChildError",
    "Feed",
    "Forwarder",
    "PageEvent",
    "PythonProgram",
    "WatchServer",
    "application",
    "child_environment",
    "end_like",
    "listen",
    "python_program",
]
