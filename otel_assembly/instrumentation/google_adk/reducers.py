"""What is done to a request that is made of a session: by tools, by plugins, and by an agent's own callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.bound_runs import BoundRun
from otel_assembly.instrumentation.google_adk.calls import CALLS, given
from otel_assembly.instrumentation.model_call import CALL
from otel_assembly.instrumentation.reducers import is_ours, policy_name
from otel_assembly.instrumentation.reductions import Reducer, reducer
from otel_assembly.instrumentation.runs import within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation

_PACKAGES: Final = ("google.adk",)


def _filters(plugin: Any) -> bool:
    return policy_name(plugin, _PACKAGES, "Plugin") == "context_filter"


def _settings(plugin: Any) -> Mapping[str, Any]:
    """What a filter was made with."""
    held = {name: getattr(plugin, f"_{name}", None) for name in ("num_invocations_to_keep", "remove_amount")}
    return {name: value for name, value in held.items() if value is not None} if _filters(plugin) else {}


#: What a plugin does to a request; one of ours tells itself what it does.
plugin: Final = reducer(
    Reducer(
        lambda _, *, llm_request, **__: given(llm_request),
        policy=lambda plugin: policy_name(plugin, _PACKAGES, "Plugin"),
        kind=lambda plugin: "reduction" if _filters(plugin) else None,
        config=_settings,
        by=lambda plugin, **_: plugin if CALL.get() is not None and not is_ours(plugin) else None,
    )
)


def _callbacks(_: Any, invocation: Any, *__: Any, **___: Any) -> str:
    """The name of an agent's callback, where it has one of them that has one."""
    found = list(getattr(invocation.agent, "canonical_before_model_callbacks", ()))
    name = policy_name(found[0], ()) if len(found) == 1 else "<several>"
    return "before_model_callback" if name.startswith("<") else name


_called_back: Final = reducer(Reducer(lambda _, __, request, *___, **____: given(request), policy=_callbacks, kind=None))


def _binds(instrumentation: Instrumentation, _: Any, __: Any, request: Any, *___: Any, **____: Any) -> BoundRun | None:
    """The call that is prepared by this request, as far as that is made by now."""
    call = CALLS.of(request)
    if call is None:
        return None
    now = given(request)
    call.arrives(now.messages, prompts=now.prompts)
    return BoundRun(instrumentation, None, {CALL: call})


def called_back(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of what asks plugins, and then the agent's callbacks, before a model is called."""
    return within(_binds)(_called_back(original, instrumentation), instrumentation)


def _held(_: Any, request: Any, *__: Any, **___: Any) -> Sequence[Any] | None:
    return list(request.contents) if CALL.get() is not None else None


def adds(policy: str) -> Wrap:
    """The hook of a function that adds to a request's contents."""
    return reducer(Reducer(_held, policy=policy, kind="injection"))


instructions: Final = adds("dynamic_instruction")
model_input: Final = adds("model_input_context")
#: What a tool adds to a request before anybody has called it.
tool: Final = reducer(
    Reducer(
        lambda _, *, llm_request, **__: _held(_, llm_request),
        policy=lambda tool, **_: policy_name(tool, _PACKAGES, "Tool"),
        kind="injection",
    )
)
