"""Warns about model calls that no instrumentation captures, and lists uncaptured packages for ``otel-assembly doctor``.

If an instrumented program calls a provider's client and no assembly is recorded, the user would suspect the exporter.
So the functions of provider clients that send requests are wrapped. The wrapper reads the kind of request, not its
content, and calls the original. At the end of the process, one log line names the clients that were called.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import _logs, metrics, trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from packaging.requirements import Requirement
from wrapt import register_post_import_hook

from otel_assembly._internal.activity import ACTIVITY
from otel_assembly._internal.fork_safety import after_fork_in_child
from otel_assembly._internal.hidden_frames import hide_frames
from otel_assembly.instrumentation.hooks import find
from otel_assembly.instrumentation.instrumented import Patches, argument

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import ModuleType

logger = logging.getLogger("otel_assembly")

#: The environment variable that disables the log line if it is ``false``.
OTEL_ASSEMBLY_UNCAPTURED_HINT: Final = "OTEL_ASSEMBLY_UNCAPTURED_HINT"

_API_MODULES: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")


@dataclass(frozen=True, slots=True)
class ProviderClient:
    """A provider's client, and the functions that each of its requests passes through.

    Attributes:
        targets: The functions, as for `Hook.target`.
        calls_model: Returns whether a call with these arguments, including ``self``, is a model call. Requests for
            embeddings, files or token counts are not.
    """

    name: str
    module: str
    targets: tuple[str, ...]
    calls_model: Callable[..., bool]


def _posts_to(*endings: str) -> Callable[..., bool]:
    """Return a `calls_model` for the clients that Stainless generates: True for POST requests with such a path."""

    def calls_model(*args: Any, **kwargs: Any) -> bool:
        options = argument(args, kwargs, 2, "options")
        path = str(options.url).partition("?")[0].rstrip("/")
        return str(options.method).lower() == "post" and path.endswith(endings)

    return calls_model


def _generates_content(*args: Any, **kwargs: Any) -> bool:
    path = str(argument(args, kwargs, 2, "path")).partition("?")[0]
    return path.endswith((":generateContent", ":streamGenerateContent"))


def _is_bedrock_call(client: Any, operation: str, params: Any = None, *_: Any, **__: Any) -> bool:
    if operation in {"Converse", "ConverseStream"}:
        return True
    if operation not in {"InvokeModel", "InvokeModelWithResponseStream"}:
        return False
    return "embed" not in str((params or {}).get("modelId", "")).lower()


def _is_ollama_call(client: Any, answer_type: type, method: str = "", path: str = "", *_: Any, **__: Any) -> bool:
    return path in {"/api/chat", "/api/generate"}


_LITELLM_CALLS: Final = frozenset(
    f"{prefix}{call}"
    for call in ("completion", "text_completion", "responses", "anthropic_messages", "generate_content")
    for prefix in ("", "a", "_a")
) | {"atext_completion", "anthropic_messages"}


def _is_litellm_call(logging_object: Any, *_: Any, **__: Any) -> bool:
    return str(getattr(logging_object, "call_type", "")) in _LITELLM_CALLS


_STAINLESS: Final = ("SyncAPIClient.request", "AsyncAPIClient.request")

PROVIDER_CLIENTS: Final = (
    ProviderClient(
        "openai",
        "openai._base_client",
        _STAINLESS,
        _posts_to("/completions", "/responses", "/responses/compact", "/runs"),
    ),
    ProviderClient("anthropic", "anthropic._base_client", _STAINLESS, _posts_to("/messages", "/complete")),
    ProviderClient(
        "google-genai",
        "google.genai._api_client",
        tuple(
            f"BaseApiClient.{method}"
            for method in ("request", "async_request", "request_streamed", "async_request_streamed")
        ),
        _generates_content,
    ),
    # A program that has imported `litellm.completion` by name calls it without a hook. So this hooks the method that
    # LiteLLM calls to log each request.
    ProviderClient("litellm", "litellm.litellm_core_utils.litellm_logging", ("Logging.pre_call",), _is_litellm_call),
    ProviderClient("groq", "groq._base_client", _STAINLESS, _posts_to("/completions")),
    ProviderClient("ollama", "ollama._client", ("Client._request", "AsyncClient._request"), _is_ollama_call),
    ProviderClient("bedrock-runtime", "botocore.client", ("BaseClient._make_api_call",), _is_bedrock_call),
)


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """A distribution with model calls that this library does not capture.

    Attributes:
        requirement: The distribution as in ``requirements.txt``, with a version range if other versions are captured.
        package: The package that programs import.
        what: A phrase for users that describes what is not captured.
    """

    requirement: str
    package: str
    what: str = "its agents are not captured"

    @property
    def distribution(self) -> str:
        """The distribution's name."""
        return Requirement(self.requirement).name

    @property
    def version(self) -> str | None:
        """The installed version, if the requirement includes it; None otherwise."""
        requirement = Requirement(self.requirement)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            return None
        return version if requirement.specifier.contains(version, prereleases=True) else None


_CLASSIC: Final = "classic agents (ConversableAgent, initiate_chat, GroupChat) are not captured"
_DIRECT: Final = "calls that a program makes with it directly are not captured"

