"""Whatever a program does: every call of its model has an assembly that says what the client received."""

from __future__ import annotations

import pytest
from google_adk_models import Stage, assert_told
from google_adk_programs import PROGRAMS

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


@every_program
async def test_every_call_has_its_assembly(told, program):
    stage = Stage()
    await program(stage)
    assert stage.received
    assert_told(told, stage.received)
    assert len({span.trace_id for span in told.spans}) == stage.runs
