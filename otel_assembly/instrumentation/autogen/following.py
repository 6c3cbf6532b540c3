"""Methods that any subclass may define anew: wrapped in every class that does, also in those defined later."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from otel_assembly._internal.forks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_assembly.instrumentation.instrumentor import Instrumentation


class Following:
    """One method, followed through all classes that define it.

    Args:
        method: Its name.
        wrap: Makes the replacement, from the class's own function, the class and the instrumentation.
    """

    def __init__(
        self, method: str, wrap: Callable[[Callable[..., Any], type, Instrumentation], Callable[..., Any]]
    ) -> None:
        self.method = method
        self.wrap = wrap
        self._lock = new_lock()
        self._seen: weakref.WeakSet[type] = weakref.WeakSet()
        self._instrumentation: weakref.ref[Instrumentation] | None = None
        self._watched: list[tuple[type, Any]] = []

    def tree(self, base: type, instrumentation: Instrumentation) -> None:
        """Wrap it in a class and in all its subclasses, those included that are yet to be defined."""
        self.watch(base, instrumentation)
        classes = [base]
        while classes:
            one = classes.pop()
            self.follow(one, instrumentation)
            classes += one.__subclasses__()

    def follow(self, one: type, instrumentation: Instrumentation) -> None:
        """Wrap it wherever a class has it from."""
        with instrumentation.contained(), self._lock:
            if self._instrumentation is None or self._instrumentation() is not instrumentation:
                self._instrumentation = weakref.ref(instrumentation)
                self._seen = weakref.WeakSet()
            if one in self._seen:
                return
            for owner in one.__mro__:
                if owner not in self._seen and instrumentation.open:
                    self._seen.add(owner)
                    self._take(owner, instrumentation)

    def _take(self, owner: type, instrumentation: Instrumentation) -> None:
        # A method that is yet to be defined is left alone.
        if getattr(vars(owner).get(self.method), "__isabstractmethod__", False):
            return
        if not instrumentation.patches.holds(owner, self.method):
            instrumentation.patches.wrap(owner, self.method, lambda made: self.wrap(made, owner, instrumentation))

    def watch(self, base: Any, instrumentation: Instrumentation) -> None:
        """Look at each subclass as it is defined."""
        if "__init_subclass__" in vars(base):
            return

        def look(cls: type, /, **arguments: Any) -> None:
            following: Any = super(base, cls)
            following.__init_subclass__(**arguments)
            if instrumentation.open:
                self.follow(cls, instrumentation)

        hook: Any = classmethod(look)
        base.__init_subclass__ = hook
        self._watched.append((base, hook))

    def leave(self) -> None:
        """Take away what was put there to see new subclasses."""
        while self._watched:
            base, hook = self._watched.pop()
            if vars(base).get("__init_subclass__") is hook:
                del base.__init_subclass__
