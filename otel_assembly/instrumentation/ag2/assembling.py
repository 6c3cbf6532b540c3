"""`AssemblerMiddleware`: its policies, each a step of the assembly of the model call that they run for."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from wrapt import ObjectProxy

from otel_assembly.instrumentation.ag2.policies import reading
from otel_assembly.instrumentation.ag2.preparing import model_call
from otel_assembly.instrumentation.wrapping import told_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_assembly.instrumentation.ag2.preparing import ModelCall
    from otel_assembly.instrumentation.instrumentor import Instrumentation
    from otel_assembly.observe.assembler import ObservedAssembly

    _Proxy = ObjectProxy[Any]
else:
    _Proxy = ObjectProxy


def assembler(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Around `AssemblerMiddleware.on_llm_call`."""

    @wraps(original)
    async def on_llm_call(self: Any, call_next: Any, events: Any, context: Any) -> Any:
        if not instrumentation.listening():
            return await original(self, call_next, events, context)
        policies = getattr(self, "_policies", None)
        if policies is None:
            return await original(self, call_next, events, context)
        call, first = model_call(instrumentation, context)
        chain = _Chain(instrumentation, policies, call, call_next)
        try:
            result = await original(_Observed(self, chain), chain.call_next, events, context)
        except BaseException as error:
            call.end(error)
            raise
        if first:
            call.end()
        return result

    return on_llm_call


class _Observed(_Proxy):
    """A middleware that looks at its policies one by one; the middleware itself stays as it is."""

    def __init__(self, middleware: Any, policies: Iterable[Any]) -> None:
        super().__init__(middleware)
        self._self_policies = policies

    @property
    def _policies(self) -> Iterable[Any]:
        return self._self_policies


class _Chain:
    """The policies of one assembler."""

    def __init__(
        self, instrumentation: Instrumentation, policies: Iterable[Any], call: ModelCall, call_next: Callable[..., Any]
    ) -> None:
        self.instrumentation = instrumentation
        self.call = call
        self._policies = policies
        self._call_next = call_next

    def __iter__(self) -> Iterator[Any]:
        # AG2 hands out a live list: a policy that is added while the chain runs still runs.
        for policy in self._policies:
            if getattr(policy, "otel_assembly_plugin", False):
                yield _Plugin(self, policy)
            else:
                yield _Policy(self, policy)

    def assembly(self, prompts: Sequence[str], events: Sequence[Any]) -> ObservedAssembly | None:
        """The assembly that a policy that takes in these is a step of."""
        return self.call.goes_on(prompts, events, self._call_next)

    async def call_next(self, events: Any, context: Any) -> Any:
        """The next middleware, or the model."""
        return await self.call.call(self._call_next, events, context)


class _InAChain:
    """One policy of a chain, to whoever looks at it the policy itself."""

    def __init__(self, chain: _Chain, policy: Any) -> None:
        self._chain = chain
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


class _Policy(_InAChain):
    """A policy that is looked at."""

    async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
        policy, chain = self._policy, self._chain
        assembly = step = read = None
        with chain.instrumentation.contained():
            assembly = chain.assembly(prompts, events)
        if assembly is not None:
            with told_whole(assembly):
                read = reading(policy, assembly)
                step = assembly.step(read.name, kind=read.kind, config=read.config)
        if assembly is None or step is None or read is None:
            return await policy.apply(prompts, events, context)
        with step:
            result = await policy.apply(prompts, events, context)
            with told_whole(assembly):
                read.tell(step, result)
        return result


class _Plugin(_InAChain):
    """A plug-in of ours makes an assembly itself."""

    async def apply(self, prompts: Any, events: Any, context: Any) -> Any:
        self._chain.call.plugin()
        return await self._policy.apply(prompts, events, context)
