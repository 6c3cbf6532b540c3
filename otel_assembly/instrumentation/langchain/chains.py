"""Runs of chains: LangChain's runnables, such as ``prompt | model``, and the chains of ``langchain_classic``.

The outermost chain that contains a model is one run, whose name is its own, that of its configuration, or its class.
Chains in a run are parts of that run. A chain without a model, such as ``trim_messages(...)`` alone, prepares what the
program sends later, and is no run.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.bound_runs import ContextBoundRun
from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.langchain.prepared_runs import PreparedRun
from otel_assembly.instrumentation.langchain.runs import BRANCHES, PLACES, conversation_of
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly.instrumentation.instrumented import Instrumentation
    from otel_assembly.instrumentation.runs import Run

#: What the callbacks of a branch of a `RunnableParallel` are tagged with, in front of the branch's key.
_BRANCH_TAG: Final = "map:key:"
#: How deep chains are searched for a model.
_DEPTH: Final = 6
#: What calls a model, by module and class.
_ASKING: Final = (("langchain_core.language_models.base", "BaseLanguageModel"), ("langgraph.pregel.main", "Pregel"))
#: Whether a chain contains a model, by the chain.
_MODELS: Final[IdentityWeakMap[bool]] = IdentityWeakMap()


def _run(is_batch: bool, instrumentation: Instrumentation, chain: Any, /, *args: Any, **kwargs: Any) -> Run | None:
    given, around = argument(args, kwargs, 1, "config"), PLACES.run.get()
    configs = given if isinstance(given, list) else [given]
    config = next(iter(configs), None) or {}
    if around is not None and not around.ended:
        return _in_branch(instrumentation, around, config)
    history = (config.get("configurable") or {}).get("message_history")
    if history is None and not _MODELS.get_or_create(chain, _has_model):
        return None
    known = _held(chain)
    name = config.get("run_name") or known.get("name") or _named(chain)
    run = PreparedRun(
        PLACES,
        instrumentation,
        str(name),
        None if is_batch else conversation_of(config),
        at_once=True,
        is_batch=is_batch,
        begins_outside=True,
    )
    run.calls.conversation = history
    return run


def _held(chain: Any) -> dict[str, Any]:
    return getattr(chain, "__dict__", None) or {}


def _named(chain: Any) -> str:
    """The name of a function that is a chain, else the class."""
    name = getattr(_held(chain).get("func") or _held(chain).get("afunc"), "__name__", "<lambda>")
    return type(chain).__name__ if name == "<lambda>" else name


def _has_model(chain: Any, depth: int = _DEPTH) -> bool:
    """Whether a chain is a model or a graph, holds one, or is a function that refers to one."""
    if any(isinstance(chain, getattr(sys.modules.get(module), name, ())) for module, name in _ASKING):
        return True
    if depth == 0 or not (hasattr(type(chain), "model_fields") or hasattr(chain, "invoke")):
        return False
    held = [*_held(chain).values()]
    held.append([*_referenced(_held(chain).get("func")), *_referenced(_held(chain).get("afunc"))])
    return any(_has_model(part, depth - 1) for value in held for part in _parts(value) if hasattr(part, "__dict__"))


def _referenced(function: Any) -> Iterator[Any]:
    """Yield the objects that a function can use: `self`, globals and closure variables, and attributes that it names.

    LangChain's `RunnableLambda.deps` finds similar objects, but reads the source file, which blocks the event loop.
    """
    function = inspect.unwrap(function.func if isinstance(function, partial) else function)
    owner, function = getattr(function, "__self__", None), getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return
    names = _names(function.__code__)
    values = [function.__globals__.get(name) for name in names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable that is not assigned yet
            values.append(cell.cell_contents)
    for value in (owner, *values):
        yield getattr(value, "__self__", value)  # for a bound method such as `model.invoke`, the model
        held = _held(value)
        yield from (held[name] for name in names if name in held)


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _parts(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else (value,)


def _in_branch(instrumentation: Instrumentation, around: PreparedRun, config: Any) -> ContextBoundRun | None:
    """A chain in a run: where it begins a branch of it, what is prepared in that is no other branch's."""
    callbacks, branches = config.get("callbacks"), BRANCHES.get()
    parent = getattr(callbacks, "parent_run_id", None)
    branch = next((tag for tag in getattr(callbacks, "tags", ()) if tag.startswith(_BRANCH_TAG)), None)
    if branch is not None:
        branches = {**branches, parent: branch}
    if around.is_batch and around not in branches:
        branches = {**branches, around: parent}
    return None if branches is BRANCHES.get() else ContextBoundRun(instrumentation, None, {BRANCHES: branches})


def _called(instrumentation: Instrumentation, _: Any, /, *__: Any, **settings: Any) -> ContextBoundRun | None:
    around: Any = PLACES.run.get()
    if around is None or around.ended or not around.is_batch:
        return None
    return _in_branch(instrumentation, around, settings)


#: Around the methods by which a chain is called with one input, and with several.
run, batch = run_hook(partial(_run, False)), run_hook(partial(_run, True))
#: What a chat model is called in: of several inputs, each is for itself.
model_run = _called
