"""A class that nobody has any more is gone, whatever of it was wrapped."""

from __future__ import annotations

import gc
import weakref

from pretend_instrumentor import assemblies


def a_class(base):
    class Passing(base):
        def call(self, messages):
            return super().call(messages)

    assert Passing().call([{"role": "user", "content": "hello"}]) == "fine"
    return Passing


def test_a_class_that_is_made_while_a_framework_is_instrumented_lives_no_longer_than_without(
    agents, assembly_telemetry
):
    made = [weakref.ref(a_class(agents.Client)) for _ in range(20)]
    gc.collect()
    assert len(assemblies(assembly_telemetry)) == 20
    assert [item for item in made if item() is not None] == []
