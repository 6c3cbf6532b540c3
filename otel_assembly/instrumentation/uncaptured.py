"""Model calls that no instrumentation captures: one log line at the end of such a process, and a list for ``doctor``.

A process is instrumented, its program calls a provider's client, and no assembly is recorded: without a hint, that
looks like an export that fails. So the functions of provider clients that send requests are watched. The watch reads
the kind of request and nothing of its content, and calls the original.

An instrumentor that records the calls of a client itself makes its row in `PROVIDER_CLIENTS` unnecessary: such calls
begin assemblies.
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
    from collections.abc import Callable, Hashable, Iterator
    from types import ModuleType

logger = logging.getLogger("otel_assembly")

#: ``false`` turns the log line at the end of a process off.
OTEL_ASSEMBLY_UNCAPTURED_HINT: Final = "OTEL_ASSEMBLY_UNCAPTURED_HINT"

_API_MODULES: Final = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")


@dataclass(frozen=True, slots=True)
class ProviderClient:
    """A provider's client, and the functions that each of its requests passes through.

    Attributes:
        name: The client's name, as its users call it.
        module: The module of the functions.
        targets: The functions, as for `Hook.target`.
        calls_model: Whether a call with these arguments, the receiver first, asks a model. Requests for embeddings,
            files or token counts have no assembly, and need no hint.
    """

    name: str
    module: str
    targets: tuple[str, ...]
    calls_model: Callable[..., bool]


def _posts_to(*ends: str) -> Callable[..., bool]:
    """Whether a client made by Stainless posts to a path that ends like this."""

    def calls_model(*args: Any, **kwargs: Any) -> bool:
        options = argument(args, kwargs, 2, "options")
        path = str(options.url).partition("?")[0].rstrip("/")
        return str(options.method).lower() == "post" and path.endswith(ends)

    return calls_model


def _generates_content(*args: Any, **kwargs: Any) -> bool:
    path = str(argument(args, kwargs, 2, "path")).partition("?")[0]
    return path.endswith((":generateContent", ":streamGenerateContent"))


def _converses(client: Any, operation: str, params: Any = None, *_: Any, **__: Any) -> bool:
    if operation in {"Converse", "ConverseStream"}:
        return True
    if operation not in {"InvokeModel", "InvokeModelWithResponseStream"}:
        return False
    return "embed" not in str((params or {}).get("modelId", "")).lower()


_LITELLM_CALLS: Final = frozenset(
    f"{prefix}{call}"
    for call in ("completion", "text_completion", "responses", "anthropic_messages", "generate_content")
    for prefix in ("", "a", "_a")
) | {"atext_completion", "anthropic_messages"}


def _completes(logging_of_call: Any, *_: Any, **__: Any) -> bool:
    return str(getattr(logging_of_call, "call_type", "")) in _LITELLM_CALLS


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
    # Programs import `completion` by name, where no hook reaches it; each request of litellm is logged by this method.
    ProviderClient("litellm", "litellm.litellm_core_utils.litellm_logging", ("Logging.pre_call",), _completes),
    ProviderClient("bedrock-runtime", "botocore.client", ("BaseClient._make_api_call",), _converses),
)


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """A distribution whose model calls no instrumentation here captures.

    Attributes:
        requirement: The distribution, with the versions if others are captured, as in ``requirements.txt``.
        package: The package that programs import.
        what: What is not captured of it, in a phrase.
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
        """The version that is installed; None if none is, or one that is captured."""
        requirement = Requirement(self.requirement)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            return None
        return version if requirement.specifier.contains(version, prereleases=True) else None


_CLASSIC: Final = "classic agents (ConversableAgent, initiate_chat, GroupChat) are not captured"
_DIRECT: Final = "calls that a program makes with it directly are not captured"

