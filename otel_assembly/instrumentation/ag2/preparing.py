"""A model call of an agent, while its middlewares prepare it: what reduces on the way are steps of one assembly.

Each middleware stands around the next, and the model's client stands innermost. The assembly begins with the first that
reduces, and ends before the call goes on to where nothing reduces any more.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.ag2.known import begin, tools_of
from otel_assembly.instrumentation.wrapping import bound, told_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly

#: AG2's middlewares that reduce, by the name of the class.
_REDUCES: Final = frozenset({"AssemblerMiddleware", "_HistoryLimiter", "_TokenLimiter"})
#: What no hook explains of what goes on from one middleware to the next.
_FRAMEWORK: Final = "framework"


class ModelCall:
    """One model call, and what was told of it so far."""

    __slots__ = ("_context", "_instrumentation", "assembly", "over", "plugins")

    def __init__(self, instrumentation: Instrumentation, context: Any) -> None:
        self._instrumentation = instrumentation
        self._context = context
        self.assembly: ObservedAssembly | None = None
        #: How many plug-ins of ours stood in it: what comes after one has its output for a conversation.
        self.plugins = 0
        #: Whether the model was called: a middleware that calls it again sends what it sent.
        self.over = False

    def serves(self, context: Any) -> bool:
        """Whether it is the call that is prepared in this context."""
        return self._context is context

    def goes_on(self, prompts: Sequence[str], events: Sequence[Any], call_next: Any) -> ObservedAssembly | None:
        """The assembly, for what takes in these; a new one for the first. None where nothing is told."""
        if self.over:
            return None
        assembly = self.assembly
        if assembly is None:
            self.assembly = assembly = begin(
                self._instrumentation,
                self._context,
                events,
                stage=f"after {self.plugins}" if self.plugins else "",
                prompts=prompts,
                tools=tools_of(call_next),
            )
        elif assembly.recording.measured:
            with told_whole(assembly):
                _arrive(assembly, prompts, events)
        return assembly

    async def call(self, call_next: Callable[..., Any], events: Any, context: Any) -> Any:
        """Go on to the next middleware, or to the model in the caller's context, once the assembly is done."""
        if not _reduces_further(call_next):
            self.end()
            self.over = True
        with bound(CALL, self):
            return await call_next(events, context)

    def plugin(self) -> None:
        """A plug-in of ours makes an assembly itself: the one before it ends, what follows begins another."""
        self.end()
        self.plugins += 1

    def end(self, error: BaseException | None = None) -> None:
        """What is open ends."""
        assembly, self.assembly = self.assembly, None
        if assembly is not None:
            assembly.end(error)


CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_ag2_call", default=None)


def model_call(instrumentation: Instrumentation, context: Any) -> tuple[ModelCall, bool]:
    """The model call that is prepared here, and whether it begins with this."""
    call = CALL.get()
    if call is not None and call.serves(context):
        return call, False
    return ModelCall(instrumentation, context), True


def _arrive(assembly: ObservedAssembly, prompts: Sequence[str], events: Sequence[Any]) -> None:
    """A middleware in between may have made others of them."""
    steps = assembly.record.steps
    known = steps[-1].prompts_out if steps else assembly.record.prompts_in
    same = len(events) == len(assembly.events) and all(map(is_, events, assembly.events))
    if not same or list(prompts) != list(known):
        with assembly.step(_FRAMEWORK) as step:
            step.out(events, prompts=prompts)


def _reduces_further(call_next: Any) -> bool:
    """Whether what reduces stands between here and the model."""
    while isinstance(call_next, partial):
        owner = getattr(call_next.func, "__self__", None)
        if owner is not None and any(kind.__name__ in _REDUCES for kind in type(owner).__mro__):
            return True
        call_next = call_next.args[0] if call_next.args else None
    return False
