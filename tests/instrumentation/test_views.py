"""What an agent is shown of a network is told once it is worked out, by the outermost view alone."""

from __future__ import annotations

import pytest

from otel_assembly.instrumentation import (
    Instrumentation,
    View,
    unseen,
    view,
)

SAID = [{"role": "user", "content": word} for word in ("one", "two", "three")]


def reads(view_of, channel, said):
    return View(type(view_of).__name__, channel, "p-1", len(said), "clerk")


@pytest.fixture
def shown(assembly_telemetry):
    """A view, as it is wrapped."""
    with assembly_telemetry.as_default():
        instrumentation = Instrumentation("pretend")

        class Newest:
            inner = None

            async def project(self, channel, said):
                if said == ["fails"]:
                    raise ConnectionError
                return await self.inner.project(channel, said) if self.inner else said[-2:]

        class Outer(Newest):
            pass

        Newest.project = view(reads)(Newest.project, instrumentation)
        Outer.inner = Newest()
        Outer.silent = unseen(Outer.project, instrumentation)
        yield Outer


async def test_a_view_that_asks_another_one_reports_for_both(shown, assembly_telemetry):
    assert await shown().project("c-1", SAID) == SAID[1:]
    (told,) = assembly_telemetry.spans
    assert told.name == "project_view Outer"
    assert (told.attributes["assembly.envelopes.in"], told.attributes["assembly.events.out"]) == (3, 2)
    assert (told.attributes["gen_ai.conversation.id"], told.attributes["gen_ai.agent.name"]) == ("c-1", "clerk")


async def test_a_view_that_fails_is_told_with_its_error(shown, assembly_telemetry):
    with pytest.raises(ConnectionError):
        await shown().project("c-1", ["fails"])
    assert assembly_telemetry.span("project_view Outer").attributes["error.type"] == "ConnectionError"


async def test_what_is_asked_for_no_history_is_not_told(shown, assembly_telemetry):
    assert await shown().silent("c-1", SAID) == SAID[1:]
    assert assembly_telemetry.spans == []