#: Frameworks that call models.
UNCAPTURED_FRAMEWORKS: Final = (
    Uncaptured("ag2 < 1.0.0a0", "autogen", _CLASSIC),
    Uncaptured("autogen", "autogen", _CLASSIC),
    Uncaptured("pyautogen", "autogen", _CLASSIC),
    Uncaptured("autogen-agentchat < 0.4", "autogen", _CLASSIC),
    Uncaptured("crewai", "crewai"),
    Uncaptured("smolagents", "smolagents"),
    Uncaptured("dspy", "dspy", "its modules are not captured"),
    Uncaptured("agno", "agno"),
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
#: Clients of providers.
UNCAPTURED_CLIENTS: Final = tuple(
    Uncaptured(distribution, package, _DIRECT)
    for distribution, package in (
        ("openai", "openai"),
        ("anthropic", "anthropic"),
        ("google-genai", "google.genai"),
        ("google-generativeai", "google.generativeai"),
        ("litellm", "litellm"),
        ("boto3", "boto3"),
        ("mistralai", "mistralai"),
        ("cohere", "cohere"),
        ("groq", "groq"),
        ("together", "together"),
        ("ollama", "ollama"),
        ("huggingface-hub", "huggingface_hub"),
    )
)


class _Watch:
    """The watch over provider clients, while at least one instrumentor is active.

    Args:
        records: Whether telemetry goes anywhere, asked at a model call.
    """

    def __init__(self, records: Callable[[], bool]) -> None:
        self.open = True
        self.patches = Patches()
        self._records = records
        #: The clients that called a model before any assembly was recorded, in the order of their first calls.
        self.called: dict[str, None] = {}
        after_fork_in_child(self.forget_calls)
        for client in PROVIDER_CLIENTS:
            register_post_import_hook(partial(self._imported, client), client.module)

    def _imported(self, client: ProviderClient, module: ModuleType) -> None:
        if not self.open:
            return
        for target in client.targets:
            place = find(module, target)  # None in releases that have no such function: no hint then
            if place is not None:
                self.patches.wrap(*place, partial(self._watched, client))

    def _watched(self, client: ProviderClient, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def request(*args: Any, **kwargs: Any) -> Any:
            if self.open and not ACTIVITY.has_assembly and client.name not in self.called:
                self._note(client, args, kwargs)
            return original(*args, **kwargs)

        return request

    def _note(self, client: ProviderClient, args: Any, kwargs: Any) -> None:
        try:
            if not client.calls_model(*args, **kwargs) or not is_instrumentation_enabled() or not self._records():
                return
        except Exception as error:  # noqa: BLE001  # a release that is called in another way: no hint, and no failure
            logger.debug("a request of %s could not be read: %s", client.name, type(error).__name__)
            return
        if not self.called:
            self._report_at_the_end()
        self.called[client.name] = None

    def _report_at_the_end(self) -> None:
        """Registered this late, it runs before the SDK's providers are shut down, so that they export the line."""
        atexit.register(self.report)
        multiprocessing = sys.modules.get("multiprocessing")
        if multiprocessing is not None and multiprocessing.parent_process() is not None:
            from multiprocessing.util import Finalize  # only in a child, which skips `atexit`

            Finalize(None, self.report, exitpriority=10)

    def forget_calls(self) -> None:
        """A forked child reports its own calls; its parent reports what the parent called."""
        self.called = {}

    def report(self) -> None:
        """Write the log line, once, if it is due."""
        called, self.called = self.called, {}
        if not called or not self.open or ACTIVITY.has_assembly:
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

    def end(self) -> None:
        """Put everything back."""
        self.open = False
        self.patches.restore()
        atexit.unregister(self.report)


class Watchers:
    """Who has the process instrumented; the watch runs from the first of them to the last."""

    def __init__(self) -> None:
        self._active: dict[Hashable, bool] = {}
        self._watch: _Watch | None = None

    def begin(self, who: Hashable, *, own_provider: bool = False) -> None:
        """Start the watch, unless it runs or the environment turns it off."""
        self._active[who] = own_provider
        if self._watch is None and os.environ.get(OTEL_ASSEMBLY_UNCAPTURED_HINT, "").strip().lower() != "false":
            self._watch = _Watch(self._records)

    def end(self, who: Hashable) -> None:
        """Stop the watch if nobody else needs it."""
        self._active.pop(who, None)
        if not self._active and self._watch is not None:
            self._watch.end()
            self._watch = None

    def _records(self) -> bool:
        return any(self._active.values()) or any(map(_is_configured, _providers()))


def _providers() -> Iterator[object]:
    yield trace.get_tracer_provider()
    yield metrics.get_meter_provider()
    yield _logs.get_logger_provider()


def _is_configured(provider: object) -> bool:
    """Whether a provider is not the API's own, which records nothing. `telemetry` is not asked: it loads the engine."""
    module = type(provider).__module__
    return not any(module == api or module.startswith(f"{api}._internal") for api in _API_MODULES)


WATCH: Final = Watchers()


hide_frames(globals())
