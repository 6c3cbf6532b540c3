"""The hooks of LiteLLM: its functions that call models, under every name by which a program has imported them."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from otel_assembly.instrumentation.hooks import LazyWrappers, in_module
from otel_assembly.instrumentation.instrumentor import AssemblyInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from otel_assembly.instrumentation.hooks import Hook
    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.litellm import calls, trims
else:
    calls = LazyWrappers("otel_assembly.instrumentation.litellm.calls")
    trims = LazyWrappers("otel_assembly.instrumentation.litellm.trims")

_REQUESTS = "requests to models"


class LiteLLMInstrumentor(AssemblyInstrumentor):
    """Instruments LiteLLM's calls of models, and its `trim_messages` as a reducer."""

    framework = "litellm"
    requires = ("litellm >= 1.60",)
    hooks: ClassVar = [
        *in_module(
            "litellm.main",
            ("completion acompletion", calls.completion, _REQUESTS),
            ("text_completion atext_completion", calls.text_completion, _REQUESTS),
        ),
        *in_module(
            "litellm.responses.main", ("responses aresponses", calls.responses, _REQUESTS), versions=">= 1.63.8"
        ),
        *in_module("litellm.utils", ("trim_messages", trims.trim_messages, "messages that trim_messages removes")),
    ]

    def _apply_hooks(self, name: str, module: ModuleType, instrumentation: Instrumentation) -> None:
        """Apply the hooks of a module, also to other modules that have imported its functions by name."""
        originals = {id(vars(module)[hook.target]): hook for hook in self.hooks if hook.module == name}
        super()._apply_hooks(name, module, instrumentation)
        for importer, attribute, hook in _imported_names(originals, module):
            instrumentation.patches.wrap(importer, attribute, partial(_wrapped, hook.wrap, instrumentation))


def _wrapped(wrap: Any, instrumentation: Instrumentation, original: Callable[..., Any]) -> Callable[..., Any]:
    replacement: Callable[..., Any] = wrap(original, instrumentation)
    return replacement


def _imported_names(originals: dict[int, Hook], module: ModuleType) -> list[tuple[ModuleType, str, Hook]]:
    """Return the names under which other modules have these objects."""
    return [
        (importer, name, originals[id(value)])
        for importer in list(sys.modules.values())
        if importer is not module
        for name, value in list(getattr(importer, "__dict__", {}).items())
        if id(value) in originals
    ]
