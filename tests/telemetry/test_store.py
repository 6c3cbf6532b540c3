from __future__ import annotations

import base64
import json
import logging
import math
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_assembly import AssemblyError, ConfigurationError
from otel_assembly.errors import TranscriptError
from otel_assembly.telemetry import (
    LogFileExporter,
    SpanFileExporter,
    SpanNode,
    StoredSpan,
    as_list,
    read_line,
    read_spans,
    span_tree,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def tracing(path, processor=SimpleSpanProcessor, **limits):
    provider = TracerProvider(resource=Resource({"service.name": "agent"}))
    provider.add_span_processor(processor(SpanFileExporter(path, **limits)))
    try:
        yield provider.get_tracer("otel_assembly", "1.2")
    finally:
        provider.shutdown()


def finished(*names):
    """Finished SDK spans, to be exported by hand."""
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    for name in names:
        provider.get_tracer("t").start_span(name).end()
    provider.shutdown()
    return memory.get_finished_spans()


def line(**fields):
    span = {"traceId": TRACE, "spanId": SPAN, "name": "n", "startTimeUnixNano": "1", "endTimeUnixNano": "2"} | fields
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}) + "\n"


def names(path):
    return [span.name for span in read_spans(path)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "spans.jsonl"


def test_what_the_sdk_recorded_is_what_is_read_back(path):
    other = SpanContext(0x5, 0x6, is_remote=True, trace_flags=TraceFlags(1))
    attributes = {
        "int": 3,
        "big": 2**62,
        "float": 1.0,
        "yes": True,
        "text": "größer 🌍 \n",
        "ints": [1, 2],
        "texts": ["0-3", "ü"],
        "none": [],
    }
    with (
        tracing(path) as tracer,
        tracer.start_as_current_span("parent", attributes=attributes, links=[Link(other, {"why": "x"})]) as parent,
    ):
        parent.add_event("assembly.alert", {"assembly.alert.severity": "fatal", "n": [1]}, timestamp=17)
        with tracer.start_as_current_span("child") as inner:
            inner.set_status(Status(StatusCode.ERROR, "budget could not hold"))

    child, read = read_spans(path)
    assert read.attributes == {**attributes}
    assert [type(read.attributes[key]) for key in ("int", "float", "yes", "ints")] == [int, float, bool, list]
    assert [(event.name, event.time_ns, event.attributes) for event in read.events] == [
        ("assembly.alert", 17, {"assembly.alert.severity": "fatal", "n": [1]})
    ]
    assert read.links == [(f"{5:032x}", f"{6:016x}", {"why": "x"})]
    assert (read.scope, read.scope_version, read.resource["service.name"]) == ("otel_assembly", "1.2", "agent")
    assert (read.status, read.status_message) == ("UNSET", "")
    assert (child.status, child.status_message) == ("ERROR", "budget could not hold")
    assert (child.trace_id, child.parent_id, read.parent_id) == (read.trace_id, read.span_id, None)
    assert read.span_id == f"{parent.get_span_context().span_id:016x}"
    assert 0 <= child.duration_s <= read.duration_s < 60


def test_counts_of_what_the_limits_of_the_sdk_cost(path):
    with tracing(path) as tracer, tracer.start_as_current_span("crowded") as span:
        for index in range(130):
            span.add_event(f"e{index}")
            span.set_attribute(f"a{index}", index)
    (read,) = read_spans(path)
    assert (read.dropped_events, len(read.events)) == (2, 128)
    assert (read.dropped_attributes, len(read.attributes)) == (2, 128)


def test_a_batch_is_one_line_and_keeps_every_span(path):
    with tracing(path, BatchSpanProcessor) as tracer:
        for index in range(300):
            tracer.start_span(f"s{index}").end()
    assert names(path) == [f"s{index}" for index in range(300)]
    assert len(path.read_text().splitlines()) < 10


def test_a_batch_too_long_for_the_collectors_line_limit_becomes_several_lines(path):
    with tracing(path, BatchSpanProcessor) as tracer:
        for index in range(40):
            tracer.start_span(f"s{index}", attributes={"blob": "x" * 100_000}).end()
    assert names(path) == [f"s{index}" for index in range(40)]
    assert all(len(each) <= 1 << 20 for each in path.read_bytes().splitlines())


_INTS = st.integers(-(2**63), 2**63 - 1)
_SCALARS = (st.text(), _INTS, st.booleans(), st.floats())
_VALUES = st.one_of(*_SCALARS, *(st.lists(scalar, max_size=4) for scalar in _SCALARS))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attributes=st.dictionaries(st.text(min_size=1), _VALUES, max_size=5))
def test_any_attribute_comes_back_with_its_type(tmp_path, attributes):
    path = tmp_path / "round.jsonl"
    path.unlink(missing_ok=True)
    with tracing(path) as tracer:
        tracer.start_span("s", attributes=attributes).end()
    (read,) = read_spans(path)
    assert repr(read.attributes) == repr(attributes)  # repr tells 1 from 1.0 and from True, and nan from nothing


