"""Functions of chains that take messages and return fewer of them, such as ``RunnableLambda(lambda x: x[-4:])``.

A function may take the messages as they are, as a prompt's value, or among other things in a dict. What it adds, such
as the user's new message, is no part of its reduction: it is what the call's prompt is made of, too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_assembly.instrumentation.hooks import observe_any_hook, observe_hook
from otel_assembly.instrumentation.langchain.runs import PLACES
from otel_assembly.instrumentation.reductions import Reduction, reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_assembly.instrumentation.hooks import Observation
    from otel_assembly.instrumentation.instrumented import Instrumentation

#: LangChain's own functions whose result consists of nothing but what they make of the messages.
_REDUCERS: Final = frozenset({"filter_messages", "merge_message_runs"})
#: LangChain wraps a function that is not async in one of these, and calls that by the same two functions.
_WRAPPERS: Final = "RunnableLambda."


def _observed(instrumentation: Instrumentation, func: Any, given: Any, /, *_: Any, **__: Any) -> Observation:
    function: Any = func.func if isinstance(func, partial) else func
    before = {} if reducing() is not None else dict(_lists(given))
    if not before or getattr(function, "__qualname__", "").startswith(_WRAPPERS):
        return
    name = getattr(function, "__name__", "<lambda>")
    known = name in _REDUCERS
    # They are made before the function runs: what that calls, such as `trim_messages`, is then a part of what it does.
    reductions = {
        key: Reduction(
            instrumentation,
            "RunnableLambda" if name == "<lambda>" else name,
            messages,
            kind="reduction" if known else None,
            finds=partial(PLACES.prepared, instrumentation),
        )
        for key, messages in before.items()
    }
    result = yield
    for key, messages in _lists(result, empty=True):
        source = _source(key, messages, before, known=known)
        reduction = reductions.pop(source, None)
        if reduction is not None:
            reduction.done(messages if known else _remaining(reduction.before, messages))


#: Around LangChain's functions that call what a `RunnableLambda` was made of.
called = observe_any_hook(_observed)


def _alone(name: str, instrumentation: Instrumentation, messages: Any, /, *_: Any, **__: Any) -> Observation:
    before = {} if reducing() is not None else dict(_lists(messages))
    for given in before.values():
        reduction = Reduction(instrumentation, name, given, finds=partial(PLACES.prepared, instrumentation))
        reduction.done((yield))


#: The module of those functions.
_MODULE: Final = "langchain_core.messages.utils"


def function(original: Callable[..., Any], instrumentation: Instrumentation) -> Callable[..., Any]:
    """The hook of one of LangChain's functions of messages, which returns a `RunnableLambda` if it is given none.

    What it calls is replaced, and not the function itself: so it does not matter when a program has imported it. If
    somebody else's wrapper hides what it calls, the function itself is wrapped.
    """
    cells = getattr(original, "__closure__", None) or ()
    cell = next((cell for cell in cells if getattr(cell.cell_contents, "__module__", "") == _MODULE), None)
    if cell is None:
        return observe_hook(partial(_alone, original.__name__))(original, instrumentation)
    inner = cell.cell_contents
    ours = observe_hook(partial(_alone, inner.__name__))(inner, instrumentation)
    cell.cell_contents = ours

    def rollback() -> None:
        if cell.cell_contents is ours:
            cell.cell_contents = inner

    instrumentation.ends.add(rollback)
    return original


def _lists(value: Any, *, empty: bool = False) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The lists of messages that a value is, or contains, by their keys."""
    if isinstance(value, Mapping):
        for key, held in value.items():
            if isinstance(held, list) and _is_list(held, empty=empty):
                yield key, held
        return
    messages = getattr(value, "messages", None) if hasattr(value, "to_messages") else value
    if isinstance(messages, list | tuple) and _is_list(messages, empty=empty):
        yield None, list(messages)


def _is_list(messages: Sequence[Any], *, empty: bool) -> bool:
    module: Any = sys.modules.get("langchain_core.messages.base")
    base: Any = getattr(module, "BaseMessage", ())
    return all(isinstance(message, base) for message in messages) if messages else empty


def _source(key: Any, messages: Sequence[Any], before: Mapping[Any, Sequence[Any]], *, known: bool) -> Any:
    """The key of the list that another list was made of: that which shares most messages with it."""
    there = set(map(id, messages))
    shared = {name: sum(id(message) in there for message in held) for name, held in before.items()}
    most = max(shared, key=lambda name: (shared[name], name == key))
    if shared[most]:
        return most
    return key if key in before and (known or not messages) else _NONE


#: No key of any dict.
_NONE: Final = object()


def _remaining(before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
    """What is left of the messages, with what stands for those that left.

    A new message behind the last that is left is the program's next one, and a new system message is an instruction.
    Where no message left, nothing stands for any.
    """
    held, there = set(map(id, before)), set(map(id, after))
    if held <= there:
        return before
    last = max((place for place, message in enumerate(after) if id(message) in held), default=-1)
    return [
        message
        for place, message in enumerate(after)
        if id(message) in held or (place < last and message.type != "system")
    ]
