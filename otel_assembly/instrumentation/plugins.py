"""What the plug-ins of all frameworks share: the assembler they run, and the conversations they remember."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError, HaltedError
from otel_assembly.forks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.policies.base import AssemblyPolicy

#: Conversations of one plug-in that are remembered by an id; beyond it the least recently used begin anew.
CONVERSATIONS: Final = 1_000
#: Alerts of one conversation that a plug-in holds for the model.
ALERTS: Final = 100

C = TypeVar("C")


def assembler_of(
    plugin: str, policies: Sequence[AssemblyPolicy] | Assembler, *, name: str | None, model: str | None
) -> Assembler:
    """The assembler that a plug-in is given, or one of the policies that it is given.

    Raises:
        ConfigurationError: A name or a model is given beside an `Assembler`, which has its own.
    """
    if not isinstance(policies, Assembler):
        return Assembler(policies, name=name, model=model)
    if name is not None or model is not None:
        raise ConfigurationError(f"{plugin} takes its name and model from the Assembler it is given")
    return policies


async def to_send(assembler: Assembler, prompts: Sequence[str], events: Sequence[Any], context: Context) -> Assembly:
    """The assembly of what is to be sent to a model.

    Raises:
        HaltedError: Nothing is to be sent, whatever the assembler does with a halt: the conversation is halted.
    """
    assembly = await assembler.assemble(prompts, events, context)
    if assembly.halt is not None:
        halted = HaltedError(assembly.halt.reason, assembly.halt.source)
        halted.assembly = assembly
        raise halted
    return assembly


class Conversations(Generic[C]):
    """The conversations of one plug-in, by their ids."""

    def __init__(self, make: Callable[[str], C]) -> None:
        self._make = make
        self._lock = new_lock()
        self._held: OrderedDict[str, C] = OrderedDict()

    def of(self, conversation: str) -> C:
        """The conversation of this id, or a new one."""
        with self._lock:
            held = self._held.get(conversation)
            if held is None:
                held = self._held[conversation] = self._make(conversation)
                while len(self._held) > CONVERSATIONS:
                    self._held.popitem(last=False)
            else:
                self._held.move_to_end(conversation)
            return held
