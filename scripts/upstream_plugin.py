"""A pytest plugin for the frameworks' own tests: everything is instrumented, and an SDK records it.

It counts the model calls where the framework's clients themselves begin, behind whatever we hook, and of each test
whether as many assemblies were told.
"""

from __future__ import annotations

import inspect
import json
import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import wrapt
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

import otel_assembly
from otel_assembly.instrumentation import Instrumentation, SubclassHook, TrackedRun, context_value, run_hook
from otel_assembly.instrumentation.reductions import reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from opentelemetry.sdk.trace import ReadableSpan

#: Of each framework, the classes whose methods are the calls: the module that is waited for, the class, the methods.
CLIENTS = {
    "ag2": [("ag2.config.client", "LLMClient", ("__call__",))],
    "agent_framework": [("agent_framework._clients", "BaseChatClient", ("_inner_get_response",))],
    "agentscope": [("agentscope.model._base", "ChatModelBase", ("_call_api",))],
    "autogen": [("autogen_core.models", "ChatCompletionClient", ("create", "create_stream"))],
    "haystack": [("haystack.core.component.component", "ComponentMeta", ("run", "run_async"))],
    "langchain": [
        (
            "langchain_core.language_models.chat_models",
            "BaseChatModel",
            ("_generate", "_agenerate", "_stream", "_astream"),
        )
    ],
    "openai_agents": [("agents.models.interface", "Model", ("get_response", "stream_response"))],
    "llama_index": [
        (
            "llama_index.core.base.llms.base",
            "BaseLLM",
            tuple(
                f"{twin}{stream}{answers}"
                for answers in ("chat", "complete")
                for stream in ("", "stream_")
                for twin in ("", "a")
            ),
        )
    ],
    "pydantic_ai": [("pydantic_ai.models", "Model", ("request", "request_stream"))],
    "strands": [("strands.models.model", "Model", ("stream", "structured_output"))],
    "google_adk": [("google.adk.models.base_llm", "BaseLlm", ("generate_content_async",))],
    "semantic_kernel": [
        (
            "semantic_kernel.connectors.ai.chat_completion_client_base",
            "ChatCompletionClientBase",
            ("_inner_get_chat_message_contents", "_inner_get_streaming_chat_message_contents"),
        ),
        (
            "semantic_kernel.connectors.ai.text_completion_client_base",
            "TextCompletionClientBase",
            ("_inner_get_text_contents", "_inner_get_streaming_text_contents"),
        ),
    ],
}

#: Of each framework, the classes whose clients hand on what they are given: the one behind them is the client.
HAND_ON = {
    "google_adk": {"FallbackModel"},
    "llama_index": {"StructuredLLM"},
    "haystack": {"FallbackChatGenerator"},
    "pydantic_ai": {"WrapperModel", "FallbackModel"},
}


def _generates(component: Any, messages: Any = None, *_: Any, **__: Any) -> bool:
    gives = getattr(getattr(component, "__haystack_output__", None), "_sockets_dict", {})
    return "replies" in gives and isinstance(messages, list | str) and bool(messages)


#: Of each framework that wraps more than clients alike, whether this is one that calls a model, by what it is given.
IS_CLIENT = {"haystack": _generates}


def _asks_for_a_job(model: Any, messages: Any, *_: Any, **__: Any) -> str | None:
    last = messages[-1] if messages else None
    if getattr(last, "state", "") != "suspended" or model.continuation_delay(last) is None:
        return None
    return "a job that runs at the provider is asked whether it is done"


def _asks_nothing(_: Any, *args: Any, **kwargs: Any) -> str | None:
    return None if args or kwargs.keys() & {"messages", "prompt"} else "a client refuses to be asked nothing"


#: Of each framework, why a client's call calls no model: from the client and what it is called with.
NO_CALLS = {"llama_index": _asks_nothing, "pydantic_ai": _asks_for_a_job}

#: The names of assemblies that no model is called with.
CARES = {"compaction", "aggregation"}


@dataclass
class Seen:
    """What one run of a suite came to.

    Attributes:
        assemblies: Assemblies that were told for a model call.
        calls: Model calls, those of summarisers left out.
        summaries: Model calls of summarisers, each an attempt inside of an assembly.
        untold: Of tests with more calls than assemblies, how many are missing.
        reasons: Why clients were called without that being a model call, and how often.
        failures: How often our telemetry failed.
    """

    assemblies: int = 0
    calls: int = 0
    summaries: int = 0
    failures: int = 0
    untold: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)


