"""What a model is told beside the messages: instructions, and how to write an output, as its profile says."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai_models import ScriptedModel, Stage, assert_told

from otel_assembly import ConversationPolicy
from otel_assembly.instrumentation.pydantic_ai import AssemblyCapability


class Answer(BaseModel):
    """The answer."""

    value: int


#: How an output is asked for, and what of that a model's profile says.
OUTPUTS = {
    "native, described in the instructions": (
        NativeOutput(Answer),
        {"supports_json_schema_output": True, "native_output_requires_schema_in_instructions": True},
    ),
    "native, described by the agent": (
        NativeOutput(Answer, template="Write this: {schema}"),
        {"supports_json_schema_output": True},
    ),
    "prompted by default": (Answer, {"default_structured_output_mode": "prompted"}),
    "native by default": (
        Answer,
        {"default_structured_output_mode": "native", "supports_json_schema_output": True},
    ),
    "prompted in a model's own words": (PromptedOutput(Answer), {"prompted_output_template": "As JSON: {schema}"}),
}


def scripted(stage: Stage, profile: dict[str, object]) -> ScriptedModel:
    """A model that answers with a value, and has this profile."""
    model = ScriptedModel(stage, '{"value": 1}')
    model._profile = profile
    return model


@pytest.mark.parametrize("asked", OUTPUTS)
async def test_how_to_write_an_output_is_told_as_the_model_is_asked_for_it(told, asked):
    output, profile = OUTPUTS[asked]
    stage = Stage()
    agent = Agent(scripted(stage, profile), name="bob", output_type=output, instructions="Answer.")
    result = await agent.run("Well?")
    assert result.output == Answer(value=1)
    assert_told(told, stage.received)


@pytest.mark.parametrize("asked", OUTPUTS)
async def test_a_plug_in_counts_it_too(assembly_telemetry, asked):
    output, profile = OUTPUTS[asked]
    stage = Stage()
    plugin = AssemblyCapability([ConversationPolicy()])
    agent = Agent(scripted(stage, profile), output_type=output, instructions="Answer.", capabilities=[plugin])
    await agent.run("Well?")
    assert_told(assembly_telemetry, stage.received)


async def test_a_model_that_falls_back_has_no_profile(told):
    stage = Stage()
    model = FallbackModel(ScriptedModel(stage, RuntimeError("down")), scripted(stage, {}), fallback_on=(RuntimeError,))
    agent = Agent(model, name="bob", output_type=PromptedOutput(Answer), instructions="Answer.")
    await agent.run("Well?")
    for span in assert_told(told, stage.received):
        assert span.attributes["gen_ai.agent.name"] == "bob"


async def test_a_plug_in_in_front_of_a_model_that_falls_back():
    stage = Stage()
    model = FallbackModel(scripted(stage, {}), scripted(stage, {}))
    plugin = AssemblyCapability([ConversationPolicy()])
    agent = Agent(model, output_type=PromptedOutput(Answer), capabilities=[plugin])
    assert (await agent.run("Well?")).output == Answer(value=1)


async def test_instructions_that_stand_in_a_message_alone(told):
    """A program that calls a model itself has no agent, which would hand the instructions over beside the messages."""
    asked = [ModelRequest.user_text_prompt("Well?", instructions="Be brief.")]
    await ScriptedModel(Stage(), "Yes.").request(asked, None, ModelRequestParameters())
    [assembly] = told.spans_named("assemble_context")
    assert assembly.attributes["assembly.prompts.out"] == 1
