"""Another one's wrapper under every hook, or over it: an agent runs as without us, is told of, and is given back."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
import warnings
from collections import Counter

import pytest
from others import CALLED, WRAPPERS, places, wrapped_by_others
from programs import AGENTS, EXAMPLES, HERE, ROOT

from otel_assembly.instrumentation import HookState, instrument, instrumentor_of, uninstrument
from otel_assembly.testing import RecordedTelemetry


def printed(framework):
    """What a real program of a framework prints; what that warns of itself is for its users."""
    with contextlib.redirect_stdout(io.StringIO()) as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(EXAMPLES / AGENTS[framework]), run_name="__main__")
    return said.getvalue()


def told(framework):
    """What it prints, and the names of the spans that are told of it."""
    telemetry = RecordedTelemetry()
    with telemetry.as_default():
        said = printed(framework)
    assert telemetry.violations() == []
    spans = Counter(span.name for span in telemetry.spans)
    telemetry.shutdown()
    return said, spans


def standing(framework):
    return {name: vars(owner)[attribute] for name, (owner, attribute) in places(framework).items()}


#: Whoever wraps a coroutine function so that it is none any more is refused by the framework itself.
REFUSED = {("haystack", "functools"), ("haystack", "patch")}
#: Functions of which something inside is replaced, because programs may have imported them already.
REPLACED_INSIDE = {
    f"langchain_core.messages.utils.{function}" for function in ("filter_messages", "merge_message_runs")
}
#: Each framework beside each kind of wrapper; in short, each beside one, and each kind beside two.
each_with_one_kind = pytest.mark.parametrize(
    ("alone", "kind"),
    [
        pytest.param(framework, kind, marks=[pytest.mark.slow] if (at + other) % len(WRAPPERS) else [])
        for at, framework in enumerate(HERE)
        for other, kind in enumerate(WRAPPERS)
        if (framework, kind) not in REFUSED
    ],
    indirect=["alone"],
)


@pytest.fixture(scope="module")
def alone(request):
    """A framework, what its program prints without us, and what we tell where nobody else is."""
    framework = request.param
    said = printed(framework)
    instrument(framework)
    try:
        with_us, spans = told(framework)
    finally:
        uninstrument(framework)
    assert with_us == said
    assert spans["assemble_context"]
    return framework, said, spans


@each_with_one_kind
def test_with_anothers_wrapper_under_every_hook(alone, kind):
    framework, said, spans = alone
    with wrapped_by_others(framework, kind) as theirs:
        assert told(framework) == (said, Counter())
        without_us = Counter(CALLED)
        instrument(framework)
        try:
            states = instrumentor_of(framework).states
            assert {states[name] for name in theirs} == {HookState.TAKEN}
            during = standing(framework)
            assert not [name for name in theirs if during[name] is theirs[name] and name not in REPLACED_INSIDE]
            CALLED.clear()
            assert told(framework) == (said, spans)
            assert without_us == CALLED, "the other one's wrapper sees the very same calls"
        finally:
            uninstrument(framework)
        after = standing(framework)
        assert not [name for name in theirs if after[name] is not theirs[name]]
        assert told(framework) == (said, Counter())


@each_with_one_kind
def test_with_anothers_wrapper_over_every_hook(alone, kind):
    framework, said, spans = alone
    before = standing(framework)
    instrument(framework)
    ours = standing(framework)
    with wrapped_by_others(framework, kind) as theirs:
        try:
            assert told(framework) == (said, spans)
        finally:
            uninstrument(framework)
        after = standing(framework)
        assert not [name for name in theirs if after[name] is not theirs[name]]
        assert told(framework) == (said, Counter()), "what the other one still holds of ours is inert"
    left = standing(framework)
    assert not [name for name in theirs if left[name] is not ours[name]]
    try:
        assert told(framework) == (said, Counter())
        instrument(framework)
        assert told(framework) == (said, spans), "and may be instrumented again"
    finally:
        uninstrument(framework)
        for name, (owner, attribute) in places(framework).items():
            setattr(owner, attribute, before[name])


@pytest.mark.slow
@pytest.mark.exhaustive  # each framework's tests once more
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("framework", "kind"),
    [(name, kind) for name in HERE for kind in ("wrapt", "patch") if (name, kind) not in REFUSED],
)
def test_all_that_is_tested_of_a_framework_holds_with_anothers_wrapper_under_every_hook(framework, kind):
    folder = ROOT / "tests" / "frameworks"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "others", "-m", "not slow", "-k", framework),
            *(folder / framework, folder / "plugins"),
        ],
        cwd=ROOT,
        env={**os.environ, "OTHERS_WRAP": kind, "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
