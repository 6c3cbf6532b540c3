from __future__ import annotations

import logging

import pytest

from otel_assembly import (
    AlertPolicy,
    Assembler,
    AssemblyPolicy,
    BudgetPolicy,
    Context,
    ConversationPolicy,
    EpisodicMemoryPolicy,
    SlidingWindowPolicy,
    TokenBudgetPolicy,
    WorkingMemoryPolicy,
    validate_order,
)
from otel_assembly.policies import POLICIES


class Custom:
    def __init__(self, name, kind=None):
        self.name = name
        if kind is not None:
            self.kind = kind

    async def apply(self, prompts, events, context):
        return prompts, events


def test_the_realistic_chain_has_nothing_to_warn_of():
    chain = [
        WorkingMemoryPolicy(),
        EpisodicMemoryPolicy(),
        AlertPolicy(),
        ConversationPolicy(),
        SlidingWindowPolicy(50),
        TokenBudgetPolicy(8_000),
    ]
    assert validate_order(chain) == []
    assert validate_order([]) == []


def test_a_reduction_before_an_injection_is_warned_of_in_ag2s_words():
    (warning,) = validate_order([SlidingWindowPolicy(5), WorkingMemoryPolicy()])
    assert warning == (
        "Policy 'sliding_window' (index 0) runs before 'working_memory' (index 1). Injection policies should generally "
        "run before reduction policies so injected context is included in the reduction budget."
    )


def test_every_pair_in_the_wrong_order_is_named():
    chain = [SlidingWindowPolicy(5), WorkingMemoryPolicy(), TokenBudgetPolicy(10), AlertPolicy()]
    pairs = [(warning.split("'")[1], warning.split("'")[3]) for warning in validate_order(chain)]
    assert pairs == [
        ("sliding_window", "working_memory"),
        ("sliding_window", "alert"),
        ("token_budget", "alert"),
    ]


def test_a_filter_before_the_alerts_is_warned_of_for_it_loses_them():
    (warning,) = validate_order([ConversationPolicy(), AlertPolicy()])
    assert "'conversation' (index 0)" in warning
    assert "'alert' (index 1)" in warning
    assert "FATAL" in warning


def test_a_filter_before_other_injections_is_fine():
    assert validate_order([ConversationPolicy(), WorkingMemoryPolicy()]) == []


def test_alerts_in_front_of_a_memory_are_warned_of():
    (warning,) = validate_order([AlertPolicy(), WorkingMemoryPolicy(), ConversationPolicy()])
    assert warning.startswith("Policy 'alert' (index 0) runs before 'working_memory' (index 1).")
    assert "place 'working_memory' first" in warning
    pairs = validate_order([AlertPolicy(), EpisodicMemoryPolicy(), Custom("yours", "injection")])
    assert [warning.split("'")[3] for warning in pairs] == ["episodic_memory", "yours"]
    assert validate_order([WorkingMemoryPolicy(), AlertPolicy()]) == []


@pytest.mark.parametrize(("window", "output_reserve"), [(400, 0), (1_000, 500)])
def test_a_budget_without_room_for_a_summary_is_warned_of(window, output_reserve):
    (warning,) = validate_order([BudgetPolicy(window, output_reserve, compact="extractive")])
    assert warning.startswith(
        f"Policy 'budget' (index 0): summary_tokens (500) leaves no room in the budget of {window - output_reserve}"
    )
    assert validate_order([BudgetPolicy(window, output_reserve, compact="extractive", summary_tokens=60)]) == []
    assert validate_order([BudgetPolicy(window, output_reserve)]) == []


async def test_a_turn_without_room_for_its_summary_logs_one_warning(caplog):
    policy = BudgetPolicy(600, 0, step_tokens=0, compact="extractive", summary_tokens=550)
    assembler, context = Assembler([policy]), Context()
    history = [{"role": "user", "content": f"{n} " + "how does it work? " * 30} for n in range(9)]
    assert caplog.records == []
    for turn in range(6, 9):
        assembly = await assembler.assemble(["rule " * 50], history[:turn], context)
        assert len(assembly.events) < turn
    (record,) = caplog.records
    message = record.getMessage()
    assert "no summary was made" in message
    assert "summary_tokens (550)" in message


def test_custom_policies_take_part_by_their_kind_or_a_name_that_is_known():
    assert len(validate_order([Custom("mine", "reduction"), Custom("yours", "injection")])) == 1
    assert len(validate_order([Custom("token_budget"), Custom("topic_inbox")])) == 1
    assert validate_order([Custom("mine"), Custom("yours")]) == []
    assert validate_order([Custom("mine", "sideways"), AlertPolicy()]) == []


def test_an_assembler_logs_what_is_wrong_with_its_chain(caplog):
    with caplog.at_level(logging.WARNING, logger="otel_assembly"):
        Assembler([SlidingWindowPolicy(5), AlertPolicy()])
    (record,) = caplog.records
    assert record.getMessage().startswith("assembly policy ordering: Policy 'sliding_window' (index 0)")


@pytest.mark.parametrize(
    "policy",
    [
        AlertPolicy(),
        ConversationPolicy(),
        EpisodicMemoryPolicy(),
        SlidingWindowPolicy(5),
        TokenBudgetPolicy(10),
        WorkingMemoryPolicy(),
    ],
)
async def test_our_policies_are_of_the_protocol_and_leave_their_input_alone(policy):
    assert isinstance(policy, AssemblyPolicy)
    assert POLICIES[policy.name] is type(policy)
    prompts, events = [], [{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "z", "content": "?"}]
    before = [dict(event) for event in events]
    result = await policy.apply(prompts, events, Context())
    assert (prompts, events) == ([], before)
    assert isinstance(result[0], list)
    assert isinstance(result[1], list)
    assert eval(repr(policy)).config == policy.config