# Rotation


def test_rotation_keeps_every_span_of_the_kept_files_and_tears_no_line(path):
    with tracing(path, max_bytes=3000, backups=3) as tracer:
        for index in range(60):
            tracer.start_span(f"s{index}").end()
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["spans.jsonl", "spans.jsonl.1", "spans.jsonl.2", "spans.jsonl.3"]
    for file in files:
        assert 0 < file.stat().st_size <= 3000
        assert all(json.loads(each) for each in file.read_text().splitlines())
        assert file.read_text().endswith("\n")
    read = names(path)
    assert read == [f"s{index}" for index in range(60 - len(read), 60)]
    assert len(read) > 12


def test_nothing_is_lost_while_the_backups_suffice(path):
    with tracing(path, max_bytes=2000, backups=100) as tracer:
        for index in range(60):
            tracer.start_span(f"s{index}").end()
    assert names(path) == [f"s{index}" for index in range(60)]


def test_without_backups_only_the_newest_file_is_kept(path):
    with tracing(path, max_bytes=2000, backups=0) as tracer:
        for index in range(30):
            tracer.start_span(f"s{index}").end()
    assert [file.name for file in path.parent.iterdir()] == ["spans.jsonl"]
    assert names(path)[-1] == "s29"


def test_a_line_longer_than_a_file_gets_one_to_itself(path):
    with tracing(path, max_bytes=1000, backups=9) as tracer:
        for index in range(3):
            tracer.start_span(f"s{index}", attributes={"blob": "x" * 5000}).end()
    assert names(path) == ["s0", "s1", "s2"]


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"backups": -1}])
def test_limits_that_cannot_work(path, limits):
    with pytest.raises(ConfigurationError, match="max_bytes"):
        SpanFileExporter(path, **limits)


def test_a_reopened_store_is_appended_to_and_still_rotates(path):
    for index in range(20):
        with tracing(path, max_bytes=2000, backups=50) as tracer:
            tracer.start_span(f"s{index}").end()
    assert names(path) == [f"s{index}" for index in range(20)]
    assert (path.parent / "spans.jsonl.1").exists()


def test_a_file_that_was_moved_away_is_begun_anew(path):
    with tracing(path) as tracer:
        tracer.start_span("before").end()
        path.rename(path.parent / "elsewhere.jsonl")
        tracer.start_span("after").end()
    assert names(path) == ["after"]
    assert names(path.parent / "elsewhere.jsonl") == ["before"]


def test_backups_are_read_by_number_and_strangers_are_left_alone(path):
    for suffix, name in [("", "new"), (".1", "b1"), (".2", "b2"), (".10", "b10"), (".bak", "no"), (".1.gz", "no")]:
        path.with_name(path.name + suffix).write_text(line(name=name))
    assert names(path) == ["b10", "b2", "b1", "new"]


