"""One turn read from that turn's spans, by somebody who knows docs/semantic-conventions.md and nothing else."""

from __future__ import annotations


def items(runs):
    """Every item that runs such as ``7``, ``7-9`` and ``m0-m2`` name."""
    for run in runs:
        first, _, last = run.partition("-")
        mark = first[:1] if first.startswith("m") else ""
        for number in range(int(first[len(mark) :]), int((last or first)[len(mark) :]) + 1):
            yield f"{mark}{number}"


def whole(span):
    """A span's attributes, each array with the rest of it, which stands on `list_items` spans below."""
    held = dict(span.attributes)
    for child in span.children:
        if child.name == "list_items":
            for name, rest in child.attributes.items():
                held[name] = [*held.get(name, ()), *rest]
    return held


def steps_of(turn):
    """The policies, in their order; of an allocation that stands alone its blocks, and what it says for the others."""
    if turn.name == "allocate_budget":
        blocks = (child for child in turn.children if child.name.startswith("allocate_block"))
        return [
            {**whole(item), "assembly.policy.name": "allocator", "assembly.policy.index": 0} for item in (turn, *blocks)
        ]
    steps = map(whole, (child for child in turn.children if child.name.startswith("apply_policy")))
    return sorted(steps, key=lambda step: step["assembly.policy.index"])


def read(turn):
    """What was offered, what was kept, and of what is out the outcome, the reason, and the policy with its place."""
    told = whole(turn)
    offered, kept = (list(items(told.get(f"assembly.{what}.items", ()))) for what in ("offered", "kept"))
    out, rests, known = {}, [], dict.fromkeys(offered)
    for step in steps_of(turn):
        who = step["assembly.policy.name"], step["assembly.policy.index"]
        injected = list(items(step.get("assembly.injected.items", ())))
        known.update(dict.fromkeys(injected))
        for item in injected:
            out.pop(item, None)
        reasons = step.get("assembly.dropped.reasons", ())
        for run, reason in zip(step.get("assembly.dropped.items", ()), reasons, strict=True):
            out.update(dict.fromkeys(items([run]), ("dropped", reason, *who)))
        compacted = ("compacted", "compacted", *who)
        out.update(dict.fromkeys(items(step.get("assembly.compacted.items", ())), compacted))
        rests += (("dropped", reason, *who) for reason in step.get("assembly.dropped.unlisted_reasons", ()))
    missing = known.keys() - out.keys() - set(kept) if rests and "error.type" not in told else ()
    return offered, kept, out, dict.fromkeys(missing, rests)
