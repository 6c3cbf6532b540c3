"""The context variables that all frameworks share. A framework has others for what only it knows, in its folder.

Each has the value that is right in one task or thread: a nested call sets another value, and restores the outer one.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_assembly.instrumentation.clients import ClientCall
    from otel_assembly.instrumentation.conversation import InvokingAgent
    from otel_assembly.instrumentation.model_call import ModelCall
    from otel_assembly.instrumentation.plugin import PluginConversation
    from otel_assembly.instrumentation.reductions import Reduction

#: The model call that is being prepared.
CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_model_call", default=None)
#: The reducer that runs. It may have ended, while tasks that it started run on: see `reductions.reducing`.
REDUCTION: Final[ContextVar[Reduction | None]] = ContextVar("otel_assembly_reduction", default=None)
#: The client call that runs, and the model call that was prepared when it began. A client that calls another client is
#: one call; but if an agent answers for the client, that agent's model calls are recorded separately.
CLIENT_CALL: Final[ContextVar[tuple[ClientCall, ModelCall | None] | None]] = ContextVar(
    "otel_assembly_client_called", default=None
)
#: The stream of which a step runs.
STEPPING_STREAM: Final[ContextVar[Any]] = ContextVar("otel_assembly_step", default=None)
#: The agents for which a summarizer ran outside any model call, in the current run; None outside any run.
SUMMARIZED: Final[ContextVar[list[InvokingAgent] | None]] = ContextVar("otel_assembly_summarized", default=None)
#: The call that each framework's current run prepared last; the key is the framework's `SequentialCalls`.
LAST_PREPARED: Final[ContextVar[Mapping[Any, Any]]] = ContextVar("otel_assembly_last_prepared", default={})  # noqa: B039  # never written to
#: The conversations of plug-ins with a turn that runs.
PLUGIN_TURNS: Final[ContextVar[tuple[PluginConversation, ...]]] = ContextVar("otel_assembly_turns", default=())
