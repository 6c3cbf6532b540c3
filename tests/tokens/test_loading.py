"""The vocabulary is read in a thread, by whoever will need it, once; nobody's event loop stands still for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import otel_assembly

ROOT = Path(otel_assembly.__file__).parents[1]


def program(name, **environment):
    """What a program of `loading_programs` saw."""
    ran = subprocess.run(
        # From Python 3.12 on, one that forks beside threads is warned; that is what is tried here.
        [
            sys.executable,
            "-W",
            "ignore:This process:DeprecationWarning",
            Path(__file__).with_name("loading_programs.py"),
            name,
        ],
        capture_output=True,
        text=True,
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sys.path)))},
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_event_loop_runs_while_the_first_assemblies_wait():
    began, (waited, tokens), names, elsewhere = program("the_loop_runs")
    assert began
    assert waited
    assert len(set(tokens)) == 1
    assert (names, elsewhere) == (["o200k_base"], True)


def test_what_is_read_is_the_vocabulary_of_the_model():
    assert program("the_model_says_which") == [True, ["cl100k_base", "o200k_base"], True]


def test_what_cannot_wait_otherwise_waits_for_the_thread():
    assert program("in_step") == [2, ["o200k_base"], True]


def test_reading_begins_as_a_framework_is_imported_that_is_hooked():
    before, after, spans, names, elsewhere = program("frameworks")
    assert (before, after) == (False, True)
    assert "assemble_context" in spans
    assert (names, elsewhere) == (["o200k_base"], True)


def test_who_makes_no_assembler_and_imports_no_framework_reads_nothing():
    assert program("nothing") == [False, []]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_while_it_was_read_reads_it_itself():
    began, children, parent = program("forked")
    assert began
    assert parent[1] == ["o200k_base"]
    assert children == [parent] * 3


def test_a_vocabulary_that_cannot_be_read_is_told_to_who_counts():
    assert program("damaged") == [["one two"], [True, True]]


@pytest.mark.parametrize(
    "seconds", [-1, 0.1, pytest.param(0, marks=pytest.mark.slow), pytest.param(0.25, marks=pytest.mark.slow)]
)
def test_a_program_may_end_while_it_is_read(seconds):
    assert program("leaves", LEAVE_AFTER=str(seconds)) == "left"
