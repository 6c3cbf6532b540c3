"""A policy is one file, a user's as ours: configuration, order, spans, `replay` and `explain` follow from it."""

from __future__ import annotations

import importlib
import json
import logging
import sys

import pytest
import yaml

from otel_assembly import (
    AlertPolicy,
    Assembler,
    Context,
    DecidingPolicy,
    DecisionReason,
    History,
    ModelRequest,
    SlidingWindowPolicy,
    Verdict,
    WorkingMemoryPolicy,
    validate_order,
)
from otel_assembly.cli import main
from otel_assembly.decision import DecisionOutcome, Outcome
from otel_assembly.errors import ConfigurationError
from otel_assembly.explain import explain
from otel_assembly.telemetry import read_ledgers

SUBCLASSED = '''
from otel_assembly import BudgetPolicy
from otel_assembly.decision import Outcome


class CarefulBudget(BudgetPolicy):
    """Keeps a margin free beside the reply."""

    name = "careful_budget"

    def __init__(self, margin: int = 0, **settings):
        super().__init__(**settings)
        self.margin = margin

    @property
    def max_tokens(self):
        return super().max_tokens - self.margin

    async def decide(self, prompts, events, context):
        return await super().decide(prompts, events, context)
'''
ANEW = '''
from typing import Literal

from otel_assembly import DecidingPolicy, DecisionReason, Verdict
from otel_assembly.decision import DecisionOutcome, Outcome
from otel_assembly.policies import PolicyLimit


class KeepNewest(DecidingPolicy):
    """Keeps the newest events."""

    name = "keep_newest"
    limit = PolicyLimit("most", "events")
    replayable = True

    def __init__(self, most: int, mood: Literal["calm", "loud"] = "calm", note: str = ""):
        self.most, self.mood, self.note = most, mood, note

    async def decide(self, prompts, events, context):
        cut = max(0, len(events) - self.most)
        gone = Verdict(events[:cut], DecisionOutcome.DROPPED, DecisionReason.OUTSIDE_WINDOW)
        return Outcome(prompts, events[cut:], [gone] if cut else [])
'''
POLICIES = {
    "subclassed": (
        SUBCLASSED,
        "CarefulBudget",
        {"margin": 10, "window": 90, "output_reserve": 10, "step_tokens": 0, "on_overflow": "drop"},
        "over_budget",
        "window",
    ),
    "written anew": (ANEW, "KeepNewest", {"most": 4, "mood": "loud", "note": "secret"}, "outside_window", "most"),
}
MESSAGES = [
    {"role": role, "content": f"{role} says the word number {n} of many"}
    for n in range(7)
    for role in ("user", "assistant")
]


@pytest.fixture(params=POLICIES)
def policy_file(request, tmp_path, monkeypatch):
    """The import path of a policy in a file of its own, with its settings, its rule and its limit."""
    source, name, *rest = POLICIES[request.param]
    module = f"policy_of_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield (f"{module}:{name}", *rest)
    sys.modules.pop(module, None)


def entry(path, settings):
    return {"policies": ["conversation", {path: settings}]}


async def test_it_is_written_down_and_read_back(policy_file, tmp_path):
    path, settings, *_ = policy_file
    assembler = Assembler.from_config(entry(path, settings))
    written = assembler.to_config()
    assert written["policies"] == ["conversation", {path: settings}]
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump(written), encoding="utf-8")
    again = Assembler.from_config(file)
    assert again.to_config() == written
    assert type(again.policies[1]) is type(assembler.policies[1])


def test_a_wrong_parameter_is_named_as_of_ours(policy_file):
    path, settings, *_ = policy_file
    with pytest.raises(ConfigurationError, match="unknown parameter 'windo'"):
        Assembler.from_config(entry(path, {**settings, "windo": 5}))


def test_its_order_is_checked(policy_file):
    path, settings, *_ = policy_file
    policy = Assembler.from_config(entry(path, settings)).policies[1]
    (warning,) = validate_order([policy, WorkingMemoryPolicy()])
    assert warning.startswith(f"Policy '{policy.name}' (index 0) runs before 'working_memory' (index 1)")