def test_a_store_rotated_while_it_is_read_is_read_whole_and_once(path):
    path.write_text(line(name="old"))
    reading = read_spans(path)
    path.rename(path.with_name("spans.jsonl.1"))
    path.write_text(line(name="new"))
    assert [span.name for span in reading] == ["old", "new"]


# What crashes and faults do


def test_a_last_line_torn_by_a_crash_costs_only_itself(path):
    path.write_text(line(name="whole") + line(name="torn")[:70])
    with tracing(path) as tracer:
        tracer.start_span("next").end()
        tracer.start_span("last").end()
    problems = []
    spans = list(read_spans(path, on_problem=lambda number, problem: problems.append((number, problem))))
    assert [span.name for span in spans] == ["whole", "next", "last"]
    assert [number for number, _ in problems] == [2]
    assert "torn" not in problems[0][1]


def test_a_line_that_the_disk_had_no_room_for_is_closed_before_the_next(path, monkeypatch, caplog):
    exporter = SpanFileExporter(path)
    exporter.export(finished("a"))
    write = os.write

    def full(fd, data):
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(fd, data[:-50])

    monkeypatch.setattr(os, "write", full)
    assert exporter.export(finished("b")) is SpanExportResult.FAILURE
    monkeypatch.undo()
    assert exporter.export(finished("c")) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert names(path) == ["a", "c"]
    assert "No space left on device" in caplog.text


def test_a_folder_that_is_gone_is_one_warning_and_no_exception(tmp_path, caplog):
    folder = tmp_path / "folder"
    folder.mkdir()
    exporter = SpanFileExporter(folder / "spans.jsonl")
    assert exporter.export(finished("kept")) is SpanExportResult.SUCCESS
    (folder / "spans.jsonl").unlink()
    folder.rmdir()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert exporter.export(finished("secret name")) is SpanExportResult.FAILURE
    assert len(caplog.records) == 1
    assert caplog.records[0].levelname == "WARNING"
    assert "No such file" in caplog.text
    assert "secret" not in caplog.text

    folder.mkdir()
    assert exporter.export(finished("back")) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert names(folder / "spans.jsonl") == ["back"]


def test_a_path_that_is_no_file_never_raises_into_the_agent(tmp_path, caplog):
    with tracing(tmp_path) as tracer, tracer.start_as_current_span("work"):
        answer = 42
    assert answer == 42
    assert len(caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_a_read_only_folder_is_one_warning_and_no_exception(tmp_path):
    (tmp_path / "locked").mkdir()
    script = f"""
import os, logging
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from otel_assembly.telemetry import SpanFileExporter, read_line
logging.basicConfig(format="%(levelname)s %(message)s")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(SpanFileExporter({str(tmp_path / "locked" / "s.jsonl")!r})))
os.chmod({str(tmp_path / "locked")!r}, 0o555)
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write anywhere
for _ in range(3):
    with provider.get_tracer("t").start_as_current_span("secret name"):
        pass
provider.shutdown()
print("the agent goes on")
"""
    if os.geteuid() == 0:
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "the agent goes on\n"
    assert ran.stderr.count("WARNING") == 1
    assert "ermission denied" in ran.stderr
    assert "secret" not in ran.stderr


def test_a_closed_exporter_fails_quietly(path, caplog):
    exporter = SpanFileExporter(path)
    exporter.export(finished("a"))
    assert exporter.force_flush()
    exporter.shutdown()
    exporter.shutdown()
    assert exporter.export(finished("b")) is SpanExportResult.FAILURE
    assert not caplog.records


def test_nothing_is_written_for_no_spans(path):
    exporter = SpanFileExporter(path)
    assert exporter.export([]) is SpanExportResult.SUCCESS
    assert not path.exists()


def test_without_the_official_exporter_the_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.json.file", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'otel-assembly\[cli\]'") as error:
        SpanFileExporter(path)
    assert isinstance(error.value, AssemblyError)


# Several writers