class Counting(SpanProcessor):
    """Counts assemblies as they end; of the care of a history, no model is called with what it comes to."""

    def on_end(self, span: ReadableSpan) -> None:
        cares = (span.attributes or {}).get("assembly.name") in CARES
        seen.assemblies += span.name == "assemble_context" and not cares


seen = Seen()
metrics = InMemoryMetricReader()
#: A client that calls another one, or itself by another method, is one call.
inside: ContextVar[Called | None] = ContextVar("inside", default=None)


class Called(TrackedRun):
    """One call of a client, which is counted as it begins; in a stream, each step of it is inside."""

    def __init__(self, hands_on: bool) -> None:
        self._began = False
        #: Whether its class only hands on what it is given, and has not done so yet.
        self.keeps = hands_on

    @contextmanager
    def current(self) -> Iterator[None]:
        """The client runs in this block."""
        if not self._began:
            self._began = True
            compacts = getattr(trace.get_current_span(), "name", "").startswith("compact_block")
            summarises = compacts or reducing() is not None  # one that streams holds no span open
            seen.summaries += summarises
            seen.calls += not summarises
        with context_value(inside, self):
            yield

    def end(self, error: BaseException | None = None) -> None:
        """The call is over."""
        if error is not None and self.keeps and self._began:
            seen.calls -= 1
            counted_as("a class raises that would have handed on to the client behind it")


def counted_as(reason: str) -> None:
    """A client was called without that being a model call, for this reason."""
    seen.reasons[reason] = seen.reasons.get(reason, 0) + 1


def counted(original: Callable[..., Any], _owner: type, instrumentation: Instrumentation) -> Callable[..., Any]:
    """A client's method, which is counted as it begins."""
    hands_on = "super" in (codes := names_in(original)) and original.__name__ in codes
    framework = os.environ["UPSTREAM_FRAMEWORK"]
    hand_on, no_call = HAND_ON.get(framework, set()), NO_CALLS.get(framework)
    is_client = IS_CLIENT.get(framework, lambda *_, **__: True)

    def called(_: Instrumentation, client: Any, *args: Any, **kwargs: Any) -> Called | None:
        around = inside.get()
        if around is not None:
            around.keeps = False
        if around is not None or hand_on & {base.__name__ for base in type(client).__mro__}:
            return None
        if not is_client(client, *args, **kwargs):
            return None
        reason = no_call(client, *args, **kwargs) if no_call is not None else None
        if reason is not None:
            counted_as(reason)
            return None
        return Called(hands_on)

    return run_hook(called)(original, instrumentation)


def names_in(function: Callable[..., Any]) -> set[str]:
    """The names that a function's own code asks for."""
    return set(getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ()))


def pytest_configure() -> None:
    """Instrument before any test module is imported."""
    framework = os.environ["UPSTREAM_FRAMEWORK"]
    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(Counting())
    providers = {"tracer_provider": tracer_provider, "meter_provider": MeterProvider([metrics])}
    counting = Instrumentation("upstream")
    for module, name, methods in CLIENTS[framework]:

        def count(made: ModuleType, name: str = name, methods: tuple[str, ...] = methods) -> None:
            for method in methods:
                SubclassHook(method, counted).wrap_subclasses(getattr(made, name), counting)

        wrapt.register_post_import_hook(count, module)
    # The clients are counted inside of what we wrap them in.
    counting.is_enabled = lambda: True  # type: ignore[method-assign]
    otel_assembly.instrument(framework, **providers)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Compare the calls of a test with its assemblies."""
    calls, assemblies = seen.calls, seen.assemblies
    result = yield
    missing = (seen.calls - calls) - (seen.assemblies - assemblies)
    if missing > 0:
        seen.untold[item.nodeid] = missing
    return result


def pytest_unconfigure() -> None:
    """Write down what was seen."""
    data = metrics.get_metrics_data()
    seen.failures = sum(
        int(point.value)
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "assembly.telemetry.errors"
        for point in metric.data.data_points
    )
    Path(os.environ["UPSTREAM_SEEN"]).write_text(json.dumps(asdict(seen)), encoding="utf-8")
