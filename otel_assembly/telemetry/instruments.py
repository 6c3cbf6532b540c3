"""The instruments of all metrics, generated from ``registry/metrics.yaml``.

A process that exports reads this module and does not have to parse YAML. To change the module, change the YAML
file and run
``python -m otel_assembly.telemetry.document otel_assembly/telemetry/instruments.py``.
"""
# ruff: noqa: ISC004

from __future__ import annotations

from typing import Final

#: Name, instrument, unit, description, and the advised bucket boundaries of a histogram.
# fmt: off
INSTRUMENTS: Final[tuple[tuple[str, str, str, str, tuple[float, ...]], ...]] = \
(('assembly.duration', 'histogram', 's', 'The duration of one assembly: all policies before one model call.',
  (1e-05, 2.5e-05, 5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
   5.0, 10.0, 30.0)),
 ('assembly.policy.duration', 'histogram', 's', 'The duration of one policy in one assembly.',
  (1e-05, 2.5e-05, 5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
   5.0, 10.0, 30.0)),
 ('assembly.input.tokens', 'histogram', '{token}', 'The tokens of the input of one assembly, before any policy.',
  (10.0, 32.0, 100.0, 119.0, 142.0, 170.0, 203.0, 242.0, 289.0, 345.0, 412.0, 492.0, 588.0, 702.0, 838.0, 1000.0,
   1190.0, 1420.0, 1700.0, 2030.0, 2420.0, 2890.0, 3450.0, 4120.0, 4920.0, 5880.0, 7020.0, 8380.0, 10000.0, 11900.0,
   14200.0, 17000.0, 20300.0, 24200.0, 28900.0, 34500.0, 41200.0, 49200.0, 58800.0, 70200.0, 83800.0, 100000.0,
   119000.0, 142000.0, 170000.0, 203000.0, 242000.0, 289000.0, 345000.0, 412000.0, 492000.0, 588000.0, 702000.0,
   838000.0, 1000000.0, 4000000.0, 16000000.0)),
 ('assembly.output.tokens', 'histogram', '{token}',
  "The tokens of the output of one assembly, after all policies: the prompt's size.",
  (10.0, 32.0, 100.0, 119.0, 142.0, 170.0, 203.0, 242.0, 289.0, 345.0, 412.0, 492.0, 588.0, 702.0, 838.0, 1000.0,
   1190.0, 1420.0, 1700.0, 2030.0, 2420.0, 2890.0, 3450.0, 4120.0, 4920.0, 5880.0, 7020.0, 8380.0, 10000.0, 11900.0,
   14200.0, 17000.0, 20300.0, 24200.0, 28900.0, 34500.0, 41200.0, 49200.0, 58800.0, 70200.0, 83800.0, 100000.0,
   119000.0, 142000.0, 170000.0, 203000.0, 242000.0, 289000.0, 345000.0, 412000.0, 492000.0, 588000.0, 702000.0,
   838000.0, 1000000.0, 4000000.0, 16000000.0)),
 ('assembly.budget.utilization', 'histogram', '1',
  "Tokens needed ÷ the limit (the budget or the model's window, whichever ratio is larger). Assemblies that raised "
  'an overflow error are included.',
  (0.01, 0.0119, 0.0142, 0.017, 0.0203, 0.0242, 0.0289, 0.0345, 0.0412, 0.0492, 0.0588, 0.0702, 0.0838, 0.1, 0.119,
   0.142, 0.17, 0.203, 0.242, 0.289, 0.345, 0.412, 0.492, 0.588, 0.702, 0.8, 0.9, 0.95, 0.99, 1.0, 1.19, 1.42, 1.7,
   2.0)),
 ('assembly.budget.fixed_utilization', 'histogram', '1',
  'Tokens that cannot be dropped ÷ the limit. Alert on this metric and not on the utilization, which a reducer '
  'brings close to 1 with any budget.',
  (0.01, 0.0119, 0.0142, 0.017, 0.0203, 0.0242, 0.0289, 0.0345, 0.0412, 0.0492, 0.0588, 0.0702, 0.0838, 0.1, 0.119,
   0.142, 0.17, 0.203, 0.242, 0.289, 0.345, 0.412, 0.492, 0.588, 0.702, 0.8, 0.9, 0.95, 0.99, 1.0, 1.19, 1.42, 1.7,
   2.0)),
 ('assembly.items.dropped', 'counter', '{item}',
  'Items that a policy newly dropped from the prompt. An item is counted in the turn in which it leaves, not in '
  'later turns and not in each process that resumes the conversation.',
  ()),
 ('assembly.tokens.dropped', 'counter', '{token}',
  'The tokens of the items that a policy newly dropped from the prompt.', ()),
 ('assembly.budget.overflows', 'counter', '{overflow}',
  "Assemblies that exceeded a limit or the model's context window, whether an error was raised or not, and prompts "
  "that a provider refused as too long. Starts at 0 with an agent's first assembly.",
  ()),
 ('assembly.halts', 'counter', '{halt}', "Halted conversations. Starts at 0 with an agent's first assembly.", ()),
 ('assembly.alerts.delivered', 'counter', '{alert}', 'Observer alerts that were shown to a model.', ()),
 ('assembly.policy.declined', 'counter', '{check}',
  "Calls of a framework's own reducer that changed nothing; no span is created for them.", ()),
 ('assembly.policy.errors', 'counter', '{error}',
  'Policies that raised an exception or broke their contract, and failed sources of a `ContextAssembler`. '
  'Cancellations are not counted.',
  ()),
 ('assembly.telemetry.errors', 'counter', '{error}',
  "Failures of this library's telemetry. The assembly itself is not affected.", ()),
 ('assembly.prefix.reuse', 'histogram', '1',
  'The share of the previous prompt that the prompt starts with, in bytes; first turns are excluded.',
  (0.0, 0.1, 0.119, 0.142, 0.17, 0.203, 0.242, 0.289, 0.345, 0.412, 0.492, 0.588, 0.702, 0.8, 0.9, 0.95, 0.99, 1.0)),
 ('assembly.prefix.breaks', 'counter', '{break}', 'Prompts that do not start with the whole previous prompt.', ()),
 ('assembly.tokens.calibration', 'histogram', '1',
  'Input tokens as counted ÷ input tokens as billed by the provider.',
  (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0)),
 ('assembly.cost', 'counter', '{USD}',
  "The estimated input cost of the assembled prompts, not the billed cost. Recorded only if the model's input price "
  'is known (extra `prices`).',
  ()),
 ('assembly.cost.avoided', 'counter', '{USD}',
  'The estimated cost, as uncached input, of items that were newly dropped or compacted; counted once, in the turn '
  "in which they leave. Recorded only if the model's input price is known (extra `prices`).",
  ()),
 ('assembly.session.posts', 'counter', '{post}', "Posts of envelopes to a session's log.", ()),
 ('assembly.session.post.duration', 'histogram', 's',
  'The duration of one post until it was accepted or refused, including the wait for room in an inbox.',
  (1e-05, 2.5e-05, 5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
   5.0, 10.0, 30.0)),
 ('assembly.session.inbox.waiting', 'histogram', '{envelope}',
  "Envelopes in a participant's inbox that the participant has not confirmed, recorded when the inbox is read.",
  (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)),
 ('assembly.session.violations', 'counter', '{violation}',
  'Violated expectations of sessions, counted once each, by the hub that reports the violation. Starts at 0 with the '
  'first session that has such an expectation.',
  ()))
