"""`AssemblerMiddleware`: runs a chain of policies before each model call of an agent, as in AG2."""

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

#: The share of a refused prompt's tokens that the retry may use at most.
RETRY_SHARE: Final = 0.8


@dataclass(slots=True)
class ModelCall:
    """One model call of an agent while it is prepared and sent.

    Attributes:
        context: The session's context.
        prompts: The system prompts to send. A chain of policies replaces them for the inner middlewares.
        by_chain: The assemblies of each chain, by ``id()`` of its middleware, so that repeated calls can reuse them.
    """

    context: Context
    prompts: list[str]
    by_chain: dict[int, _ChainAssemblies] = field(default_factory=dict)

    def assemblies(self) -> list[Assembly]:
        """Return the latest assembly of each chain, in the order in which the chains started."""
        return [chain.assemblies[-1].assembly for chain in self.by_chain.values() if chain.assemblies]


@dataclass(frozen=True, slots=True)
class _ChainAssemblies:
    """The assemblies (selected prompts and messages) that one chain of policies created for one model call.

    Attributes:
        lock: Locked while the chain runs, so that concurrent calls share one assembly.
        assemblies: The assemblies with their inputs, the oldest first.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    assemblies: list[_CachedAssembly] = field(default_factory=list)


class _CachedAssembly(NamedTuple):
    """An assembly and its inputs.

    Attributes:
        settings: The model, the share of the budget, the tools and the prompts.
        messages: The messages.
        length: The number of messages when the chain ran; the list may have grown since.
        assembly: The assembly.
    """

    settings: tuple[Any, ...]
    messages: Sequence[Any]
    length: int
    assembly: Assembly


MODEL_CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_model_call", default=None)


class AssemblerMiddleware(MiddlewareBase):
    """Runs a chain of policies before each model call and sends the chain's output; the history is not changed.

    ``Agent(assembly=…)`` adds this middleware as the innermost one, so that it receives the changes of all other
    middlewares. Put it first in ``middlewares`` to make it the outermost one, as in AG2: the other middlewares then
    receive its output.

    Repeated or concurrent calls with the same model and messages share one assembly. If the provider refuses a prompt
    as too long, the chain runs once more with 0.8 of the prompt's tokens as its limit. If that fails too, the
    provider's error is raised. Each refused prompt is recorded as an overflow with the cause ``provider``.

    Args:
        policies: The chain of policies, or an `Assembler`.

    Raises:
        ConfigurationError: The chain is invalid.
    """

    def __init__(self, policies: Assembler | Sequence[PolicyLike]) -> None:
        self.assembler = policies if isinstance(policies, Assembler) else Assembler(policies)

    def validate_order(self) -> list[str]:
        """Check the order of the policies; return one sentence per problem, or an empty list."""
        return validate_order(self.assembler.policies)

    def reducing_first(self, policies: Sequence[PolicyLike]) -> Self:
        """Return a copy whose chain runs these policies before its first policy that removes messages.

        Raises:
            ConfigurationError: An entry is not a policy.
        """
        middleware = copy.copy(self)
        middleware.assembler = self.assembler.reducing_first(policies)
        return middleware

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> Any:
        """Run the chain, then call the model with its output."""
        call = MODEL_CALL.get()
        if call is None:
            raise ConfigurationError(
                "AssemblerMiddleware runs in otel_assembly.Agent, not in an agent of "
                f"{type(agent).__module__}; use the plug-in of that framework, in otel_assembly.instrumentation"
            )
        context = copy.copy(call.context)
        model = input_kwargs["current_model"]
        context.model, context.tools = model.model, tuple(input_kwargs["tools"])
        # Behind a gateway, the model's name does not identify the provider.
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
        settings = (context.model, context.budget_ratio, context.tools, call.prompts)
        chain = call.by_chain.setdefault(id(self), _ChainAssemblies())
        async with chain.lock:
            for cached in chain.assemblies:
                if cached.settings == settings and _has_messages(cached, messages):
                    return cached.assembly
            assembly = await self.assembler.assemble(call.prompts, messages, context)
            chain.assemblies.append(_CachedAssembly(settings, messages, len(messages), assembly))
            return assembly


async def _send(call: ModelCall, assembly: Assembly, next_handler: NextHandler) -> Any:
    """Call the next handler with the assembly's messages, and with its prompts for this call only.

    Concurrent calls with other prompts, as in a vote of several models, are not affected.
    """
    token = MODEL_CALL.set(ModelCall(call.context, assembly.prompts, call.by_chain))
    try:
        return await next_handler(messages=assembly.events)
    finally:
        MODEL_CALL.reset(token)


def _has_messages(cached: _CachedAssembly, messages: Sequence[Any]) -> bool:
    """Return True if the assembly was created from exactly these message objects."""
    if len(messages) != cached.length:
        return False
    return cached.messages is messages or all(map(operator.is_, cached.messages, messages))
