"""A warning that counts frames names the program's own line, whatever wrapper of ours is in between."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
from pretend_instrumentor import reading

import otel_assembly.instrumentation
from otel_assembly.instrumentation import (
    ClientRequest,
    Instrumentation,
    TrackedRun,
    client,
    observe_async_hook,
    observe_hook,
    reducer,
    run_hook,
)


class Warner:
    """A framework's class: each function warns that its caller should call another one."""

    def plain(self):
        warnings.warn("call something else", DeprecationWarning, stacklevel=2)
        logging.getLogger("framework").warning("call something else", stacklevel=2)

    async def coroutine(self):
        warnings.warn("call something else", DeprecationWarning, stacklevel=2)
        logging.getLogger("framework").warning("call something else", stacklevel=2)

    def generator(self):
        warnings.warn("call something else", DeprecationWarning, stacklevel=2)
        logging.getLogger("framework").warning("call something else", stacklevel=2)
        yield

    async def async_generator(self):
        warnings.warn("call something else", DeprecationWarning, stacklevel=2)
        logging.getLogger("framework").warning("call something else", stacklevel=2)
        yield

    def raises(self):
        raise ValueError("no")


class Run(TrackedRun):
    """A run of which nothing is recorded."""

    @contextmanager
    def current(self):
        yield

    def end(self, error=None):
        """It is over."""


def observed(_, *__):
    yield


def run_of(_, *__):
    return Run()


READS = reading(lambda _: [], policy="window")
SENT = client(lambda _: ClientRequest([]))
WRAPPERS = {
    "plain": [observe_hook(observed), reducer(READS), run_hook(run_of), SENT],
    "coroutine": [observe_async_hook(observed), reducer(READS), run_hook(run_of), SENT],
    "generator": [run_hook(run_of), SENT],
    "async_generator": [run_hook(run_of), SENT],
}
CALLS = [(name, wrapper) for name, wrappers in WRAPPERS.items() for wrapper in wrappers]


class Called:
    """A wrapper of somebody else, which is no function: ours is then no function either."""

    def __init__(self, function):
        self.__wrapped__ = function

    def __get__(self, instance, owner=None):
        return self.__wrapped__.__get__(instance, owner)

    def __call__(self, *args):
        return self.__wrapped__(*args)


async def call(warner, name):
    """Call it as a program does."""
    function = getattr(warner, name)
    if name == "plain":
        return function()
    if name == "coroutine":
        return await function()
    if name == "generator":
        return list(function())
    return [part async for part in function()]


@pytest.fixture
def wrapped(assembly_telemetry):
    """A function that wraps one method of the class in this, and is undone at the end."""
    instrumentation = Instrumentation("framework", assembly_telemetry.recorder)

    def wrap(name, wrapper, *, in_object=False):
        kind = type("Wrapped", (Warner,), {name: vars(Warner)[name]})
        if in_object:
            setattr(kind, name, Called(vars(Warner)[name]))
        assert instrumentation.patches.wrap(kind, name, lambda original: wrapper(original, instrumentation))
        return kind()

    yield wrap
    instrumentation.patches.restore()


@pytest.mark.parametrize("in_object", [False, True])
@pytest.mark.parametrize(("name", "wrapper"), CALLS)
async def test_a_warning_names_the_line_that_it_would_name_without_us(wrapped, caplog, name, wrapper, in_object):
    places = []
    for warner in (Warner(), wrapped(name, wrapper, in_object=in_object and name in {"plain", "coroutine"})):
        caplog.clear()
        with pytest.warns(DeprecationWarning, match="call something else") as caught:
            await call(warner, name)
        places.append(
            [(warning.filename, warning.lineno) for warning in caught]
            + [(record.pathname, record.lineno) for record in caplog.records]
        )
    assert places[0] == places[1]
    assert {file for file, _ in places[0]} == {__file__}


def test_a_traceback_still_lists_the_wrapper_with_its_source(wrapped):
    with pytest.raises(ValueError, match="no") as raised:
        wrapped("raises", observe_hook(observed)).raises()
    lines = traceback.format_tb(raised.tb)
    assert any("instrumentation/hooks.py" in line and "original(*args, **kwargs)" in line for line in lines)


def test_a_framework_that_warns_of_a_deprecated_call_names_the_program(assembly_telemetry):
    from langchain_core.runnables import RunnableLambda

    from otel_assembly.instrumentation import instrument, uninstrument

    def old(_):
        warnings.warn("call something else", DeprecationWarning, stacklevel=2)

    def run(runnable):
        runnable.invoke(1)
        asyncio.run(runnable.ainvoke(1))

    places = []
    for instrumented in (False, True):
        if instrumented:
            instrument("langchain")
        with pytest.warns(DeprecationWarning, match="call something else") as caught:
            run(RunnableLambda(old))
        places.append([(warning.filename, warning.lineno) for warning in caught])
    uninstrument("langchain")
    assert places[0] == places[1]


def test_each_module_that_calls_an_original_hides_its_frames():
    calling = re.compile(r"^ +(?:return |result = |answer = )?(?:await )?original\(", re.MULTILINE)
    for path in Path(otel_assembly.instrumentation.__file__).parent.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if calling.search(source):
            assert source.endswith("hide_frames(globals())\n"), path
