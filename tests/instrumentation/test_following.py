"""A method of a base class that each class may have of its own, wrapped alike in all of them."""

from __future__ import annotations

from otel_assembly.instrumentation import Following, Hook, Instrumentation, in_module


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
    Following.alike("say", shouts).tree(Base, instrumentation)
    assert (Base().say(), Own().say()) == ("BASE", "OWN")
    instrumentation.patches.restore()
    assert (Base().say(), Own().say()) == ("base", "own")


def test_the_rows_of_a_module_may_all_be_followed():
    rows = ("Base.say Base.ask", shouts, "what is said"), ("Base.hear", shouts, "what is heard", ">= 2")
    hooks = in_module("some.module", *rows, versions=">= 1", followed=True)
    assert [hook.target for hook in hooks] == ["Base.say", "Base.ask", "Base.hear"]
    assert [hook.wrap.method for hook in hooks] == ["say", "ask", "hear"]
    assert [hook.versions for hook in hooks] == [">= 1", ">= 1", ">= 2"]
    assert in_module("some.module", *rows)[0] == Hook("some.module", "Base.say", shouts, "what is said")
