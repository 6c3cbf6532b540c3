"""An agent of the OpenAI Agents SDK whose model tells its calls to the SDK's own tracing, as those of OpenAI's do."""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ.pop("OPENAI_API_KEY", None)  # without one, the SDK sends its traces nowhere

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, generation_span
from agents.run import CallModelData, ModelInputData
from openai.types.responses import ResponseOutputMessage, ResponseOutputText


class Says(Model):
    """Says how much it was sent."""

    model = "gpt-4o"

    async def get_response(self, *_: Any, **given: Any) -> ModelResponse:
        with generation_span(model=self.model, disabled=given["tracing"].is_disabled()):
            said = ResponseOutputText(
                text=f"{len(given['input'])} items.", type="output_text", annotations=[], logprobs=[]
            )
        message = ResponseOutputMessage(
            id=f"m{len(given['input'])}", content=[said], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def newest(call: CallModelData[Any]) -> ModelInputData:
    return ModelInputData(call.model_data.input[-2:], call.model_data.instructions)


async def main() -> None:
    held: list[Any] = []
    for question in ("One?", "Two?", "Three?"):
        held.append({"role": "user", "content": question})
        config = RunConfig(call_model_input_filter=newest)
        result = await Runner.run(Agent("counter", model=Says()), held, run_config=config)
        print(result.final_output)
        held = result.to_input_list()


if __name__ == "__main__":
    asyncio.run(main())
