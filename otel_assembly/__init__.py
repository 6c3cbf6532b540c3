"""otel-assembly: see, bound and explain what an agent's model gets to see, through OpenTelemetry."""

from otel_assembly import chat as _chat  # registers how chat messages are read
from otel_assembly._version import __version__
from otel_assembly.assembler import Assembler
from otel_assembly.assembly import Assembly
from otel_assembly.context import Context
from otel_assembly.decision import Decision, DecisionOutcome, DecisionReason, Outcome, Overflow, Verdict
from otel_assembly.events import *  # noqa: F403
from otel_assembly.history import History
from otel_assembly.policies import *  # noqa: F403
