"""Hooks for chat middleware, which a client calls with the messages of a model call before it sends them.

The model call is not known before the last middleware calls the client again, so `MiddlewareInput` keeps the messages
until then.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.clients import in_client_call
from otel_assembly.instrumentation.message_alignment import locate
from otel_assembly.instrumentation.middleware_calls import MiddlewareReduction
from otel_assembly.instrumentation.model_call import ClientRequest, ModelCall
from otel_assembly.instrumentation.reductions import reducing
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_assembly.instrumentation.hooks import Wrap
    from otel_assembly.instrumentation.instrumented import Instrumentation


@dataclass(slots=True)
class MiddlewareInput:
    """The messages that a client passes to its middleware, kept until the model is called.

    Attributes:
        plugin: If a plug-in of this library ran in the middleware: its input messages, its output messages, and its
            output system prompts.
    """

    client: Any
    messages: Sequence[Any]
    prompts: Sequence[str]
    plugin: tuple[Sequence[Any], Sequence[Any], Sequence[str]] | None = None

    def record_forwarded(self, call: ModelCall, messages: Sequence[Any], prompts: Sequence[str], policy: str) -> None:
        """Record the request that the last middleware passes on; its edits are a step with the name `policy`.

        If a plug-in of this library ran, they are one step before and one after it.
        """
        before, prompts_before = self.messages, self.prompts
        call.set_input(before, prompts=prompts_before)
        if self.plugin is not None:
            plugin_input, plugin_output, plugin_prompts = self.plugin
            _record_edit(call, policy, ClientRequest(before), ClientRequest(plugin_input))
            call.replaced_by_plugin(plugin_output, prompts=plugin_prompts)
            before, prompts_before = plugin_output, plugin_prompts
        _record_edit(call, policy, ClientRequest(before, prompts_before), ClientRequest(messages, prompts))


#: The messages that a client has passed to its middleware.
MIDDLEWARE_INPUT: Final[ContextVar[MiddlewareInput | None]] = ContextVar("otel_assembly_middleware_input", default=None)


def _record_edit(call: ModelCall, policy: str, before: ClientRequest, after: ClientRequest) -> None:
    # If all earlier messages are still there, messages can only have been added.
    kind = "reduction" if locate(after.messages, before.messages) is None else "injection"
    reduction = MiddlewareReduction(call.instrumentation, StepReport(policy, before.messages, kind=kind), call=call)
    reduction.record_output(before.prompts, after)


def middleware_entry_hook(
    read_request: Callable[..., ClientRequest], attach_to_stream: Callable[[Any, Any], bool] | None = None
) -> Wrap:
    """Return a wrapper for a client's method that calls the client's middleware.

    It keeps the messages as `MiddlewareInput`, until the last middleware calls the method of `middleware_exit_hook`.
    `read_request` returns the messages and system prompts from the method's arguments.
    """

    def begin_run(instrumentation: Instrumentation, client: Any, /, *args: Any, **kwargs: Any) -> ContextBoundRun:
        request = read_request(client, *args, **kwargs)
        middleware_input = MiddlewareInput(client, request.messages, request.prompts or ())
        return ContextBoundRun(instrumentation, None, {MIDDLEWARE_INPUT: middleware_input})

    return run_hook(begin_run, attach_to_stream)


def middleware_exit_hook(
    read_request: Callable[..., ClientRequest],
    prepared_call_for: Callable[[Sequence[Any]], ModelCall | None],
    policy: str,
    attach_to_stream: Callable[[Any, Any], bool] | None = None,
) -> Wrap:
    """Return a wrapper for the client's method that the last middleware calls, and that sends the model request.

    It records the middleware's edits as a step of the model call, whose input `middleware_entry_hook` has kept. The
    hook of the client's inner method records the request and ends the assembly. Nothing is recorded inside another
    client's call or inside a reducer.

    Args:
        read_request: Returns the request from the method's arguments, with the model's window.
        prepared_call_for: Returns the model call that is prepared for the messages that the client received, if any.
        policy: The name of the step.
        attach_to_stream: See `run_hook`.
    """

    def begin_call(instrumentation: Instrumentation, client: Any, /, *args: Any, **kwargs: Any) -> ModelCall | None:
        if in_client_call() or reducing() is not None:
            return None
        request = read_request(client, *args, **kwargs)
        prompts, middleware_input = request.prompts or (), MIDDLEWARE_INPUT.get()
        if middleware_input is None or middleware_input.client is not client:  # this client has no middleware
            middleware_input = MiddlewareInput(client, request.messages, prompts)
        call = prepared_call_for(middleware_input.messages) or ModelCall(instrumentation)
        call.window = call.window or request.window
        middleware_input.record_forwarded(call, request.messages, prompts, policy)
        return call

    return run_hook(begin_call, attach_to_stream)
