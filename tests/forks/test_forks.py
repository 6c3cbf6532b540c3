"""A process that forks while other threads assemble: the child assembles too, and says nothing that its parent says."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import otel_assembly

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PACKAGE = Path(otel_assembly.__file__).parent


PROGRAMS = ["in_describe", "in_append", "own_lock", "ids", "stores", "queue", "threads", "collected", "every_lock"]


@pytest.fixture(scope="module")
def ran():
    """All programs of `fork_programs`, one after the other in one process."""
    return subprocess.run(
        [sys.executable, Path(__file__).with_name("fork_programs.py"), *PROGRAMS],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PACKAGE.parent, *sys.path)))},
        check=True,
    )


@pytest.fixture
def program(ran):
    """What one of them found."""

    def found(name):
        answer = json.loads(ran.stdout)[name]
        assert not any(bad in json.dumps(answer) for bad in ("hangs", '"failed"', "Traceback")), (answer, ran.stderr)
        return answer

    return found


def test_a_child_assembles_the_conversation_that_another_thread_was_reading(program):
    assert program("in_describe") == [pytest.approx(15, abs=5), 1]


def test_a_child_goes_on_with_a_history_that_another_thread_was_writing_to(program):
    found, fresh, said = program("in_append")
    assert found == fresh
    assert said == ["one", "two", "four"]


def test_no_lock_of_ours_is_held_in_a_child(program):
    locks, answers, first, after = program("every_lock")
    assert locks > 20
    assert answers == 3
    assert first == "the store in memory is lost"
    assert after == 3


def test_a_lock_that_the_forking_thread_holds_is_let_go_by_it_in_both_processes(program):
    assert program("own_lock") == ["goes on in a child", True]


def test_children_of_a_process_whose_threads_assemble_all_answer(program):
    assert program("threads") == [1] * 12


def test_a_child_finds_every_lock_free_also_where_the_collector_takes_some_away_meanwhile(program, ran):
    assert program("collected") == [2_000, 1]
    assert "_in_child" not in ran.stderr


def test_parent_and_children_tell_of_ledgers_of_their_own(program):
    found = program("ids")
    processes = [found["parent"], *found["children"]]
    turns = [span for process in processes for turn in process for span in turn]
    assert len({assembly for assembly, *_ in turns}) == len(turns) == 3 * 2 * 3
    ledgers = [{ledger for turn in process for _, ledger, *_ in turn} for process in processes]
    assert len(set().union(*ledgers)) == sum(map(len, ledgers)) == 3 * 3
    for process in processes:
        first, second = process
        assert [turn for _, _, turn, _, _ in (*first, *second)] == [0] * 3 + [1] * 3
        assert [previous for *_, previous, _ in first] == [None] * 3
        assert [previous for *_, previous, _ in second] == [assembly for assembly, *_ in first]


def test_a_child_opens_the_file_of_a_store_anew_and_has_a_copy_of_what_is_in_memory(program):
    child, parent, again = program("stores")
    assert child == ["parent child ", "parent child "]
    assert parent == ["parent child parent", "parent parent"]
    assert again == parent


def test_what_is_queued_is_written_by_one_process(program):
    (child, waiting), (parent, left) = program("queue")
    assert (child, waiting) == (["child's"], 0)
    assert (parent, left) == (["parent's", "parent's other"], 0)


#: What makes a lock that a child might find held; `threading.Event` is for one call, and nobody else's.
_LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "allocate_lock", "cached_property"}
_MODULES = {"threading", "_thread", "functools", "multiprocessing"}


def _bare(tree):
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES
        for alias in node.names
        if alias.name in _LOCKS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _MODULES:
            if node.attr in _LOCKS:
                yield node.lineno
        elif isinstance(node, ast.Name) and node.id in names:
            yield node.lineno


def test_every_lock_of_ours_comes_from_the_one_helper():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "fork_safety.py"
        for source in [path.read_text(encoding="utf-8")]
        if any(name in source for name in _LOCKS)
        for line in _bare(ast.parse(source))
    ]
    assert found == []


def test_a_program_that_ends_with_a_counter_in_hand_says_nothing():
    program = (
        "from otel_assembly.tokens import TiktokenCounter\n"
        "counter = TiktokenCounter('cl100k_base')\n"
        "counter.count('one')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
