"""Whatever stands in the place of a framework's function: it is called as Python calls it, and put back as it was."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import sys
import types
from unittest.mock import AsyncMock, Mock

import pytest
import wrapt

from otel_assembly.instrumentation import AssemblyInstrumentor, Hook, HookState


class Plain:
    """A framework's class."""

    def __init__(self, name="one"):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Plain) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def method(self, *args, **kwargs):
        """What it does."""
        return "method", self.name, args, kwargs

    async def awaited(self, *args):
        return "awaited", self.name, args

    async def stream(self, *args):
        yield self.name
        yield args

    def generator(self, *args):
        yield from (self.name, args)

    @classmethod
    def of_class(cls, *args):
        return "class", cls.__name__, args

    @classmethod
    async def stream_of_class(cls, *args):
        yield cls.__name__
        yield args

    @staticmethod
    def static(*args):
        return "static", args


def function(*args):
    return "function", args


def seen(calls):
    """What our hooks are: functions of the receiver that call on, and are inert after `uninstrument()`."""

    def wrap(original, instrumentation):
        @functools.wraps(original)
        def hook(*args, **kwargs):
            if instrumentation.open:
                calls.append(args)
            return original(*args, **kwargs)

        return hook

    return wrap


def seen_async(calls):
    def wrap(original, instrumentation):
        @functools.wraps(original)
        async def hook(*args, **kwargs):
            if instrumentation.open:
                calls.append(args)
            return await original(*args, **kwargs)

        return hook

    return wrap


class Hooked:
    """One attribute of a module, or of a class in it, that is hooked."""

    def __init__(self, module, target, wrap):
        hook = Hook(module.__name__, target, wrap, "everything")

        class Instrumentor(AssemblyInstrumentor):
            framework = "pretend"
            requires = ()
            hooks = (hook,)

        self.instrumentor = Instrumentor()
        self.instrumentor.instrument()
        self.state = self.instrumentor.states[hook.name]

    def leave(self):
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.instrumentor.uninstrument()


@pytest.fixture
def hook(monkeypatch):
    """Hooks something of a class, or of a module."""
    hooked = []

    def hook(owner, name, wrap=None):
        module, target = owner, name
        if not isinstance(owner, types.ModuleType):
            module, target = sys.modules.get(owner.__module__), f"{owner.__qualname__}.{name}"
            if getattr(module, owner.__qualname__, None) is not owner:
                module = types.ModuleType(f"pretend_{len(hooked)}")
                setattr(module, owner.__qualname__, owner)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        hooked.append(Hooked(module, target, wrap or seen([])))
        return hooked[-1]

    yield hook
    for item in hooked:
        item.leave()


class Own:
    """A decorator of somebody's own: it binds, and hides what it stands around."""

    def __init__(self, inner):
        self._inner = inner
        self.label = "own"

    def __get__(self, instance, owner):
        return lambda *args, **kwargs: ("own", *self._inner.__get__(instance, owner)(*args, **kwargs))


class Hybrid(Own):
    """One that does something else where it is asked of the class."""

    def __get__(self, instance, owner):
        return (lambda *args: ("of the class", args)) if instance is None else super().__get__(instance, owner)


class Data(Own):
    def __set__(self, instance, value):
        vars(instance)["given"] = value

    def __delete__(self, instance):
        del vars(instance)["given"]


class Called:
    """It is called, and never bound."""

    def __call__(self, *args):
        return "called", args


def wrapt_around(there):
    def decorate(wrapped, instance, args, kwargs):
        receiver = getattr(instance, "name", getattr(instance, "__name__", None))
        return ("wrapt", receiver, *wrapped(*args, **kwargs))

    return wrapt.FunctionWrapper(there, decorate)


def decorated(there):
    @functools.wraps(there)
    def decorate(self, *args, **kwargs):
        return ("decorated", *there(self, *args, **kwargs))

    return decorate


def undocumented(there):
    return lambda self, *args: ("lambda", *there(self, *args))


