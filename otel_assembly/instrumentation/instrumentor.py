"""`AssemblyInstrumentor`: the base class of the instrumentors of all frameworks.

An instrumentor of a framework is a table of hooks. The base class applies each hook after its module is imported, and
restores the framework again. It never imports the framework itself.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]  # the module is not typed
    BaseInstrumentor,
)
from wrapt import register_post_import_hook

from otel_assembly._internal.lazy_imports import LazyModule
from otel_assembly.errors import ConfigurationError
from otel_assembly.instrumentation.hooks import HookState, SubclassHook, find, installed, is_shadowed, parse_requirement
from otel_assembly.instrumentation.instrumented import OPEN_INSTRUMENTATIONS, Instrumentation
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

    #: The framework's name: the value of the attribute ``assembly.framework``.
    framework: ClassVar[str]
    #: The supported distributions with their versions, as in ``requirements.txt``; one of them has to be installed,
    #: otherwise no hook is applied. Empty if the framework is not a distribution.
    requires: ClassVar[tuple[str, ...]]
    #: The functions and methods that are wrapped.
    hooks: ClassVar[Sequence[Hook]]
    #: Top-level packages that are separate distributions: `Hook.versions` of their hooks refers to these.
    apart: ClassVar[frozenset[str]] = frozenset()
    #: For a module of the framework, the module of this package that registers how to read the framework's message
    #: types; it is imported after the framework's module.
    rows: ClassVar[Mapping[str, str]] = {}
    #: For a module of the framework, a function that is called after the module is imported.
    on_import: ClassVar[Mapping[str, Callable[[ModuleType, Instrumentation], None]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._reject_duplicate_hooks()

    @classmethod
    def _reject_duplicate_hooks(cls) -> None:
        names = Counter(hook.name for hook in getattr(cls, "hooks", ()))
        if twice := [name for name, count in names.items() if count > 1]:
            raise ConfigurationError(
                f"{cls.__name__}.hooks has two hooks of {', '.join(twice)}, of which only the first would be applied; "
                "combine their wrappers in one hook: lambda original, instrumentation: "
                "outer(inner(original, instrumentation), instrumentation)"
            )

    def __init__(self) -> None:
        if not hasattr(self, "_states"):  # `BaseInstrumentor.__new__` returns the same object each time
            self._instrumentation: Instrumentation | None = None
            self._states: dict[str, HookState] = {}
            self._distributions: dict[tuple[str, ...], tuple[str, str]] = {}

    def has_package_of(self, hook: Hook) -> bool:
        """Return False if the hook's package is a separate distribution (one in `apart`) that is not installed."""
        package = hook.module.partition(".")[0]
        return package not in self.apart or installed((package,)) is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the requirement of the installed distribution; all requirements if none is installed."""
        distribution = installed(self.requires)
        return [
            requirement
            for requirement in self.requires
            if distribution is not None and parse_requirement(requirement).name == distribution[0]
        ] or self.requires

    @property
    def version(self) -> str | None:
        """The installed version of the framework; None if it is not installed."""
        distribution = installed(self.requires)
        return distribution[1] if distribution is not None else None

    def _check_dependency_conflicts(self) -> Any:
        """Return the conflict between the requirements and the installed versions; None if there is none.

        OpenTelemetry parses the distribution's metadata at each check, so that it is asked only to describe a conflict.
        """
        for text in self.instrumentation_dependencies():
            distribution = installed((text,))
            if distribution is None or not parse_requirement(text).specifier.contains(distribution[1]):
                return super()._check_dependency_conflicts()
        return None

    @property
    def states(self) -> Mapping[str, HookState]:
        """The state of each hook since ``instrument()``, by the hook's dotted name."""
        return dict(self._states)

    def _instrument(self, **kwargs: Any) -> None:
        providers = {
            name: kwargs[name] for name in ("tracer_provider", "meter_provider", "logger_provider") if kwargs.get(name)
        }
        recorder = telemetry.OpenTelemetryRecorder(**providers) if providers else None
        self._reject_duplicate_hooks()  # hooks may have been added after the class was created
        instrumentation = self._instrumentation = Instrumentation(self.framework, recorder)
        WATCH.begin(self, own_provider=bool(providers))
        if self._installed(self.requires) is not None and (conflict := self._check_dependency_conflicts()):
            # `opentelemetry-instrument` checks only the requirements of the distribution with the entry point, which is
            # otel-assembly, and not those of the instrumentor.
            logger.warning("otel-assembly: %s is not instrumented: %s", self.framework, conflict)
            return
        OPEN_INSTRUMENTATIONS.append(instrumentation)
        self._states = {hook.name: HookState.WAITING for hook in self.hooks}
        for module, readers in self.rows.items():
            register_post_import_hook(partial(self._register_readers, instrumentation, readers), module)
        for module, after in dict.fromkeys((hook.module, hook.after) for hook in self.hooks):
            # CrewAI replaces the names of its modules by another's, so they are not read from the module.
            apply_hooks = partial(self._run_action, instrumentation, partial(self._apply_hooks, module))
            if after:  # wrapt calls the function after `after` is fully imported
                register_post_import_hook(partial(self._call_on_import, module, apply_hooks), after)
            else:
                register_post_import_hook(apply_hooks, module)
        for module, action in self.on_import.items():
            register_post_import_hook(partial(self._run_action, instrumentation, action), module)

    def _uninstrument(self, **kwargs: Any) -> None:
        WATCH.end(self)
        instrumentation = self._instrumentation
        if instrumentation is not None:
            for end in instrumentation.ends:  # before the hooks are closed: they may still record
                end()
            instrumentation.open = False
            if instrumentation in OPEN_INSTRUMENTATIONS:
                OPEN_INSTRUMENTATIONS.remove(instrumentation)
            instrumentation.patches.restore()
            instrumentation.observed.forget()
        for hook in reversed(self.hooks):
            if isinstance(hook.wrap, SubclassHook):
                hook.wrap.stop_watching()
        self._instrumentation = None
        self._states, self._distributions = {}, {}

    @staticmethod
    def _call_on_import(module: str, action: Callable[[ModuleType], None], _: ModuleType) -> None:
        """Call an action when a module is imported, or now if it has been; itself called when `Hook.after` has been."""
        register_post_import_hook(action, module)

    def _register_readers(self, instrumentation: Instrumentation, readers: str, module: ModuleType) -> None:
        """Import the module of this package that registers how to read the framework's message types."""
        if self._is_absent():
            return
        try:
            importlib.import_module(readers)
        except Exception as error:  # noqa: BLE001  # counted; the framework's import must not fail
            if not self._is_shadowed(module):
                instrumentation.observed.failed(error)
                return
            # The program's own package has only its name in common with the framework.
            logger.debug(
                "otel-assembly: %s is not the module of %s, because its types are missing: %s",
                module.__name__,
                self.framework,
                type(error).__name__,
            )

    def _run_action(
        self,
        instrumentation: Instrumentation,
        action: Callable[[ModuleType, Instrumentation], None],
        module: ModuleType,
    ) -> None:
        """Run an action on an imported module, if the framework is installed and still instrumented."""
        with instrumentation.suppress_errors():
            if instrumentation.open and not self._is_absent():
                action(module, instrumentation)

    def _apply_hooks(self, name: str, module: ModuleType, instrumentation: Instrumentation) -> None:
        """Apply the hooks of an imported module, and begin to load the token counter, which they will probably need.

        The module was imported as `name`, from which its ``__name__`` can differ (see `_instrument`).
        """
        is_shadowed = self._is_shadowed(module)
        if not is_shadowed:
            with instrumentation.suppress_errors():
                instrumentation.observed.preload_counter()
        version = self._version_of(name.partition(".")[0])
        for hook in self.hooks:
            if hook.module == name:
                with instrumentation.suppress_errors():
                    self._states[hook.name] = self._apply_hook(
                        hook, module, instrumentation, version, warns=not is_shadowed
                    )

    def _version_of(self, package: str) -> str | None:
        """Return the installed version of a top-level package: that of the framework, unless it is in `apart`."""
        distribution = self._installed((package,) if package in self.apart else self.requires)
        return distribution[1] if distribution is not None else None

    def _apply_hook(
        self, hook: Hook, module: ModuleType, instrumentation: Instrumentation, version: str | None, *, warns: bool
    ) -> HookState:
        """Apply a hook and return its state; log if a target is missing, as a warning if `warns` is True."""
        target, wrap = find(module, hook.target), hook.wrap
        if target is not None and isinstance(wrap, SubclassHook):
            wrap.wrap_subclasses(target[0], instrumentation)
            return HookState.TAKEN
        if target is not None and not isinstance(wrap, SubclassHook):
            patches = instrumentation.patches
            if patches.has_replaced(*target) or patches.wrap(*target, lambda original: wrap(original, instrumentation)):
                return HookState.TAKEN
        if not hook.expected(version):
            return HookState.NOT_EXPECTED
        logger.log(
            logging.WARNING if warns else logging.DEBUG,
            "otel-assembly: %s %s has no %s, although this version should have it. Not captured because of that: %s. "
            "The other hooks are applied",
            self.framework,
            version or "(of unknown version)",
            hook.name,
            hook.purpose,
        )
        return HookState.MISSING

    def _is_absent(self) -> bool:
        """Return True if the framework is a distribution that is not installed."""
        return bool(self.requires) and self._installed(self.requires) is None

    def _installed(self, requirements: tuple[str, ...]) -> tuple[str, str] | None:
        """Return name and version of the installed distribution, as `installed` does.

        The result is cached, because an import inside an event loop must not read files.
        """
        distribution = self._distributions.get(requirements) or installed(requirements)
        if distribution is not None:
            self._distributions[requirements] = distribution
        return distribution

    def _is_shadowed(self, module: ModuleType) -> bool:
        distribution = self._installed(self.requires)
        return distribution is not None and is_shadowed(distribution[0], module)

    def imported(self) -> bool:
        """Return True if this process has imported a module of one of the hooks."""
        return any(hook.module in sys.modules for hook in self.hooks)
