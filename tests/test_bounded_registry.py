"""What is remembered by conversation is bounded, and keeps no conversation alive."""

import gc
import os
import weakref

import pytest

from otel_assembly._internal.registry import Registry


class Talk:
    """A conversation, which is equal to any other one."""

    def __eq__(self, other):
        return isinstance(other, Talk)

    def __hash__(self):
        return 1


def test_a_value_is_made_once_for_a_key():
    registry = Registry(2)
    made = [registry.of(key, list) for key in ("a", "a", None, None)]
    assert made[0] is made[1]
    assert made[2] is made[3]
    assert made[0] is not made[2]


def test_the_least_recently_used_value_is_forgotten_past_the_limit():
    registry = Registry(2)
    for key in ("a", "b", "a", "c"):
        registry.of(key, lambda key=key: key.upper())
    assert [registry.get(key) for key in "abc"] == ["A", None, "C"]


def test_objects_are_known_by_identity_and_kept_alive_by_nobody():
    registry, one, other = Registry(5), Talk(), Talk()
    registry.put(one, "one")
    registry.put(other, "other")
    assert (registry.get(one), registry.get(other)) == ("one", "other")
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    assert len(registry) == 1


def test_a_value_that_refers_to_nobody_else_goes_with_its_object():
    registry, talk, value = Registry(5), Talk(), Talk()
    registry.put(talk, value)
    gone = weakref.ref(value)
    del talk, value
    gc.collect()
    assert gone() is None


def test_a_new_value_of_a_key_takes_the_place_of_the_old_one():
    registry = Registry(2)
    for value in (1, 2):
        registry.put("a", value)
    assert registry.get("a") == 2
    assert len(registry) == 1


def test_what_weighs_too_much_makes_room_but_for_the_newest():
    registry = Registry(10)
    for key, weight in (("a", 4), ("b", 4), ("a", 5), ("c", 3)):
        registry.of(key, object)
        registry.weigh(key, weight, 10)
    assert [registry.get(key) is not None for key in "abc"] == [True, False, True]
    registry.weigh("c", 100, 10)
    assert len(registry) == 1
    assert registry.get("c") is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("clear_after_fork", "left"), [(True, 0), (False, 1)])
def test_a_forked_child_begins_without_what_its_parent_goes_on_with(clear_after_fork, left):
    registry = Registry(2, clear_after_fork=clear_after_fork)
    registry.put("a", 1)
    child = os.fork()
    if child == 0:
        os._exit(len(registry))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == left
