"""A method of a base class that each class may have of its own, wrapped alike in all of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from otel_assembly.instrumentation import Hook, Instrumentation, SubclassHook, find, in_module


def shouts(original, instrumentation):
    return lambda *args: original(*args).upper()


def test_one_wrap_is_that_of_each_class():
    class Base:
        def say(self):
            return "base"

    class Own(Base):
        def say(self):
            return "own"

    instrumentation = Instrumentation("test")
    SubclassHook.for_method("say", shouts).wrap_subclasses(Base, instrumentation)
    assert (Base().say(), Own().say()) == ("BASE", "OWN")
    instrumentation.patches.restore()
    assert (Base().say(), Own().say()) == ("base", "own")


def test_the_rows_of_a_module_may_all_be_followed():
    rows = ("Base.say Base.ask", shouts, "what is said"), ("Base.hear", shouts, "what is heard", ">= 2")
    hooks = in_module("some.module", *rows, versions=">= 1", followed=True)
    assert [hook.target for hook in hooks] == ["Base.say", "Base.ask", "Base.hear"]
    assert [hook.wrap.method for hook in hooks] == ["say", "ask", "hear"]
    assert [hook.versions for hook in hooks] == [">= 1", ">= 1", ">= 2"]
    for_each = in_module("some.module", *rows, followed=lambda met: met.__name__ == "Left")
    assert [hook.wrap.wrap for hook in for_each] == [shouts] * 3
    assert in_module("some.module", *rows)[0] == Hook("some.module", "Base.say", shouts, "what is said")


def test_classes_that_a_metaclass_makes_are_followed_wherever_they_derive_from():
    class Makes(type):
        pass

    class Mixin:
        def say(self):
            return "mixin"

    class Earlier(metaclass=Makes):
        def say(self):
            return "earlier"

    class Other:
        def say(self):
            return "other"

    instrumentation = Instrumentation("test")
    following = SubclassHook.for_method("say", shouts, lambda met: met.__name__ == "Left")
    following.wrap_subclasses(Makes, instrumentation)

    class LateSubclass(Mixin, metaclass=Makes):
        pass

    class Derived(Earlier):
        def say(self):
            return "derived"

    class Left(metaclass=Makes):
        def say(self):
            return "left"

    made = Makes("Made", (), {"say": lambda self: "made"})
    said = [met().say() for met in (Earlier, LateSubclass, Derived, made, Left, Other)]
    assert said == ["EARLIER", "MIXIN", "DERIVED", "MADE", "left", "other"]
    following.stop_watching()
    instrumentation.patches.restore()
    assert "__init__" not in vars(Makes)
    said = [met().say() for met in (Earlier, LateSubclass, Derived, made, Left, Other)]
    assert said == ["earlier", "mixin", "derived", "made", "left", "other"]


def test_a_class_that_a_decorator_makes_once_more_is_wrapped_once():
    class Base:
        def say(self):
            return "base"

    instrumentation = Instrumentation("test")
    owners = []

    def noted(original, owner, _):
        owners.append(owner)
        return lambda *args: original(*args) + "!"

    SubclassHook("say", noted).wrap_subclasses(Base, instrumentation)

    @dataclass(slots=True)
    class Made(Base):
        word: str = "made"

        def say(self):
            return self.word

    there = [owner for owner in owners if owner.__name__ == "Made"]
    assert there[-1] is Made
    assert Made().say() == "made!"
    instrumentation.patches.restore()
    assert Made().say() == "made"
    assert Made.say.__code__.co_firstlineno > 0


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_metaclass_does_itself_it_goes_on_to_do(times):
    class Makes(type):
        def __init__(cls, name, bases, namespace, **more):
            super().__init__(name, bases, namespace)
            cls.more = more

        def __new__(cls, name, bases, namespace, **more):
            return super().__new__(cls, name, bases, namespace)

    there = vars(Makes)["__init__"]
    instrumentation = Instrumentation("test")
    followings = [SubclassHook.for_method("say", shouts) for _ in range(times)]
    for following in followings:
        following.wrap_subclasses(Makes, instrumentation)

    class Made(metaclass=Makes, size=3):
        def say(self):
            return "made"

    assert (Made().say(), Made.more) == ("MADE", {"size": 3})
    for following in reversed(followings):
        following.stop_watching()
    instrumentation.patches.restore()
    assert vars(Makes)["__init__"] is there


def test_a_metaclass_is_found_by_what_its_classes_have():
    class Makes(type):
        pass

    class Module:
        pass

    module = Module()
    module.Makes = Makes
    assert find(module, "Makes.say") == (Makes, "say")
    assert find(module, "Module.say") is None
