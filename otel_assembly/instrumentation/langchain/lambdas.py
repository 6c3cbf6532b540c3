"""Hooks of functions in chains that get messages and return fewer, such as ``RunnableLambda(lambda x: x[-4:])``.

The hooks are on `call_func_with_variable_args`, with which LangChain calls such functions, and on `filter_messages` and
`merge_message_runs`. A function may get a list of messages, a prompt value, or a dict that contains lists of messages.
Messages that it adds, such as the user's next message, are not recorded as a part of its reduction; they are recorded
as part of the model call's input.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.hooks import observe_hook
from otel_assembly.instrumentation.langchain.runs import GRAPH_CONTEXT
from otel_assembly.instrumentation.reductions import Reduction, reducing
from otel_assembly.observe.step_report import StepReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: LangChain's functions whose result is only a reduction of their input.
_REDUCERS: Final = frozenset({"filter_messages", "merge_message_runs"})
#: The prefix of the functions in which LangChain wraps sync functions; they call `call_func_with_variable_args` again.
_WRAPPERS: Final = "RunnableLambda."


def _observe_function(instrumentation: Instrumentation, func: Any, value: Any, /, *_: Any, **__: Any) -> Observation:
    """Observe one call of a chain's function: record a reduction for each list of messages in its input."""
    function: Any = func.func if isinstance(func, partial) else func
    inputs = {} if reducing() is not None else dict(_message_lists(value))  # a reducer is recorded without its parts
    if not inputs or getattr(function, "__qualname__", "").startswith(_WRAPPERS):
        return
    name = getattr(function, "__name__", "<lambda>")
    is_reducer, policy = name in _REDUCERS, "RunnableLambda" if name == "<lambda>" else name
    # None: the program's function need not be a reducer, so a call of it that changes nothing is not counted.
    kind = "reduction" if is_reducer else None
    find_call = partial(GRAPH_CONTEXT.call_for_reducer, instrumentation)
    # Created before the function runs, so that reducers that it calls, such as `trim_messages`, are parts of its step.
    reductions = {
        key: Reduction(instrumentation, StepReport(policy, messages, kind=kind), find_call=find_call)
        for key, messages in inputs.items()
    }
    result = yield
    for key, messages in _message_lists(result, allow_empty=True):
        reduction = reductions.pop(_source_key(key, messages, inputs, is_reducer=is_reducer), None)
        if reduction is not None:
            reduction.done(messages if is_reducer else _without_additions(reduction.before, messages))


#: Hook of ``call_func_with_variable_args`` and ``acall_func_with_variable_args``.
call_function = observe_hook(_observe_function)


def _observe_message_function(
    name: str, instrumentation: Instrumentation, value: Any, /, *_: Any, **__: Any
) -> Observation:
    messages = next((messages for _, messages in _message_lists(value)), None)
    if messages is not None and reducing() is None:
        find_call = partial(GRAPH_CONTEXT.call_for_reducer, instrumentation)
        reduction = Reduction(instrumentation, StepReport(name, messages), find_call=find_call)
        reduction.done((yield))


#: The module of these two functions.
_MODULE: Final = "langchain_core.messages.utils"


def message_function(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """Wrap `filter_messages` or `merge_message_runs`.

    LangChain defines them with a decorator, whose closure contains the undecorated function. The hook replaces the
    function in the closure, so that it works for programs that imported the decorated function earlier. If another
    library has wrapped the decorated function, its closure contains no such function, so the hook wraps the wrapper.
    """
    cells = getattr(original, "__closure__", None) or ()
    cell = next((cell for cell in cells if getattr(cell.cell_contents, "__module__", "") == _MODULE), None)
    if cell is None:
        return observe_hook(partial(_observe_message_function, original.__name__))(original, instrumentation)
    inner = cell.cell_contents
    wrapper = observe_hook(partial(_observe_message_function, inner.__name__))(inner, instrumentation)
    cell.cell_contents = wrapper

    def rollback() -> None:
        if cell.cell_contents is wrapper:
            cell.cell_contents = inner

    instrumentation.ends.add(rollback)
    return original


def _message_lists(value: Any, *, allow_empty: bool = False) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yield the lists of messages in a function's input or output, with their keys if it is a dict, or else None.

    An output may be empty, because the function may have dropped all messages.
    """
    if isinstance(value, Mapping):
        for key, element in value.items():
            if isinstance(element, list) and _are_messages(element, allow_empty=allow_empty):
                yield key, element
        return
    messages = getattr(value, "messages", None) if hasattr(value, "to_messages") else value
    if isinstance(messages, list | tuple) and _are_messages(messages, allow_empty=allow_empty):
        yield None, list(messages)


def _are_messages(messages: Sequence[Any], *, allow_empty: bool) -> bool:
    module: Any = sys.modules.get("langchain_core.messages.base")
    base: Any = getattr(module, "BaseMessage", ())
    return all(isinstance(message, base) for message in messages) if messages else allow_empty


def _source_key(key: Any, messages: Sequence[Any], inputs: Mapping[Any, Sequence[Any]], *, is_reducer: bool) -> Any:
    """Return the key of the input list that an output list derives from: the one that shares most messages with it.

    Without shared messages, that is the input with the same key if the output is empty, or if the function is a reducer
    of LangChain's, which may return copies. Otherwise it is an object that equals no key.
    """
    output_ids = set(map(id, messages))
    shared = {name: sum(id(message) in output_ids for message in before) for name, before in inputs.items()}
    best = max(shared, key=lambda name: (shared[name], name == key))
    if shared[best]:
        return best
    return key if key in inputs and (is_reducer or not messages) else object()  # None can be a key


def _without_additions(before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
    """Return the output of a function without the messages that it added to those of its input.

    A new message before the last kept one is a replacement of removed messages, such as a summary. A new message after
    it is an addition, such as the user's next message, and so is a new system message.
    """
    before_ids, after_ids = set(map(id, before)), set(map(id, after))
    if before_ids <= after_ids:  # nothing was removed, so there are no replacements either
        return before
    last = max((index for index, message in enumerate(after) if id(message) in before_ids), default=-1)
    return [
        message
        for index, message in enumerate(after)
        if id(message) in before_ids or (index < last and message.type != "system")
    ]