#: What may stand where a framework's instance method stood.
METHODS = {
    "function": lambda there: there,
    "wrapt": wrapt_around,
    "wrapt twice": lambda there: wrapt_around(wrapt_around(there)),
    "functools": decorated,
    "lambda": undocumented,
    "wrapt around functools": lambda there: wrapt_around(decorated(there)),
    "functools around wrapt": lambda there: decorated(lambda self, *args: wrapt_around(there).__get__(self)(*args)),
    "partialmethod": lambda there: functools.partialmethod(there, "first"),
    "partialmethod of wrapt": lambda there: functools.partialmethod(wrapt_around(there), "first"),
    "descriptor": Own,
    "descriptor around wrapt": lambda there: Own(wrapt_around(there)),
    "hybrid": Hybrid,
    "data descriptor": Data,
    "property": lambda there: property(lambda self: functools.partial(there, self, "from a property")),
    "method of an object": lambda _: Called().__call__,
    "callable object": lambda _: Called(),
    "partial": lambda _: functools.partial(function, "first"),
    "builtin": lambda _: max,
    "class": lambda _: complex,
    "mock": lambda _: Mock(return_value=("mock",)),
    "object proxy": wrapt.CallableObjectProxy,
}


def shown(call):
    """What a call gives, or how it fails."""
    try:
        return call()
    except Exception as error:
        return type(error)


def every_way(kind, name="method"):
    """Each way to call something that a class has: of an instance, of a subclass's, of the class, by `super()`."""

    class Sub(kind):
        pass

    class Super(kind):
        pass

    def by_super(self, *args):
        return getattr(super(Super, self), name)(*args)

    setattr(Super, name, by_super)
    one = kind("one")
    return [
        shown(lambda: getattr(one, name)(1, 2)),
        shown(lambda: getattr(Sub("two"), name)(3, 4)),
        shown(lambda: getattr(kind, name)(one, 5)),
        shown(lambda: getattr(Sub, name)(Sub("three"), 6)),
        shown(lambda: getattr(Super("four"), name)(7, 8)),
        shown(lambda: vars(kind)[name](one, 9)),
        shown(lambda: getattr(one, name)()),
        shown(lambda: getattr(kind, name)()),
    ]


def with_it(make, name="method"):
    """A class of its own in which that stands."""

    class Kind(Plain):
        pass

    Kind.__qualname__ = Kind.__name__ = "Kind"
    inner = vars(Plain)[name]
    setattr(Kind, name, make(inner))
    return Kind


# Python 3.13 warns that a partial in a class will be a method in 3.14.
@pytest.mark.filterwarnings("ignore:functools.partial will be:FutureWarning")
@pytest.mark.parametrize("made_by", METHODS)
def test_it_is_called_as_python_calls_it_and_put_back_as_it_was(hook, made_by):
    kind = with_it(METHODS[made_by])
    before, there, calls = every_way(kind), vars(kind)["method"], []
    hooked = hook(kind, "method", seen(calls))
    assert hooked.state is HookState.TAKEN
    assert vars(kind)["method"] is not there
    assert every_way(kind) == before
    assert len(calls) >= 3, "the hook has seen the calls of an instance"
    assert all(isinstance(args[0], Plain) for args in calls if args), "and the instance first"
    hooked.leave()
    assert vars(kind)["method"] is there


@pytest.mark.parametrize("decorate", [lambda there: there, wrapt_around], ids=["itself", "wrapt"])
@pytest.mark.parametrize("name", ["of_class", "static"])
def test_class_and_static_methods_stay_what_they_are_and_the_wrapper_around_them_is_called(hook, name, decorate):
    kind = with_it(decorate, name)
    before, there = every_way(kind, name), vars(kind)[name]
    calls = []
    hooked = hook(kind, name, seen(calls))
    assert every_way(kind, name) == before
    assert calls
    assert isinstance(vars(kind)[name], type(vars(Plain)[name]))
    if name == "of_class":
        assert all(issubclass(args[0], Plain) for args in calls)
    hooked.leave()
    assert vars(kind)[name] is there


def test_a_wrapper_inside_of_a_class_method_is_bound_too(hook):
    kind = with_it(lambda _: classmethod(wrapt_around(lambda cls, *args: (cls.__name__, args))), "of_class")
    before, calls = every_way(kind, "of_class"), []
    hook(kind, "of_class", seen(calls))
    assert every_way(kind, "of_class") == before
    assert calls


