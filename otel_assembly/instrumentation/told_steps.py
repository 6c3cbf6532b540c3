"""What was said of the steps of a model call, kept so that it can be said again.

A model that is sent the same once more, as a retry does, has the same steps; and messages that turn out to have stood
around those that were reduced belong into each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.splicing import widened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_assembly.observe.assembly import ObservedStep

#: What is said of a step once, however often a model is sent what it let out.
_ONCE: Final = frozenset({"alerts", "halts"})


@dataclass(slots=True)
class ToldStep:
    """A step of a model call, and what was said of it.

    Attributes:
        policy: The policy's name.
        kind: ``reduction`` or ``injection``; None where that is not known.
        config: Its settings.
        step: Its step in the assembly that is open, or was the last.
        events: All messages of the call, as it left them.
        prompts: The system prompts, where it changed them.
        said: What else `ObservedStep.out` is told.
    """

    policy: str
    kind: str | None
    config: Mapping[str, Any]
    step: ObservedStep
    events: list[Any]
    prompts: Sequence[str] | None
    said: Mapping[str, Any]

    def tell(self) -> None:
        """The step is done: it ends, unless whoever opened it has ended it."""
        if not self.step.entered:
            with self.step:
                pass
        self.step.out(self.events, prompts=self.prompts, **self.said)

    def again(self, step: ObservedStep) -> ToldStep:
        """The same, as a step of the next assembly."""
        step.beside = self.step.beside
        return replace(self, step=step, said={name: value for name, value in self.said.items() if name not in _ONCE})

    def widen(self, reduced: Sequence[Any], gaps: Sequence[list[Any]]) -> None:
        """The framework held more: what stands in the gaps between these messages, and around them."""
        self.events = self.step.events = widened(self.events, reduced, gaps)
        self.step.beside = [*self.step.beside, *(one for gap in gaps for one in gap)]


def said_of(said: Mapping[str, Any], known: Mapping[int, Any]) -> dict[str, Any]:
    """What is said of copies, said of the messages themselves, by the identity of the copies."""
    verdicts = [
        replace(verdict, events=[known.get(id(event), event) for event in verdict.events])
        for verdict in said.get("verdicts", ())
    ]
    return {**said, **({"verdicts": verdicts} if verdicts else {})}