async def test_its_span_has_its_settings_and_its_reasons_and_no_text(policy_file, recorder):
    path, settings, reason, _ = policy_file
    policy = Assembler.from_config(entry(path, settings)).policies[1]
    await Assembler([policy], recorder=recorder.recorder).assemble([], History(MESSAGES), Context())
    span = recorder.span(f"apply_policy {policy.name}")
    told = json.loads(span.attributes["assembly.policy.config"])
    assert told == {name: value for name, value in settings.items() if name != "note"}
    assert span.attributes["assembly.policy.kind"] == "reduction"
    assert set(span.dropped_reasons.values()) == {reason}


async def test_explain_says_what_would_have_kept_an_item_and_that_is_true(policy_file, recorder):
    path, settings, _, limit = policy_file
    chain = Assembler.from_config(entry(path, settings)).policies
    await Assembler(chain, recorder=recorder.recorder).assemble([], History(MESSAGES), Context())
    ledger = next(iter(read_ledgers(recorder.spans).values()))
    item = str(int(next(iter(ledger.turn(0).kept))) - 1)
    assert "is not a built-in policy" in explain(ledger, 0, item).unknown[0]
    (change,) = explain(ledger, 0, item, [type(chain[1])]).raises
    assert (change.policy, change.parameter) == (chain[1].name, limit)

    async def kept(extra):
        raised = entry(path, {**settings, limit: settings[limit] + extra})
        return (await Assembler.from_config(raised).assemble([], History(MESSAGES), Context())).items

    assert item in await kept(change.extra)
    assert item not in await kept(change.extra - 1)


def test_the_command_line_replays_and_explains_it(policy_file, tmp_path, capsys):
    path, settings, reason, limit = policy_file
    talk = tmp_path / "talk.json"
    talk.write_text(json.dumps({"id": "talk", "messages": MESSAGES}), encoding="utf-8")
    said = {name: value for name, value in settings.items() if name not in {"note", "on_overflow"}}
    spec = ":".join([f"conversation,{path}", *(f"{name}={value}" for name, value in said.items())])
    config = tmp_path / "chain.yaml"
    config.write_text(yaml.safe_dump(entry(path, said)), encoding="utf-8")
    arguments = ["--policies", spec, "--config", str(config), "--export", str(tmp_path / "spans.jsonl"), "--json"]
    assert main(["replay", str(talk), *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["dropped"] == rows[1]["dropped"] > 0
    assert rows[0]["budget"] == (80 if limit == "window" else None)
    assert main(["replay", str(talk), *arguments[:2], "--export", str(tmp_path / "one.jsonl"), "--json"]) == 0
    capsys.readouterr()
    asked = ["explain", "--traces", str(tmp_path / "one.jsonl"), "--turn", "6", "--item", "0", "--json"]
    assert main([*asked, "--policy", path]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["reason"], answer["raises"][0]["parameter"]) == (reason, limit)


# --- What is wrong with it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere_at_all:Policy", "nowhere_at_all:Policy cannot be imported: ModuleNotFoundError"),
        ("json:Policy", "json:Policy cannot be imported: AttributeError"),
        ("json:dumps", "json:dumps is no policy's class"),
        ("json:JSONDecoder", "json:JSONDecoder is no policy's class"),
        (":", "cannot be imported"),
    ],
)
def test_a_path_that_leads_nowhere_is_one_sentence(path, message):
    with pytest.raises(ConfigurationError) as raised:
        Assembler.from_config({"policies": [path]})
    assert message in str(raised.value)
    assert str(raised.value).startswith("config: policies[0]: ")


def test_a_module_that_raises_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "breaks_on_import.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="breaks_on_import:A cannot be imported: ZeroDivisionError"):
        Assembler.from_config({"policies": ["breaks_on_import:A"]})


class Hungry(DecidingPolicy):
    name = "hungry"

    def __init__(self, portion: int):
        self._portion = portion


def test_settings_that_it_does_not_tell_cannot_be_written():
    with pytest.raises(ConfigurationError, match="its 'config' lacks 'portion'"):
        Assembler([Hungry(3)]).to_config()