@pytest.mark.parametrize(
    "there",
    [function, wrapt_around(function), functools.partial(function, 1), Called(), max, Mock(return_value=7)],
    ids=["function", "wrapt", "partial", "object", "builtin", "mock"],
)
def test_what_stands_in_a_module_is_called_as_it_is(hook, there):
    module = types.ModuleType("a_framework")
    module.trim = there
    before = module.trim(3, 4)
    calls = []
    hooked = hook(module, "trim", seen(calls))
    assert module.trim(3, 4) == before
    assert calls == [(3, 4)]
    hooked.leave()
    assert module.trim is there


@pytest.mark.parametrize("value", [None, 4, "text", property(lambda self: 4)], ids=["none", "int", "str", "property"])
def test_what_nobody_can_call_stays_what_it_gives(hook, value):
    class Kind:
        method = value

    module = types.ModuleType("a_framework")
    module.trim = value
    hooked = hook(Kind, "method")
    assert hook(module, "trim").state is HookState.MISSING
    assert Kind().method == (4 if isinstance(value, property) else value)
    hooked.leave()
    assert vars(Kind)["method"] is value


def test_a_descriptor_that_takes_assignments_goes_on_to(hook):
    kind = with_it(Data)
    hook(kind, "method")
    one = kind()
    one.method = 3
    assert vars(one)["given"] == 3
    del one.method
    assert "given" not in vars(one)
    assert one.method(1)[0] == "own"
    ordinary = kind_of = with_it(Own)
    hook(kind_of, "method")
    other = ordinary()
    other.method = lambda: "its own"
    assert other.method() == "its own"


def inside(make, there):
    """What another decorator makes, inside of a class method or of a static one."""
    return type(there)(make(there.__func__))


def looks(found):
    """What somebody finds out who looks at it."""
    return (
        inspect.iscoroutinefunction(found),
        inspect.isasyncgenfunction(found),
        inspect.isgeneratorfunction(found),
        inspect.ismethod(found),
        inspect.isfunction(found),
        callable(found),
        str(inspect.signature(found)),
        found.__name__,
        found.__qualname__,
        found.__module__,
        found.__doc__,
    )


@pytest.mark.parametrize(
    "decorate", [lambda there: there, wrapt_around, decorated], ids=["itself", "wrapt", "functools"]
)
@pytest.mark.parametrize("kind_of_hook", [seen, seen_async])
@pytest.mark.parametrize("name", ["method", "awaited", "stream", "generator", "of_class", "stream_of_class", "static"])
def test_it_looks_as_it_did_whatever_kind_of_function_our_hook_is(hook, name, kind_of_hook, decorate):
    if decorate is decorated and isinstance(vars(Plain)[name], classmethod | staticmethod):
        decorate = functools.partial(inside, decorated)
    kind = with_it(decorate, name)
    there = vars(kind)[name]
    before = looks(getattr(kind(), name)), looks(getattr(kind, name))
    hook(kind, name, kind_of_hook([]))
    assert (looks(getattr(kind(), name)), looks(getattr(kind, name))) == before
    ours = vars(kind)[name]
    assert ours.__wrapped__ is (there.__func__ if type(there) in {classmethod, staticmethod} else there) or (
        ours.__func__.__wrapped__ is there.__func__
    )
    assert inspect.unwrap(getattr(kind, name)).__code__ is vars(Plain)[name].__get__(None, kind).__code__


def test_an_attribute_that_somebody_gave_a_wrapper_is_found(hook):
    kind = with_it(Own)
    hook(kind, "method")
    assert vars(kind)["method"].label == "own"
    with pytest.raises(AttributeError):
        vars(kind)["method"].nothing  # noqa: B018


def test_methods_are_equal_and_hash_as_before(hook):
    for make in METHODS["function"], METHODS["wrapt"], METHODS["partialmethod"]:
        kind = with_it(make)
        one = kind()
        same = one.method == one.method
        hook(kind, "method")
        assert (one.method == one.method) is same
        assert one.method != kind().method
        if same:
            assert hash(one.method) == hash(one.method)


class Pickled(Plain):
    def method(self, *args):
        return "pickled", args

    async def stream(self, *args):
        yield args


def pickled(*args):
    yield args


