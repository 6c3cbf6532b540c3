"""Integer settings: the largest value is the largest that OTLP carries, wherever a setting is given."""

from __future__ import annotations

import json

import pytest

from otel_assembly import (
    Agent,
    Assembler,
    Block,
    BudgetPolicy,
    ConfigurationError,
    ContextAssembler,
    EpisodicMemoryPolicy,
    HeadAndTailPolicy,
    ModelRequest,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    allocate,
)
from otel_assembly.budget import Compactors, compact_history
from otel_assembly.chain import chain_from_config, chain_from_spec
from otel_assembly.cli import main
from otel_assembly.context_assembler import Candidate, KnowledgeWriteGate, QueuedWriteGate
from otel_assembly.knowledge import AggregateTrigger, MemoryKnowledgeStore, WorkingMemoryAggregate
from otel_assembly.model_context import BufferedChatCompletionContext, TokenLimitedChatCompletionContext
from otel_assembly.runtime import AggregateObserver, LoopDetector, TokenMonitor
from otel_assembly.sessions import Hub, MemorySessionLog, WindowedSummary
from otel_assembly.testing import ScriptedModel
from otel_assembly.tokens import MessageFraming

LARGEST = 2**63 - 1
BUILDERS = {
    "Assembler model_window": lambda n: Assembler([], model_window=n),
    "BudgetPolicy window": lambda n: BudgetPolicy(n, 0),
    "BudgetPolicy step_tokens": lambda n: BudgetPolicy(10, 0, step_tokens=n),
    "BudgetPolicy summary_tokens": lambda n: BudgetPolicy(10, 0, summary_tokens=n),
    "TokenBudgetPolicy": TokenBudgetPolicy,
    "TokenBudgetPolicy step_tokens": lambda n: TokenBudgetPolicy(10, step_tokens=n),
    "SlidingWindowPolicy": SlidingWindowPolicy,
    "HeadAndTailPolicy head": lambda n: HeadAndTailPolicy(n, 1),
    "HeadAndTailPolicy tail": lambda n: HeadAndTailPolicy(1, n),
    "EpisodicMemoryPolicy": EpisodicMemoryPolicy,
    "allocate window": lambda n: allocate([], n, 0),
    "Block min_tokens": lambda n: Block("a", 5, "x", cuttable=True, min_tokens=n),
    "Block rank": lambda n: Block("a", 5, "x", cuttable=True, rank=n),
    "Candidate rank": lambda n: Candidate("1", "x", "s", rank=n),
    "Compactors attempts": lambda n: Compactors(attempts=n),
    "compact_history": lambda n: compact_history([ModelRequest(content="hello")], n),
    "ContextAssembler window": lambda n: _desk(window=n),
    "ContextAssembler k": lambda n: _desk(k=n),
    "ContextAssembler recall_k": lambda n: _desk(recall_k=n),
    "ContextAssembler step_tokens": lambda n: _desk(step_tokens=n),
    "QueuedWriteGate": lambda n: QueuedWriteGate(KnowledgeWriteGate(write=print, accept=bool), max_queued=n),
    "MessageFraming": lambda n: MessageFraming(per_message=n),
    "LoopDetector": lambda n: LoopDetector(window_size=n),
    "TokenMonitor": lambda n: TokenMonitor(warn_threshold=1, alert_threshold=n),
    "Agent max_rounds": lambda n: Agent("a", "s", ScriptedModel("x"), max_rounds=n),
    "AggregateObserver": lambda n: AggregateObserver(
        WorkingMemoryAggregate(lambda prompt: "x"),
        AggregateTrigger(on_end=True),
        store=MemoryKnowledgeStore(),
        most_events=n,
    ),
    "AggregateTrigger": lambda n: AggregateTrigger(every_n_turns=n),
    "Hub inbox_limit": lambda n: Hub(MemorySessionLog(), [], inbox_limit=n),
    "Hub snapshot_every": lambda n: Hub(MemorySessionLog(), [], snapshot_every=n),
    "WindowedSummary": lambda n: WindowedSummary(n),
    "BufferedChatCompletionContext": lambda n: BufferedChatCompletionContext(n),
    "TokenLimitedChatCompletionContext": lambda n: TokenLimitedChatCompletionContext(token_limit=n),
    "a chain on one line": lambda n: chain_from_spec(f"sliding_window:max_events={n}"),
    "a chain as a mapping": lambda n: chain_from_config({"policies": [{"token_budget": {"max_tokens": n}}]}),
    "the model's window as a mapping": lambda n: chain_from_config({"model_window": n, "policies": []}),
}


def _desk(**settings):
    return ContextAssembler(
        **{"system": "S", "window": 1_000, "output_reserve": 10, "scopes": lambda user, task: set(), **settings}
    )


@pytest.mark.parametrize("setting", BUILDERS)
@pytest.mark.parametrize("value", [2**63, 10**400], ids=["2**63", "400 digits"])
def test_a_value_that_otlp_cannot_carry_is_refused(setting, value):
    with pytest.raises(ConfigurationError) as refused:
        BUILDERS[setting](value)
    assert str(LARGEST) in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("setting", BUILDERS)
def test_the_largest_value_is_accepted(setting):
    BUILDERS[setting](LARGEST)


def test_a_file_names_the_place_of_the_value(tmp_path):
    path = tmp_path / "chain.yaml"
    path.write_text(f"policies:\n  - budget: {{window: {2**63}, output_reserve: 0}}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"chain\.yaml: policies\[0\]: budget: window must be at most"):
        chain_from_config(path)


@pytest.mark.parametrize(
    "arguments",
    [("--budget", str(2**63)), ("--budget", "9" * 5_000), ("--policies", f"budget:window={2**63}:output_reserve=0")],
    ids=["budget", "5000 digits", "policies"],
)
def test_the_command_line_refuses_the_value(arguments, tmp_path, capsys):
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}), encoding="utf-8")
    try:
        status = main(["replay", str(path), *arguments])
    except SystemExit as ended:
        status = ended.code
    shown = capsys.readouterr().err
    assert status == 2
    assert str(LARGEST) in shown
    assert "Traceback" not in shown
