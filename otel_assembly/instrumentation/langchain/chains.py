"""Hooks of chains: LangChain's runnables, such as ``prompt | model``, and the chains of ``langchain_classic``.

The outermost chain that contains a model is one run. Its name is the config's ``run_name``, the chain's own name, or
its class. Chains inside of a run are parts of that run. A chain without a model, such as ``trim_messages(...)`` alone,
is no run: it only prepares messages that the program sends later.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.conversation import IdentityWeakMap
from otel_assembly.instrumentation.instrumented import argument
from otel_assembly.instrumentation.langchain.runs import BRANCHES, GRAPH_CONTEXT, PreparedRun, conversation_of
from otel_assembly.instrumentation.run_types import ContextBoundRun
from otel_assembly.instrumentation.runs import run_hook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_assembly._internal.tracked_runs import TrackedRun
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: The prefix of the callback tag with which a `RunnableParallel` marks a branch; the branch's key follows.
_BRANCH_TAG: Final = "map:key:"
#: The most levels of nested chains that are searched for a model.
_MAX_DEPTH: Final = 6
#: Classes whose objects call a model, by module and class.
_MODEL_CLASSES: Final = (
    ("langchain_core.language_models.base", "BaseLanguageModel"),
    ("langgraph.pregel.main", "Pregel"),
)
#: The result of `_has_model` by chain.
_HAS_MODEL: Final[IdentityWeakMap[bool]] = IdentityWeakMap()


def _begin_run(
    is_batch: bool, instrumentation: Instrumentation, chain: Any, /, *args: Any, **kwargs: Any
) -> TrackedRun | None:
    """Begin a run outside of any other, if the chain contains a model; inside of one, the branch that it begins."""
    config_argument, outer_run = argument(args, kwargs, 1, "config"), GRAPH_CONTEXT.run.get()
    configs = config_argument if isinstance(config_argument, list) else [config_argument]
    config = next(iter(configs), None) or {}
    if outer_run is not None and not outer_run.ended:
        return _branch_run(instrumentation, outer_run, config)
    # Set by `RunnableWithMessageHistory`, which programs use only around a model.
    history = (config.get("configurable") or {}).get("message_history")
    if history is None and not _HAS_MODEL.get_or_create(chain, _has_model):
        return None
    attributes = _attributes(chain)
    function_name = getattr(attributes.get("func") or attributes.get("afunc"), "__name__", "<lambda>")
    default_name = type(chain).__name__ if function_name == "<lambda>" else function_name
    run = PreparedRun(
        GRAPH_CONTEXT,
        instrumentation,
        str(config.get("run_name") or attributes.get("name") or default_name),
        None if is_batch else conversation_of(config),
        at_once=True,
        is_batch=is_batch,
        begins_outside=True,
    )
    run.calls.conversation = history  # identifies the conversation if it has no id
    return run


def _attributes(chain: Any) -> dict[str, Any]:
    return getattr(chain, "__dict__", None) or {}


def _has_model(chain: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return True if a chain is a model or a graph, contains one, or is a function that refers to one."""
    if any(isinstance(chain, getattr(sys.modules.get(module), name, ())) for module, name in _MODEL_CLASSES):
        return True
    if depth == 0 or not (hasattr(type(chain), "model_fields") or hasattr(chain, "invoke")):
        return False  # neither a Pydantic object, which may contain a chain, nor a runnable
    attributes = _attributes(chain)
    parts = [*_objects_used_by(attributes.get("func")), *_objects_used_by(attributes.get("afunc"))]
    for value in attributes.values():
        parts += value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else (value,)
    return any(_has_model(part, depth - 1) for part in parts if hasattr(part, "__dict__"))


def _objects_used_by(function: Any) -> Iterator[Any]:
    """Yield the objects through which a function can call a model.

    These are the object of a bound method, the closure variables, the globals that the code names, and those of their
    attributes that the code names, such as ``model`` in ``self.model.invoke(…)``. LangChain's `RunnableLambda.deps`
    finds similar objects, but reads the source file, which blocks the event loop.
    """
    function = inspect.unwrap(function.func if isinstance(function, partial) else function)
    owner, function = getattr(function, "__self__", None), getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return
    names = _names_in(function.__code__)
    values = [function.__globals__.get(name) for name in names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable that is not assigned yet
            values.append(cell.cell_contents)
    for value in (owner, *values):
        yield getattr(value, "__self__", value)  # for a bound method such as `model.invoke`, the model
        attributes = _attributes(value)
        yield from (attributes[name] for name in names if name in attributes)


def _names_in(code: CodeType) -> set[str]:
    """Return the global and attribute names in a function's code and in the functions that it defines."""
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _branch_run(instrumentation: Instrumentation, outer_run: PreparedRun, config: Any) -> ContextBoundRun | None:
    """Return a run that sets `BRANCHES` if a chain begins a branch of a `RunnableParallel`, or one input of a batch."""
    callbacks, branches = config.get("callbacks"), BRANCHES.get()
    # The id that LangChain gave the call of the runnable around this one; each input of a batch is a separate call.
    parent = getattr(callbacks, "parent_run_id", None)
    branch = next((tag for tag in getattr(callbacks, "tags", ()) if tag.startswith(_BRANCH_TAG)), None)
    if branch is not None:
        branches = {**branches, parent: branch}
    if outer_run.is_batch and outer_run not in branches:  # the outermost chain that works on one input of the batch
        branches = {**branches, outer_run: parent}
    return None if branches is BRANCHES.get() else ContextBoundRun(instrumentation, None, {BRANCHES: branches})


def model_run(instrumentation: Instrumentation, _: Any, /, *__: Any, **settings: Any) -> ContextBoundRun | None:
    """Return the branch run for a model call that is one input of a batch of a chain; models have no hook of runs."""
    outer_run: Any = GRAPH_CONTEXT.run.get()
    is_in_batch = outer_run is not None and not outer_run.ended and outer_run.is_batch
    return _branch_run(instrumentation, outer_run, settings) if is_in_batch else None


#: Hooks of the methods that call a chain with one input, and with several.
run, batch = run_hook(partial(_begin_run, False)), run_hook(partial(_begin_run, True))
