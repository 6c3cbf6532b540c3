"""`AssemblerMiddleware`: a chain of policies that decides what a model call of an agent is sent (as in AG2)."""

from __future__ import annotations

import asyncio
import copy
import operator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError, ContextOverflowError, ModelContextLengthError
from otel_assembly.policies import validate_order
from otel_assembly.runtime.middleware import MiddlewareBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.policies.base import PolicyLike
    from otel_assembly.runtime.middleware import NextHandler

#: How much of a prompt that the provider has refused as too long the next one takes, at most.
RETRY_SHARE: Final = 0.8


@dataclass(slots=True)
class ModelCall:
    """One model call of an agent while it is prepared and sent.

    Attributes:
        context: The session's.
        prompts: The system prompts that are sent; a chain swaps them while what it wraps runs.
        made: What each chain made of what, so that a retry need not make it again.
    """

    context: Context
    prompts: list[str]
    made: dict[int, _MadeByChain] = field(default_factory=dict)

    def assemblies(self) -> list[Assembly]:
        """The newest of each chain that has made one, in the order in which they began."""
        return [made.assemblies[-1].assembly for made in self.made.values() if made.assemblies]


@dataclass(frozen=True, slots=True)
class _MadeByChain:
    """What one chain made for one model call; held while it makes more, so that calls at once are sent one assembly."""

    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    assemblies: list[_Made] = field(default_factory=list)


class _Made(NamedTuple):
    """An assembly, and what it was asked for: the model, the share of the budget, the tools, the prompts."""

    asked: tuple[Any, ...]
    messages: Sequence[Any]
    length: int
    assembly: Assembly


MODEL_CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_model_call", default=None)


class AssemblerMiddleware(MiddlewareBase):
    """Runs a chain of policies before a model call, and sends what it gives; afterwards all is as it was.

    ``Agent(assembly=…)`` is this, as the innermost of the agent's middlewares: what others change, it sees. Put one
    first into ``middlewares`` to have it outermost, as in AG2: then others see what it gave.

    Calls with the same model and the same messages, one after the other or at once, are sent the same assembly. Where
    the provider refuses a prompt as too long, the chain is run once more for 0.8 of its tokens; if that cannot be, or
    is refused too, the provider's error comes through. Each refusal is an overflow, cause ``provider``.

    Args:
        policies: The chain, or an `Assembler` with settings of its own.

    Raises:
        ConfigurationError: The chain cannot work.
    """

    def __init__(self, policies: Assembler | Sequence[PolicyLike]) -> None:
        self.assembler = policies if isinstance(policies, Assembler) else Assembler(policies)

    def validate_order(self) -> list[str]:
        """What is wrong with the order of the chain, a sentence each; empty where nothing is."""
        return validate_order(self.assembler.policies)

    def reducing_first(self, policies: Sequence[PolicyLike]) -> Self:
        """This middleware with policies in front of whatever reduces in its chain.

        Raises:
            ConfigurationError: One of them is no policy.
        """
        own = copy.copy(self)
        own.assembler = self.assembler.reducing_first(policies)
        return own

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> Any:
        """Assemble, and call the model with that."""
        call = MODEL_CALL.get()
        if call is None:
            raise ConfigurationError(
                "AssemblerMiddleware runs in otel_assembly.Agent, not in an agent of "
                f"{type(agent).__module__}; use the plug-in of that framework, in otel_assembly.instrumentation"
            )
        context = copy.copy(call.context)
        model = input_kwargs["current_model"]
        context.model, context.tools = model.model, tuple(input_kwargs["tools"])
        # The name of a model behind a gateway says nothing of the provider whose rules its messages have to obey.
        context.provider = getattr(model, "provider", None)
        assembly = await self._assembly(call, context, input_kwargs["messages"])
        try:
            return await _send(call, assembly, next_handler)
        except ModelContextLengthError as error:
            self.assembler.observe_refusal(error, context)
            if not assembly.totals.budget:
                raise
            context = context.with_budget_ratio(assembly.ratio_for_less(RETRY_SHARE))
            try:
                assembly = await self._assembly(call, context, input_kwargs["messages"])
            except ContextOverflowError:
                raise error from None
        try:
            return await _send(call, assembly, next_handler)
        except ModelContextLengthError as error:
            self.assembler.observe_refusal(error, context)
            raise

    async def _assembly(self, call: ModelCall, context: Context, messages: Sequence[Any]) -> Assembly:
        asked = (context.model, context.budget_ratio, context.tools, call.prompts)
        made = call.made.setdefault(id(self), _MadeByChain())
        async with made.making:
            for one in made.assemblies:
                if one.asked == asked and _same(one, messages):
                    return one.assembly
            assembly = await self.assembler.assemble(call.prompts, messages, context)
            made.assemblies.append(_Made(asked, messages, len(messages), assembly))
            return assembly


async def _send(call: ModelCall, assembly: Assembly, next_handler: NextHandler) -> Any:
    """Call what is behind with what was assembled; calls that run at once, as in a vote, each see their own."""
    token = MODEL_CALL.set(ModelCall(call.context, assembly.prompts, call.made))
    try:
        return await next_handler(messages=assembly.events)
    finally:
        MODEL_CALL.reset(token)


def _same(made: _Made, messages: Sequence[Any]) -> bool:
    """Whether these are the messages that it was made of: a history has grown since, or they are the very objects."""
    if len(messages) != made.length:
        return False
    return made.messages is messages or all(map(operator.is_, made.messages, messages))