#: Frameworks, which call models for the program.
UNCAPTURED_FRAMEWORKS: Final = (
    Uncaptured("ag2 < 0.12.2", "autogen", _CLASSIC),
    Uncaptured("autogen < 0.12.2", "autogen", _CLASSIC),
    Uncaptured("pyautogen", "autogen", _CLASSIC),
    Uncaptured("autogen-agentchat < 0.4", "autogen", _CLASSIC),
    Uncaptured("crewai < 1.15", "crewai"),
    Uncaptured("smolagents < 1.20", "smolagents"),
    Uncaptured("dspy < 3", "dspy", "its modules are not captured"),
    Uncaptured("agno < 2.5", "agno"),
    Uncaptured("phidata", "phi"),
    Uncaptured("camel-ai", "camel"),
    Uncaptured("langroid", "langroid"),
    Uncaptured("letta", "letta"),
    Uncaptured("griptape", "griptape"),
    Uncaptured("metagpt", "metagpt"),
    Uncaptured("controlflow", "controlflow"),
    Uncaptured("marvin", "marvin"),
    Uncaptured("mirascope", "mirascope", "its calls are not captured"),
    Uncaptured("instructor", "instructor", "its calls are not captured"),
    Uncaptured("mem0ai", "mem0", "its calls are not captured"),
)
#: Clients of providers, which programs call directly.
UNCAPTURED_CLIENTS: Final = tuple(
    Uncaptured(distribution, package, _DIRECT)
    for distribution, package in (
        ("google-generativeai", "google.generativeai"),
        ("together", "together"),
        ("huggingface-hub", "huggingface_hub"),
    )
)


class Watch:
    """Wraps the functions of provider clients while at least one instrumentor is active."""

    def __init__(self) -> None:
        #: The active instrumentors; True for those that record to separate providers.
        self._active: dict[Hashable, bool] = {}
        #: The wrapped functions; None while the clients are not wrapped.
        self._patches: Patches | None = None
        #: The clients that called a model before any assembly was recorded, in the order of their first calls.
        self._called: dict[str, None] = {}
        after_fork_in_child(self.forget_calls)

    def begin(self, instrumentor: Hashable, *, own_provider: bool = False) -> None:
        """Add an instrumentor; the first one wraps the clients, unless the environment variable disables that.

        `own_provider` is True if it records to separate providers, which count even if no global one is configured.
        """
        self._active[instrumentor] = own_provider
        if self._patches is None and os.environ.get(OTEL_ASSEMBLY_UNCAPTURED_HINT, "").strip().lower() != "false":
            self._patches = Patches()
            for client in PROVIDER_CLIENTS:
                register_post_import_hook(partial(self._wrap_client, client, self._patches), client.module)

    def end(self, instrumentor: Hashable) -> None:
        """Remove an instrumentor; after the last one, the clients are unwrapped."""
        self._active.pop(instrumentor, None)
        if not self._active and self._patches is not None:
            self._patches.restore()
            self._patches = None
            self.forget_calls()
            atexit.unregister(self.report)

    def _wrap_client(self, client: ProviderClient, patches: Patches, module: ModuleType) -> None:
        if patches is not self._patches:
            return
        for target in client.targets:
            owner_and_name = find(module, target)  # None in releases without this function, which are not watched
            if owner_and_name is not None:
                patches.wrap(*owner_and_name, partial(self._wrap_function, client, patches))

    def _wrap_function(
        self, client: ProviderClient, patches: Patches, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def request(*args: Any, **kwargs: Any) -> Any:
            if patches is self._patches and not ACTIVITY.has_assembly and client.name not in self._called:
                self._note(client, args, kwargs)
            return original(*args, **kwargs)

        return request

    def _note(self, client: ProviderClient, args: Any, kwargs: Any) -> None:
        """Remember a client for `report`, if this request calls a model and telemetry is recorded."""
        try:
            if not client.calls_model(*args, **kwargs) or not is_instrumentation_enabled() or not self._is_recording():
                return
        except Exception as error:  # noqa: BLE001  # a release with another signature; the call must not fail
            logger.debug("a request of %s could not be read: %s", client.name, type(error).__name__)
            return
        if not self._called:
            # Exit handlers run in reverse order. Registered at the first call, `report` runs before the SDK's providers
            # are shut down, so they still export the log line.
            atexit.register(self.report)
            multiprocessing = sys.modules.get("multiprocessing")
            if multiprocessing is not None and multiprocessing.parent_process() is not None:
                from multiprocessing.util import Finalize  # children of `multiprocessing` skip `atexit`

                Finalize(None, self.report, exitpriority=10)
        self._called[client.name] = None

    def _is_recording(self) -> bool:
        providers = trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider()
        return any(self._active.values()) or any(map(_is_configured, providers))

    def forget_calls(self) -> None:
        """Forget the calls of the parent process in a forked child; the parent reports them."""
        self._called = {}

    def report(self) -> None:
        """Write the log line if a model was called and no assembly was recorded; once, even if called again."""
        called, self._called = self._called, {}
        if not called or ACTIVITY.has_assembly:
            return
        frameworks = dict.fromkeys(row.package for row in UNCAPTURED_FRAMEWORKS if row.package in sys.modules)
        callers = "; ".join(
            f"{row.distribution} is in use: {row.what}"
            for row in UNCAPTURED_FRAMEWORKS
            if row.package in frameworks and row.version is not None
        )
        logger.warning(
            "otel-assembly: this process called a model (%s) and recorded no assembly: code that is not captured made "
            "the calls%s. `otel-assembly doctor` lists what is captured; %s=false turns this line off",
            ", ".join(called),
            f" ({callers})" if callers else "",
            OTEL_ASSEMBLY_UNCAPTURED_HINT,
        )


def _is_configured(provider: object) -> bool:
    """Return whether a provider is not one of the API's own, which record nothing."""
    # `otel_assembly.telemetry` has this check too, but importing it would load the whole engine.
    module = type(provider).__module__
    return not any(module == api or module.startswith(f"{api}._internal") for api in _API_MODULES)


WATCH: Final = Watch()


hide_frames(globals())
