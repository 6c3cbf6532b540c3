"""A span file with attributes of any form is read as far as it can be, by each command."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["0-2", "m0", "["]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)
_KINDS = ("stringValue", "intValue", "boolValue", "doubleValue", "arrayValue", "kvlistValue", "bytesValue", "newValue")


def as_value(kind, anything):
    if kind == "arrayValue" and isinstance(anything, list):
        return {kind: {"values": [{"stringValue": str(span)} for span in anything]}}
    return {kind: anything} if kind else anything


def spans_of(request):
    return [span for r in request["resourceSpans"] for scope in r["scopeSpans"] for span in scope["spans"]]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from(["", *_KINDS]), _ANYTHING)))
@example([(0, 0, "", None), (292, 400, "intValue", False)])
def test_no_value_in_a_span_file_makes_a_command_fail(run, traces, changes):
    lines = [json.loads(line) for line in traces.read_text(encoding="utf-8").splitlines()]
    spans = [span for line in lines for span in spans_of(line)]
    for which, attribute, kind, anything in changes:
        attributes = spans[which % len(spans)]["attributes"]
        attributes[attribute % len(attributes)]["value"] = as_value(kind, anything)
    damaged = traces.with_name("damaged.jsonl")
    damaged.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    where = ("explain", "--traces", damaged)
    for more in ((), ("--turn", 0), ("--turn", 7, "--conversation", "talk-1"), ("--overflowed",)):
        assert run(*where, *more).status in {0, 1, 2}
    # A turn whose ledger's name is damaged belongs to another ledger, and one of the two has to be chosen: 2.
    assert run(*where, "--turn", 7, "--conversation", "talk-1", "--item", 2).status in {0, 1, 2}
    assert run("view", damaged, "-o", traces.with_name("page.html")).status in {0, 1}


def test_a_span_of_an_unknown_form_is_named_and_the_answer_is_the_same_without_it(run, traces):
    text = traces.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    spans = [span for line in lines for span in spans_of(line) if span["name"] == "assemble_context"]
    for span in spans:
        for attribute in span["attributes"]:
            if attribute["key"] == "assembly.kind.names":
                attribute["value"] = {"kvlistValue": "?"}
    damaged = traces.with_name("damaged.jsonl")
    damaged.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    there = ("--conversation", "talk-1", "--turn", 7, "--item", 2, "--json")
    whole, read = (run("explain", "--traces", path, *there) for path in (traces, damaged))
    assert (read.status, read.json["outcome"], read.json["reason"]) == (0, "dropped", whole.json["reason"])
    assert f"span {spans[0]['spanId']}: an attribute of the wrong form" in read.err
    assert "assembly.kind.names has an invalid value and is ignored" in read.err


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1_000_000), st.integers(1, 255))
@example(40, 0x80)
@example(0, 0x01)
def test_a_line_with_a_flipped_byte_is_read_or_named(run, traces, at, bits):
    whole = bytearray(traces.read_bytes())
    at %= len(whole)
    whole[at] ^= bits
    damaged = traces.with_name("damaged.jsonl")
    damaged.write_bytes(whole)
    unreadable = []
    for number, line in enumerate(bytes(whole).split(b"\n"), 1):
        try:
            json.loads(line or b"{}")
        except ValueError:
            unreadable.append(f"{damaged}:{number}: not JSON")
    for command in (("explain", "--traces", damaged), ("view", damaged, "-o", traces.with_name("page.html"))):
        said = run(*command)
        assert said.status in {0, 1, 2}
        assert all(name in said.err for name in unreadable)
