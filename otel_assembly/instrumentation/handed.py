"""What is handed to middleware that stands around a model's client, and what comes of it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.splicing import found, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.model_call import ModelCall


@dataclass(slots=True)
class Handed:
    """What is handed to middleware.

    Attributes:
        client: Who hands it over.
        messages: The messages.
        prompts: The system prompts.
        plugin: What a plug-in of ours has made an assembly of, what came out of it, and the prompts with it.
    """

    client: Any
    messages: Sequence[Any]
    prompts: Sequence[str]
    plugin: tuple[Sequence[Any], Sequence[Any], Sequence[str]] | None = None

    def hands(self, instrumentation: Instrumentation) -> BoundRun:
        """The function in which middleware has it, as a `Run` for `within`."""
        return BoundRun(instrumentation, None, {HANDED: self})

    def handed_on(self, call: ModelCall, messages: Sequence[Any], prompts: Sequence[str], policy: str) -> None:
        """What middleware hands on in the end: what it edited, in front of a plug-in of ours or behind, is a step.

        Args:
            call: The call that comes of it.
            messages: The messages.
            prompts: The system prompts.
            policy: The name of the step.
        """
        before, prompts_before = self.messages, self.prompts
        call.came(before, prompts=prompts_before)
        if self.plugin is not None:
            seen, out, prompts_before = self.plugin
            _edited(call, policy, before, seen)
            call.by_plugin(out, prompts=prompts_before)
            before = out
        _edited(call, policy, before, messages, prompts if prompts != prompts_before else None)


#: What the client whose middleware runs here has handed to it.
HANDED: Final[ContextVar[Handed | None]] = ContextVar("otel_assembly_handed", default=None)


def handed_by(client: Any, messages: Sequence[Any], prompts: Sequence[str]) -> Handed:
    """What this client has handed to its middleware; where there is none, that is what it is called with."""
    handed = HANDED.get()
    return handed if handed is not None and handed.client is client else Handed(client, messages, prompts)


def _edited(
    call: ModelCall, policy: str, before: Sequence[Any], after: Sequence[Any], prompts: Sequence[str] | None = None
) -> None:
    if prompts is not None or not same(before, after):
        kind = "reduction" if found(after, before) is None else "injection"
        call.reduced(policy, before, list(after), kind=kind, prompts=prompts)
