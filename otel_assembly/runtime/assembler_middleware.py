"""`AssemblerMiddleware`: a chain of policies that decides what a model call of an agent is sent (as in AG2)."""

from __future__ import annotations

import copy
import operator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.assembler import Assembler
from otel_assembly.errors import ConfigurationError, ModelContextLengthError
from otel_assembly.policies import validate_order
from otel_assembly.runtime.middleware import MiddlewareBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_assembly.assembly import Assembly
    from otel_assembly.context import Context
    from otel_assembly.policies.base import PolicyLike
    from otel_assembly.runtime.middleware import NextHandler

#: The share of its budget that a chain holds once the provider has refused a prompt as too long.
RETRY_BUDGET_RATIO: Final = 0.8


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
    made: dict[int, list[_Made]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Made:
    model: str
    budget_ratio: float
    prompts: Sequence[str]
    messages: Sequence[Any]
    length: int
    tools: Sequence[Any]
    assembly: Assembly


MODEL_CALL: Final[ContextVar[ModelCall | None]] = ContextVar("otel_assembly_model_call", default=None)


class AssemblerMiddleware(MiddlewareBase):
    """Runs a chain of policies before a model call, and sends what it gives; afterwards all is as it was.

    ``Agent(assembly=…)`` is this, as the innermost of the agent's middlewares: what others change, it sees. Put one
    first into ``middlewares`` to have it outermost, as in AG2: then others see what it gave.

    A call that is made again with the same model and the same messages is sent the same assembly. Where the provider
    refuses a prompt as too long, the chain is run once more with 0.8 of its budget; if that is refused too, the error
    comes through.

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

    async def on_model_call(self, agent: Any, input_kwargs: dict[str, Any], next_handler: NextHandler) -> Any:
        """Assemble, and call the model with that."""
        call = MODEL_CALL.get()
        if call is None:
            raise ConfigurationError(
                "AssemblerMiddleware runs in otel_assembly.Agent, not in an agent of "
                f"{type(agent).__module__}; use the plug-in of that framework, in otel_assembly.instrumentation"
            )
        ratio = call.context.budget_ratio
        try:
            return await self._send(call, ratio, input_kwargs, next_handler)
        except ModelContextLengthError:
            if not self._holds_a_budget():
                raise
            return await self._send(call, ratio * RETRY_BUDGET_RATIO, input_kwargs, next_handler)

    def _holds_a_budget(self) -> bool:
        return any(policy.limit is not None and policy.limit.unit == "tokens" for policy in self._with_limits())

    def _with_limits(self) -> list[Any]:
        return [policy for policy in self.assembler.policies if getattr(policy, "limit", None) is not None]

    async def _send(self, call: ModelCall, ratio: float, given: dict[str, Any], next_handler: NextHandler) -> Any:
        assembly = await self._assembly(call, ratio, given)
        before, call.prompts = call.prompts, assembly.prompts
        try:
            return await next_handler(messages=assembly.events)
        finally:
            call.prompts = before

    async def _assembly(self, call: ModelCall, ratio: float, given: dict[str, Any]) -> Assembly:
        model, messages, tools = given["current_model"].model, given["messages"], given["tools"]
        made = call.made.setdefault(id(self), [])
        for one in made:
            if (one.model, one.budget_ratio, one.prompts, one.tools) == (model, ratio, call.prompts, tools) and _same(
                one, messages
            ):
                return one.assembly
        context = copy.copy(call.context)
        context.model, context.tools, context.budget_ratio = model, tuple(tools), ratio
        assembly = await self.assembler.assemble(call.prompts, messages, context)
        made.append(_Made(model, ratio, list(call.prompts), messages, len(messages), tools, assembly))
        return assembly


def _same(made: _Made, messages: Sequence[Any]) -> bool:
    """Whether these are the messages that it was made of: a history has grown since, or they are the very objects."""
    if len(messages) != made.length:
        return False
    return made.messages is messages or all(map(operator.is_, made.messages, messages))