@pytest.mark.parametrize("target", ["Pickled.method", "Pickled.stream", "pickled"])
def test_functions_and_methods_are_pickled_and_copied_by_their_names(hook, target):
    module = sys.modules[__name__]
    owner, name = (Pickled, target.partition(".")[2]) if "." in target else (module, target)
    hooked = hook(owner, name)
    try:
        ours = vars(owner)[name]
        assert pickle.loads(pickle.dumps(ours)) is ours
        assert copy.deepcopy(ours) is ours
        if owner is Pickled:
            method = pickle.loads(pickle.dumps(getattr(Pickled("x"), name)))
            assert (method.__self__.name, method.__func__) == ("x", ours)
    finally:
        hooked.leave()


async def test_a_method_that_only_looks_async_and_one_that_only_looks_as_if_it_were_not(hook):
    def task(there):
        @functools.wraps(there)
        def decorate(self, *args):
            return asyncio.ensure_future(there(self, *args))

        return decorate

    kind = with_it(task, "awaited")
    calls = []
    hook(kind, "awaited", seen_async(calls))
    assert not inspect.iscoroutinefunction(kind().awaited)
    assert await kind().awaited(1) == ("awaited", "one", (1,))
    kind = with_it(lambda there: AsyncMock(return_value="mocked"), "awaited")
    hook(kind, "awaited", seen_async(calls))
    assert await kind().awaited(2) == "mocked"
    kind.awaited.assert_awaited_once_with(2)
    assert len(calls) == 2


@pytest.mark.parametrize("theirs_first", [True, False])
@pytest.mark.parametrize("they_leave_first", [True, False])
@pytest.mark.parametrize("name", ["method", "awaited", "stream", "of_class", "static"])
def test_two_who_wrap_and_unwrap_in_any_order_leave_nothing_that_is_heard(hook, name, theirs_first, they_leave_first):
    """The other one keeps what it found, and puts it back; it is as most instrumentations are written."""

    def called():
        found = getattr(kind("x"), name)(1)
        return "stream" if name == "stream" else asyncio.run(found) if name == "awaited" else found

    kind = with_it(lambda there: there, name)
    bare, at_first = called(), vars(kind)[name]
    calls, found, hooked = [], [], []

    def theirs():
        found.append(vars(kind)[name])
        wrapt.wrap_function_wrapper(kind, name, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))

    def ours():
        hooked.append(hook(kind, name, (seen_async if name == "awaited" else seen)(calls)))

    def they_leave():
        setattr(kind, name, found[0])

    def we_leave():
        hooked[0].leave()

    for wraps in (theirs, ours) if theirs_first else (ours, theirs):
        wraps()
    assert called() == bare
    assert len(calls) == 1
    for leaves in (they_leave, we_leave) if they_leave_first else (we_leave, they_leave):
        leaves()
        assert called() == bare
    heard = len(calls)
    assert called() == bare
    assert len(calls) == heard
    if theirs_first is not they_leave_first:  # who came last left first
        assert vars(kind)[name] is at_first


def test_opentelemetrys_own_way_to_take_a_wrapper_off_works_over_ours(hook):
    from opentelemetry.instrumentation.utils import unwrap

    for make in METHODS.values():
        kind = with_it(make)
        before = every_way(kind)
        hooked = hook(kind, "method")
        wrapt.wrap_function_wrapper(kind, "method", lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs))
        assert every_way(kind)[:2] == before[:2]
        unwrap(kind, "method")
        assert every_way(kind)[:3] == before[:3]
        hooked.leave()
        assert every_way(kind)[:3] == before[:3]


def test_a_class_that_another_one_wraps_is_found_in_the_module(hook):
    there = vars(Plain)["method"]
    module = types.ModuleType("a_framework")
    module.Kind = wrapt.FunctionWrapper(Plain, lambda wrapped, _, args, kwargs: wrapped(*args, **kwargs))
    module.Other = functools.partial(Plain)  # what class is behind it, nobody is told
    calls = []
    hooked = hook(module, "Kind.method", seen(calls))
    assert hooked.state is HookState.TAKEN
    assert module.Kind("x").method(1) == Plain("x").method(1)
    assert len(calls) == 2
    hooked.leave()
    assert vars(Plain)["method"] is there
    assert hook(module, "Other.method").state is HookState.MISSING
    assert hook(module, "Kind.nothing").state is HookState.MISSING
