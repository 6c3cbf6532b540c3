"""`AssemblyInstrumentor`: what the instrumentors of all frameworks share.

An instrumentor is a table of hooks. Finding them as modules are imported, wrapping, going inert and restoring is done
here; a framework is imported only when the program imports it.
"""

from __future__ import annotations

import importlib
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]  # the module is not typed
    BaseInstrumentor,
)
from packaging.requirements import Requirement
from wrapt import register_post_import_hook

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.instrumentation.hooks import HookState, SubclassHook, find, installed, is_shadowed
from otel_assembly.instrumentation.instrumented import Instrumentation
from otel_assembly.instrumentation.uncaptured import WATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import ModuleType

    from otel_assembly.instrumentation.hooks import Hook
    from otel_assembly.telemetry import recorder as telemetry
else:
    telemetry = LazyModule("otel_assembly.telemetry.recorder")

logger = logging.getLogger("otel_assembly")


class AssemblyInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # as above
    """Instruments the context assembly of one framework.

    ``instrument()`` takes ``tracer_provider``, ``meter_provider`` and ``logger_provider``, by default the global ones.
    """

    #: The framework's name, as ``assembly.framework``.
    framework: ClassVar[str]
    #: The distributions that it instruments, any one of them, in the form of ``requirements.txt``. If none of them is
    #: installed, nothing is replaced. Empty for code that is no distribution.
    requires: ClassVar[tuple[str, ...]]
    hooks: ClassVar[Sequence[Hook]]
    #: Packages of it that are distributions of their own, by whose versions their hooks go.
    apart: ClassVar[frozenset[str]] = frozenset()
    #: By the framework's module: the module of ours that says how its types are read, imported after it.
    rows: ClassVar[Mapping[str, str]] = {}
    #: By the framework's module: what else is done once it is imported.
    on_import: ClassVar[Mapping[str, Callable[[ModuleType, Instrumentation], None]]] = {}

    def __init__(self) -> None:
        if not hasattr(self, "_states"):  # one object per class: `BaseInstrumentor.__new__` returns it again
            self._instrumentation: Instrumentation | None = None
            self._states: dict[str, HookState] = {}
            self._found: dict[tuple[str, ...], tuple[str, str]] = {}

    def has_package_of(self, hook: Hook) -> bool:
        """Whether the distribution that a hook is in is installed; one in `apart` need not be."""
        package = hook.module.partition(".")[0]
        return package not in self.apart or installed((package,)) is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """The distribution that is installed of those it instruments, with the versions it takes on; else all."""
        here = installed(self.requires)
        return [text for text in self.requires if here is not None and Requirement(text).name == here[0]] or (
            self.requires
        )

    @property
    def version(self) -> str | None:
        """The version of the framework that is installed."""
        here = installed(self.requires)
        return here[1] if here is not None else None

    @property
    def states(self) -> Mapping[str, HookState]:
        """What became of each hook, by its dotted name, since ``instrument()``."""
        return dict(self._states)

    def _instrument(self, **kwargs: Any) -> None:
        providers = {
            name: kwargs[name] for name in ("tracer_provider", "meter_provider", "logger_provider") if kwargs.get(name)
        }
        recorder = telemetry.OpenTelemetryRecorder(**providers) if providers else None
        instrumentation = self._instrumentation = Instrumentation(self.framework, recorder)
        WATCH.begin(self, own_provider=bool(providers))
        if self._installed(self.requires) is not None and (conflict := self._check_dependency_conflicts()):
            # The loader of `opentelemetry-instrument` asks the distribution, which is ours, and not the instrumentor.
            logger.warning("otel-assembly: %s is not instrumented: %s", self.framework, conflict)
            return
        self._states = {hook.name: HookState.WAITING for hook in self.hooks}
        for module, ours in self.rows.items():
            register_post_import_hook(partial(self._read_by, instrumentation, ours), module)
        for module, after in dict.fromkeys((hook.module, hook.after) for hook in self.hooks):
            imported = partial(self._act, instrumentation, self._imported)
            if after:  # wrapt calls it after the whole of `after` was imported
                register_post_import_hook(partial(self._wait_for, module, imported), after)
            else:
                register_post_import_hook(imported, module)
        for module, action in self.on_import.items():
            register_post_import_hook(partial(self._act, instrumentation, action), module)

    def _uninstrument(self, **kwargs: Any) -> None:
        WATCH.end(self)
        instrumentation = self._instrumentation
        if instrumentation is not None:
            for end in instrumentation.ends:
                end()
            instrumentation.open = False
            instrumentation.patches.restore()
            instrumentation.observed.forget()
        for hook in reversed(self.hooks):
            if isinstance(hook.wrap, SubclassHook):
                hook.wrap.leave()
        self._instrumentation = None
        self._states, self._found = {}, {}

    @staticmethod
    def _wait_for(module: str, imported: Callable[[ModuleType], None], _: ModuleType) -> None:
        register_post_import_hook(imported, module)

    def _read_by(self, instrumentation: Instrumentation, ours: str, module: ModuleType) -> None:
        if self._is_absent():
            return
        if not self._is_shadowed(module):
            with instrumentation.suppress_errors():
                importlib.import_module(ours)
            return
        try:
            importlib.import_module(ours)
        except Exception as error:  # noqa: BLE001  # the program's own package, which has only its name in common
            logger.debug("%s is not the module of %s: %s", module.__name__, self.framework, type(error).__name__)

    def _act(
        self,
        instrumentation: Instrumentation,
        action: Callable[[ModuleType, Instrumentation], None],
        module: ModuleType,
    ) -> None:
        """Act on an imported module, unless it is one of the program's own that has the framework's name."""
        with instrumentation.suppress_errors():
            if instrumentation.open and not self._is_absent():
                action(module, instrumentation)

    def _imported(self, module: ModuleType, instrumentation: Instrumentation) -> None:
        """Wrap the targets of the hooks in a module of the framework."""
        package = module.__name__.partition(".")[0]
        here = self._installed((package,) if package in self.apart else self.requires)
        version = here[1] if here is not None else None
        shadowed = self._is_shadowed(module)
        if not shadowed:
            with instrumentation.suppress_errors():
                instrumentation.observed.expect()
        for hook in self.hooks:
            if hook.module == module.__name__:
                with instrumentation.suppress_errors():
                    self._states[hook.name] = self._take(hook, module, instrumentation, version, warns=not shadowed)

    def _take(
        self, hook: Hook, module: ModuleType, instrumentation: Instrumentation, version: str | None, *, warns: bool
    ) -> HookState:
        place, wrap = find(module, hook.target), hook.wrap
        if place is not None and isinstance(wrap, SubclassHook):
            wrap.tree(place[0], instrumentation)
            return HookState.TAKEN
        if place is not None and not isinstance(wrap, SubclassHook):
            patches = instrumentation.patches
            if patches.holds(*place) or patches.wrap(*place, lambda made: wrap(made, instrumentation)):
                return HookState.TAKEN
        if not hook.expected(version):
            return HookState.NOT_EXPECTED
        logger.log(
            logging.WARNING if warns else logging.DEBUG,
            "otel-assembly: %s %s has no %s, which was expected there; not seen because of that: %s. The rest "
            "is instrumented",
            self.framework,
            version or "(of unknown version)",
            hook.name,
            hook.purpose,
        )
        return HookState.MISSING

    def _is_absent(self) -> bool:
        return bool(self.requires) and self._installed(self.requires) is None

    def _installed(self, requirements: tuple[str, ...]) -> tuple[str, str] | None:
        """Return the installed distribution; read once, because an import in an event loop must not read files."""
        found = self._found.get(requirements) or installed(requirements)
        if found is not None:
            self._found[requirements] = found
        return found

    def _is_shadowed(self, module: ModuleType) -> bool:
        here = self._installed(self.requires)
        return here is not None and is_shadowed(here[0], module)

    def imported(self) -> bool:
        """Whether a module that a hook waits for has been imported in this process."""
        return any(hook.module in sys.modules for hook in self.hooks)
