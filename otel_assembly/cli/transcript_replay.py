"""Replay one transcript with one policy chain."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from otel_assembly.cli.replay_turns import turn_inputs
from otel_assembly.cli.tally import ReplayedExit, ReplayedTurn
from otel_assembly.context import Context
from otel_assembly.errors import ContextOverflowError
from otel_assembly.messages import broken_pairs
from otel_assembly.messages.event_facts import describe
from otel_assembly.telemetry import OpenTelemetryRecorder
from otel_assembly.tokens import input_price

if TYPE_CHECKING:
    from otel_assembly.assembler import Assembler
    from otel_assembly.assembly import Assembly
    from otel_assembly.cli.replay_turns import TurnInput
    from otel_assembly.cli.tally import Variant
    from otel_assembly.decision import DecisionOutcome
    from otel_assembly.messages import EventFacts
    from otel_assembly.recorder import Recorder
    from otel_assembly.transcripts import Transcript


def replay_transcript(transcript: Transcript, variant: Variant, recorder: Recorder) -> list[ReplayedTurn]:
    """Assemble the input of every model call of a transcript again; each user request is one trace.

    Args:
        transcript: The transcript.
        variant: The policy chain.
        recorder: Receives the record of each turn.
    """
    return asyncio.run(_replay(transcript, variant, recorder))


async def _replay(transcript: Transcript, variant: Variant, recorder: Recorder) -> list[ReplayedTurn]:
    assembler = variant.assembler_for(transcript)
    context = Context(
        conversation_id=transcript.id if transcript.named else None, agent_name="replay", tools=transcript.tools
    )
    turns: list[ReplayedTurn] = []
    known: dict[int, tuple[Any, EventFacts]] = {}
    with ExitStack() as run:
        for turn in turn_inputs(transcript):
            if turn.starts_run:
                run.close()
                if isinstance(recorder, OpenTelemetryRecorder):
                    run.enter_context(recorder.invoke_agent("replay", conversation_id=context.conversation_id))
            turns.append(await _replay_turn(assembler, turn, context, len(turns), known))
    return turns


async def assemble_turn(assembler: Assembler, turn: TurnInput, context: Context) -> tuple[Assembly, bool]:
    """Assemble one turn; return the assembly, and False if the fixed content exceeds the budget."""
    if turn.reduction is not None:
        assembler = assembler.reducing_first([turn.reduction])
    if turn.edits:
        assembler = assembler.followed_by(turn.edits)
    try:
        return await assembler.assemble(turn.prompts, turn.events, context), True
    except ContextOverflowError as error:
        return error.assembly, False


async def _replay_turn(
    assembler: Assembler, turn_input: TurnInput, context: Context, number: int, known: dict[int, tuple[Any, EventFacts]]
) -> ReplayedTurn:
    """Assemble one turn; `known` has the messages of earlier turns by their `id`, with their facts."""
    assembly, is_sent = await assemble_turn(assembler, turn_input, context)
    for event in assembly.events:
        if id(event) not in known:
            known[id(event)] = event, describe(event)
    exits: dict[tuple[str, DecisionOutcome, str, str], list[int]] = {}
    for decision in assembly.exits:
        key = decision.policy or "", decision.outcome, decision.reason.value, decision.kind
        count = exits.setdefault(key, [0, 0])
        count[0] += 1
        count[1] += decision.tokens
    turn = ReplayedTurn(
        number=number,
        assembly=assembly,
        sent=is_sent,
        exits=[ReplayedExit(*key, items, tokens) for key, (items, tokens) in exits.items()],
        edits={edit.name: edit.config for edit in turn_input.edits},
        orphans=len(broken_pairs([known[id(event)][1] for event in assembly.events])),
    )
    price = input_price(assembler.model) if turn.sent and assembler.model is not None else None
    if price is not None:
        prompt = assembly.totals.tokens_out
        turn.cost = price.of_prompt(prompt, assembly.prefix.tokens).total
        turn.cost_avoided = price.of_left_out(sum(exit_.tokens for exit_ in turn.exits), prompt)
    return turn