def test_two_threads_lose_and_tear_nothing(path):
    exporter = SpanFileExporter(path, max_bytes=20_000, backups=200)
    spans = [finished(*(f"{name}{index}" for index in range(100))) for name in "ab"]
    threads = [threading.Thread(target=lambda mine=mine: [exporter.export([span]) for span in mine]) for mine in spans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    exporter.shutdown()
    assert sorted(names(path)) == sorted(f"{name}{index}" for name in "ab" for index in range(100))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows renames no file that another process has open")
def test_three_processes_share_a_rotating_file(path):
    script = f"""
import sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from otel_assembly.telemetry import SpanFileExporter, read_line
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(SpanFileExporter({str(path)!r}, max_bytes=20_000, backups=200)))
for index in range(100):
    provider.get_tracer("t").start_span(sys.argv[1] + str(index)).end()
provider.shutdown()
"""
    writers = [subprocess.Popen([sys.executable, "-c", script, name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    problems = []
    read = [span.name for span in read_spans(path, on_problem=lambda *problem: problems.append(problem))]
    assert sorted(read) == sorted(f"{name}{index}" for name in "abc" for index in range(100))
    assert problems == []
    assert path.with_name("spans.jsonl.2").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_although_the_parent_was_writing(path):
    script = f"""
import os, threading
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from otel_assembly.telemetry import SpanFileExporter, read_line
exporter = SpanFileExporter({str(path)!r})
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
writing = threading.Thread(target=exporter._writer._lock.acquire)
writing.start()
writing.join()
child = os.fork()
if child:
    os.waitpid(child, 0)
    exporter._writer._lock = threading.Lock()
provider.get_tracer("t").start_span("parent" if child else "child").end()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert names(path) == ["child", "parent"]


def test_log_records_go_to_a_file_of_their_own(tmp_path):
    path = tmp_path / "logs.jsonl"
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(LogFileExporter(path)))
    provider.get_logger("otel_assembly").emit(LogRecord(event_name="assembly.alert", body="b", attributes={"n": 1}))
    provider.shutdown()
    (text,) = path.read_text().splitlines()
    record = json.loads(text)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert record["eventName"] == "assembly.alert"
    with pytest.raises(TranscriptError, match="a signal other than traces"):
        list(read_spans(path))


# Reading what others wrote


def test_every_kind_of_value_and_both_spellings_of_numbers(path):
    values = {
        "s": {"stringValue": "x"},
        "t": {"boolValue": False},
        "i": {"intValue": "-9223372036854775808"},
        "j": {"intValue": 7},
        "d": {"doubleValue": 2},
        "nan": {"doubleValue": "NaN"},
        "a": {"arrayValue": {"values": [{"intValue": "1"}, {"arrayValue": {}}]}},
        "k": {"kvlistValue": {"values": [{"key": "in", "value": {"stringValue": "ner"}}]}},
        "b": {"bytesValue": base64.b64encode(b"\0\xff").decode()},
        "e": {},
    }
    path.write_text(line(attributes=[{"key": key, "value": value} for key, value in values.items()]))
    (span,) = read_spans(path)
    assert math.isnan(span.attributes.pop("nan"))
    assert span.attributes == {
        "s": "x",
        "t": False,
        "i": -(2**63),
        "j": 7,
        "d": 2.0,
        "a": [1, []],
        "k": {"in": "ner"},
        "b": b"\0\xff",
        "e": None,
    }


@pytest.mark.parametrize("spell", [str.upper, lambda hexed: base64.b64encode(bytes.fromhex(hexed)).decode()])
def test_ids_are_hex_however_they_were_spelt(path, spell):
    link = {"traceId": spell(TRACE), "spanId": spell(SPAN)}
    path.write_text(line(traceId=spell(TRACE), spanId=spell(SPAN), parentSpanId=spell(SPAN), links=[link]))
    (span,) = read_spans(path)
    assert (span.trace_id, span.span_id, span.parent_id) == (TRACE, SPAN, SPAN)
    assert span.links == [(TRACE, SPAN, {})]


@pytest.mark.parametrize("parent", ["", "0" * 16, None])
def test_a_root_has_no_parent(path, parent):
    path.write_text(line(parentSpanId=parent))
    assert [span.parent_id for span in read_spans(path)] == [None]


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "UNSET"), (1, "OK"), (2, "ERROR"), ("STATUS_CODE_ERROR", "ERROR"), ("STATUS_CODE_OK", "OK"), (None, "UNSET")],
)
def test_status_by_number_and_by_name(path, code, status):
    path.write_text(line(status={"code": code}))
    assert [span.status for span in read_spans(path)] == [status]


MALFORMED = [
    "{secret",
    "[1]",
    '"secret"',
    "{}",
    "\0\0\0\0",
    "[" * 100_000,
    '{"resourceSpans": "secret"}',
    '{"resourceSpans": [{"scopeSpans": [{"spans": ["secret"]}]}]}',
    line(traceId="secret"),
    line(spanId=TRACE),
    line(traceId=None),
    line(startTimeUnixNano="secret"),
    line(startTimeUnixNano="1" * 5000),
    line(name=["secret"]),
    line(status={"code": ["secret"]}),
    line(links=[{"traceId": TRACE}]),
]


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_line_is_skipped_and_reported_without_its_content(path, malformed):
    path.write_text(line(name="a") + "\n" + malformed.strip() + "\n" + line(name="b"))
    problems = []
    spans = list(read_spans(path, on_problem=lambda number, problem: problems.append((number, problem))))
    assert [span.name for span in spans] == ["a", "b"]
    assert [number for number, _ in problems] == [3]
    assert "secret" not in problems[0][1]


@pytest.mark.parametrize(
    "value",
    [
        "secret",
        {"arrayValue": "secret"},
        {"arrayValue": {"values": ["secret"]}},
        {"kvlistValue": ["secret"]},
        {"boolValue": "secret"},
        {"intValue": "secret"},
        {"bytesValue": 7},
    ],
)
def test_an_attribute_that_cannot_be_read_costs_no_other_one_of_its_span(path, value):
    attributes = [{"key": "k", "value": value}, {"key": "kept", "value": {"intValue": "3"}}]
    path.write_text(line(name="a", attributes=attributes))
    problems = []
    (span,) = read_spans(path, on_problem=lambda number, problem: problems.append((number, problem)))
    assert span.attributes == {"k": None, "kept": 3}
    assert problems == [(1, f"span {SPAN}: an attribute of the wrong form")]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(TRACE) | st.just(SPAN),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "resource",
                    "scopeSpans",
                    "scope",
                    "spans",
                    "traceId",
                    "spanId",
                    "name",
                    "attributes",
                    "key",
                    "value",
                    "values",
                    "arrayValue",
                    "kvlistValue",
                    "intValue",
                    "doubleValue",
                    "bytesValue",
                    "boolValue",
                    "events",
                    "links",
                    "status",
                    "code",
                    "startTimeUnixNano",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(_JSON, _JSON, st.sampled_from(["attributes", "events", "links", "status", "name", "endTimeUnixNano"]))
def test_no_json_makes_the_reader_raise(anything, field, key):
    for raw in (json.dumps({"resourceSpans": anything}), line(**{key: field}), json.dumps(anything)):
        found = read_line(raw.encode())
        assert found.problem is None or not found.problem.isspace()


@given(st.binary())
def test_no_bytes_make_the_reader_raise(raw):
    assert read_line(raw).spans == []


def test_a_malformed_span_does_not_cost_the_others_of_its_line(path):
    spans = [{"traceId": TRACE, "spanId": f"{index:016x}", "name": f"s{index}"} for index in range(1, 4)]
    spans[1]["traceId"] = "?"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    problems = []
    assert [span.name for span in read_spans(path, on_problem=lambda *problem: problems.append(problem))] == [
        "s1",
        "s3",
    ]
    assert len(problems) == 1


def test_problems_in_a_backup_name_its_file(path):
    path.with_name("spans.jsonl.1").write_text("nonsense\n")
    path.write_text(line())
    problems = []
    assert len(list(read_spans(path, on_problem=lambda *problem: problems.append(problem)))) == 1
    assert problems == [(1, "spans.jsonl.1: not JSON (column 1)")]


def test_a_file_of_something_else_is_refused_with_its_first_line(path):
    path.write_text('\n{"role": "user", "content": "secret"}\nnonsense\n')
    with pytest.raises(TranscriptError, match="no resourceSpans") as error:
        list(read_spans(path))
    assert (error.value.path, error.value.line) == (str(path), 2)
    assert "secret" not in str(error.value)


def test_a_missing_file_is_refused_at_once(path):
    with pytest.raises(TranscriptError, match=r"spans\.jsonl: no such file"):
        read_spans(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(TranscriptError, match="cannot be opened"):
        list(read_spans(tmp_path))


def test_an_empty_store_has_no_spans(path):
    path.write_text("")
    assert list(read_spans(path)) == []


def test_lines_of_other_signals_are_no_problem(path):
    path.write_text('{"resourceMetrics": []}\n' + line(name="a") + '{"resourceLogs": []}\n')
    problems = []
    assert [span.name for span in read_spans(path, on_problem=lambda *problem: problems.append(problem))] == ["a"]
    assert problems == []


def test_the_store_is_read_one_line_at_a_time(path):
    path.write_text(line(name="a") + "nonsense\n")
    problems = []
    reading = read_spans(path, on_problem=lambda *problem: problems.append(problem))
    assert next(reading).name == "a"
    assert problems == []
    reading.close()


# Trees


def span(span_id, parent=None, start=0, trace="t"):
    return StoredSpan(trace, span_id, parent, f"name {span_id}", start, start + 1)


def shape(nodes: list[SpanNode]):
    return {node.span.span_id: shape(node.children) for node in nodes}


def test_children_stand_by_start_time_and_traces_by_their_earliest_span():
    spans = [span("c2", "r", 3), span("late", trace="u", start=9), span("c1", "r", 2), span("g", "c1", 4), span("r")]
    tree = span_tree(spans)
    assert shape(tree) == {"r": {"c1": {"g": {}}, "c2": {}}, "late": {}}
    assert list(shape(tree)["r"]) == ["c1", "c2"]


def test_a_span_whose_parent_is_missing_is_a_root_of_its_trace():
    tree = span_tree([span("b", trace="u", start=2), span("a", "gone", start=3), span("root", start=1)])
    assert [node.span.span_id for node in tree] == ["root", "a", "b"]


def test_the_same_id_in_two_traces_is_two_spans():
    assert len(span_tree([span("a"), span("a", trace="u"), span("b", "a", trace="u")])) == 2


def test_a_span_delivered_twice_stands_once():
    tree = span_tree([span("r"), span("c", "r", 1), span("c", "r", 1), span("r")])
    assert shape(tree) == {"r": {"c": {}}}


def test_a_circle_of_parents_is_cut_and_loses_no_span():
    tree = span_tree([span("a", "c", 1), span("b", "a", 2), span("c", "b", 3), span("self", "self", 4)])
    assert shape(tree) == {"a": {"b": {"c": {}}}, "self": {}}


def test_a_very_deep_trace_is_no_problem():
    tree = span_tree(span(str(index), str(index - 1), index) for index in range(5000))
    assert len(tree) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a", 1], ["a", 1]),
        (("a",), ["a"]),
        ('["0-3","7"]', ["0-3", "7"]),
        ("[1, 2]", [1, 2]),
        ("[not json", ["[not json"]),
        ("3-9", ["3-9"]),
        (5, [5]),
        ("", [""]),
        (None, []),
        ("[]", []),
    ],
)
def test_arrays_come_as_arrays_or_as_their_json(value, expected):
    assert as_list(value) == expected