def test_a_filter_of_a_users_may_stand_in_front_of_an_injection_that_needs_nothing_of_it():
    class NoNotes(DecidingPolicy):
        name, filters = "no_notes", frozenset({"other"})

    class NoAlerts(NoNotes):
        filters = frozenset({"alert"})

    class Minutes(AlertPolicy):
        reads = frozenset({"other"})

    assert validate_order([NoNotes(), WorkingMemoryPolicy(), AlertPolicy()]) == []
    (warning,) = validate_order([NoAlerts(), AlertPolicy()])
    assert "FATAL" in warning
    (warning,) = validate_order([NoNotes(), Minutes()])
    assert warning.endswith("The filter drops events that the injection reads: other; place 'alert' first.")


# --- Verdicts that contradict the output ------------------------------------------------------------------------------


def deciding(decide, base=DecidingPolicy):
    """A policy of a class of its own: what is said once is said once for each class."""

    async def decided(self, prompts, events, context):
        return decide(prompts, events)

    return type("Deciding", (base,), {"name": "deciding", "decide": decided})()


DROPPED, KEPT = DecisionOutcome.DROPPED, DecisionOutcome.KEPT
STALE, PINNED = DecisionReason.STALE, DecisionReason.PINNED


@pytest.mark.parametrize(
    ("verdicts", "reasons"),
    [
        (lambda e: [Verdict(e[:3], DROPPED, STALE)], {0: "stale", 1: "stale"}),
        (lambda e: [Verdict(e[1:], DROPPED, STALE)], {0: "policy"}),
        (lambda e: [Verdict(e[:1], KEPT, PINNED)], {0: "policy"}),
        (lambda e: [Verdict(list(e[:2]), DROPPED, STALE)], {0: "stale"}),
        (lambda e: [Verdict([object()], DROPPED, STALE)], {0: "policy"}),
    ],
)
async def test_a_verdict_that_is_not_true_is_not_believed_and_one_warning_says_so(verdicts, reasons, caplog):
    events = [ModelRequest(content=text) for text in "abcd"]
    policy = deciding(lambda p, e: Outcome(p, e[len(reasons) :], verdicts(e)))
    assembler = Assembler([policy])
    with caplog.at_level(logging.WARNING, "otel_assembly"):
        for history in (History(events), History(events), list(events)):
            assembly = await assembler.assemble([], history, Context())
            assert {int(d.item): d.reason.value for d in assembly.dropped} == reasons
            assert [event.content for event in assembly.events] == list("abcd"[len(reasons) :])
    (record,) = caplog.records
    assert record.getMessage().startswith("policy 'deciding' returned a verdict that contradicts its output")


@pytest.mark.parametrize(
    "verdicts",
    [
        lambda e: [],
        lambda e: [Verdict(e[:1], DROPPED, STALE)],
        lambda e: [Verdict(list(e[:2]), DROPPED, STALE), Verdict(list(e[3:]), KEPT, PINNED)],
        lambda e: [Verdict(e[:2], DROPPED, STALE), Verdict(e[3:], KEPT, PINNED)],
    ],
)
async def test_true_verdicts_however_few_are_worth_no_warning(verdicts, caplog):
    events = [ModelRequest(content=text) for text in "abcd"]
    policy = deciding(lambda p, e: Outcome(p, e[2:], verdicts(e)))
    with caplog.at_level(logging.WARNING, "otel_assembly"):
        assembly = await Assembler([policy]).assemble([], History(events), Context())
    assert [d.item for d in assembly.dropped] == ["0", "1"]
    assert assembly.items == ["2", "3"]
    assert caplog.records == []


async def test_a_subclass_that_hides_why_is_told_with_the_reason_policy():
    class Silent(SlidingWindowPolicy):
        async def decide(self, prompts, events, context):
            outcome = await super().decide(prompts, events, context)
            return Outcome(outcome.prompts, outcome.events)

    events = History(ModelRequest(content=text) for text in "abcd")
    assembly = await Assembler([Silent(2)]).assemble([], events, Context())
    assert [(d.item, d.reason.value) for d in assembly.dropped] == [("0", "policy"), ("1", "policy")]
