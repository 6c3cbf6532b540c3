"""What wrappers are made of must not be felt by what they stand around."""

from __future__ import annotations

import contextvars
import gc

import pytest

from otel_assembly.instrumentation import IdentityWeakMap, Patches, argument, context_value

PLACE = contextvars.ContextVar("place", default="outside")


class Alike:
    """Equal to all others, and therefore not hashable."""

    def __eq__(self, other):
        return True


class Slotted:
    __slots__ = ()


@pytest.mark.parametrize(
    ("args", "kwargs"), [(("self", "given"), {}), (("self",), {"events": "given"}), ((), {"events": "given"})]
)
def test_an_argument_is_found_however_it_was_given(args, kwargs):
    assert argument(args, kwargs, 1, "events") == "given"
    assert argument((), {}, 1, "events", "nothing") == "nothing"


def test_a_variable_is_bound_in_a_block_and_no_longer():
    with context_value(PLACE, "inside"), context_value(PLACE, "deeper"):
        assert PLACE.get() == "deeper"
    assert PLACE.get() == "outside"


def test_a_coroutine_that_is_closed_in_another_context_is_closed_quietly():
    async def waits():
        class Forever:
            def __await__(self):
                yield

        with context_value(PLACE, "inside"):
            await Forever()

    work = waits()
    contextvars.copy_context().run(work.send, None)
    work.close()
    assert PLACE.get() == "outside"


def test_what_is_known_of_an_object_is_its_own_and_goes_with_it():
    known = IdentityWeakMap()
    one, other = Alike(), Alike()
    assert known.put(one, "one") == "one"
    assert known.put(other, "other") == "other"
    assert (known.get(one), known.get(other)) == ("one", "other")
    del one
    gc.collect()
    assert known.pop(other) == "other"
    assert known.get(other) is None


def test_of_an_object_that_cannot_be_referred_to_nothing_is_remembered():
    known = IdentityWeakMap()
    slotted = Slotted()
    assert known.put(slotted, "told") == "told"
    assert known.get(slotted) is None


def test_a_method_that_is_met_is_wrapped_once_where_it_is_defined_and_put_back():
    class Base:
        def apply(self):
            return ["base"]

    class Derived(Base):
        pass

    original = vars(Base)["apply"]
    patches = Patches()
    for met in (Derived, Base, Derived):
        patches.wrap_once(met, "apply", lambda method: lambda self: ["wrapped", *method(self)])
        patches.wrap_once(met, "missing", lambda method: method)
    assert Derived().apply() == ["wrapped", "base"]
    assert "apply" not in vars(Derived)
    patches.restore()
    patches.wrap_once(Derived, "apply", lambda method: lambda self: method)
    assert vars(Base)["apply"] is original
