"""What is AgentScope's own is refused by our agent, by its name."""

from __future__ import annotations

import pytest
from agentscope.middleware import MiddlewareBase, TracingMiddleware

from otel_assembly import Agent, ConfigurationError
from otel_assembly.testing import ScriptedModel


class Theirs(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler()


@pytest.mark.parametrize("middleware", [TracingMiddleware(), Theirs()], ids=lambda message: type(message).__name__)
def test_a_middleware_of_agentscopes_is_refused_by_its_name(middleware):
    name = type(middleware).__name__
    with pytest.raises(
        ConfigurationError, match=rf"middleware {name} \(index 0\) is derived from AgentScope's base class"
    ):
        Agent("helper", "", ScriptedModel(), middlewares=[middleware])
