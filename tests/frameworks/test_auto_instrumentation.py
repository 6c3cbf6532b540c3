"""``opentelemetry-instrument`` on agents that know nothing of us: spans at a real endpoint, one run one trace."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest
from otlp_receiver import receiving, receiving_http
from programs import AGENTS, EXAMPLES, HERE, LOOPS
from telemetry.turn_checks import adds_up, in_file

from otel_assembly.cli import main
from otel_assembly.telemetry import read_spans

PROTOCOLS = {"grpc": receiving, "http/protobuf": receiving_http}


def attributes(span):
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in span.attributes
    }


@pytest.mark.parametrize("example", [*AGENTS.values(), *LOOPS.values()])
def test_an_example_imports_nothing_of_ours(example):
    program = ast.parse((EXAMPLES / example).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(program)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not any(name.startswith(("otel_assembly", "opentelemetry")) for name in imported)


@pytest.mark.slow
@pytest.mark.parametrize("framework", HERE)
def test_an_unmodified_agent_s_spans_arrive_one_run_one_trace(run_program, framework, tmp_path, capsys):
    bare = run_program("python", EXAMPLES / AGENTS[framework])
    for protocol, receiving_by in PROTOCOLS.items():
        with receiving_by() as receiver:
            ran = run_program(
                "opentelemetry-instrument",
                "python",
                EXAMPLES / AGENTS[framework],
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
                OTEL_TRACES_EXPORTER="otlp,otel_assembly_file",
                OTEL_ASSEMBLY_SPAN_FILE=tmp_path / f"{receiver.port}.jsonl",
                **({} if protocol == "grpc" else {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}),
            )
        assert ran.stdout == bare.stdout
        _look_at(receiver, framework)
        turns = in_file(tmp_path / f"{receiver.port}.jsonl")
        for turn in turns:
            adds_up(turn)
        assert turns
        _the_lost_request_is_named(tmp_path / f"{receiver.port}.jsonl", capsys)
        drops = sum(point.as_int for point in receiver.metrics()["assembly.items.dropped"].sum.data_points)
        assert drops > 0


def _look_at(receiver, framework):
    spans = {span.span_id: span for span in receiver.spans()}
    names = [span.name for span in spans.values()]
    assert names.count("assemble_context") >= 1
    for span in spans.values():
        assert not span.parent_span_id or span.parent_span_id in spans, f"{span.name} has lost its parent"
        if span.name == "assemble_context":
            assert attributes(span)["assembly.framework"] == framework
            assert span.parent_span_id, "an assembly stands in the trace of its run"
        if span.name.startswith("apply_policy "):
            assert spans[span.parent_span_id].name == "assemble_context"
    _every_run_is_one_trace(spans.values())


def _every_run_is_one_trace(spans):
    roots = defaultdict(list)
    for span in spans:
        if not span.parent_span_id:
            roots[span.trace_id].append(span.name)
    assert all(len(names) == 1 for names in roots.values()), roots


def _the_lost_request_is_named(path, capsys):
    """Some turn's prompt is without the request that the conversation began with, and `explain` says by which rule."""
    turns = [int(span.attributes["assembly.turn"]) for span in read_spans(path) if span.name == "assemble_context"]
    for turn in sorted(set(turns), reverse=True):
        capsys.readouterr()
        main(["explain", "--traces", str(path), "--turn", str(turn), "--item", "0"])
        said = capsys.readouterr().out
        if "is not in the prompt of turn" in said:
            assert "Item 0 (request" in said
            return
    pytest.fail("no turn's prompt is without the first request")
