"""``otel-assembly demo`` and ``otel-assembly doctor``."""

from __future__ import annotations

import os
import re
import shlex
import socket
import threading

import pytest
from command_line import NO_FRAMEWORKS, runner
from environments import frameworks_apart

from otel_assembly.instrumentation import FRAMEWORKS, INSTRUMENTORS, PROVIDER_CLIENTS, instrumentor_of
from otel_assembly.telemetry import read_spans

#: Those that are installed together.
HERE = [framework for framework in FRAMEWORKS if framework not in frameworks_apart()]
#: The installed clients of providers.
CLIENTS = [client for client in PROVIDER_CLIENTS if instrumentor_of(client).version is not None]


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """One run of the demonstration, and where its spans are."""
    folder = tmp_path_factory.mktemp("demo")
    return runner(folder)("demo", "--output", "spans.jsonl"), folder / "spans.jsonl"


def test_the_demo_shows_an_overflow_a_warning_and_a_halt(demonstration):
    ran, path = demonstration
    assert ran.status == 0, ran.err
    spans = list(read_spans(path))
    events = {event.name: event.attributes for span in spans for event in span.events}
    assert events["assembly.overflow"]["assembly.overflow.cause"] == "framework"
    severities = {
        event.attributes["assembly.alert.severity"]
        for span in spans
        for event in span.events
        if event.name == "assembly.alert"
    }
    assert severities == {"warning", "fatal"}
    assert "FATAL" in events["assembly.halt"]["assembly.halt.reason"]
    halted = {span.name for span in spans if any(event.name == "assembly.halt" for event in span.events)}
    assert halted == {"invoke_agent support", "assemble_context"}
    for shown in ("OVERFLOW", "WARNING", "HALT", "assemble_context", "apply_policy sliding_window", "outside_window"):
        assert shown in ran.out
    assert max(map(len, ran.out.split("\nwrote ")[0].splitlines())) <= 100


def number(text):
    return int(text.replace(",", ""))


def test_the_demo_s_numbers_add_up_on_their_line(demonstration):
    """What came in, less what left, and what was put in: what went out. Over the budget: what the policy counts."""
    drawn = " ".join(re.sub(r"^[│├└─ ]+", "", line) for line in demonstration[0].out.splitlines())
    turns = re.findall(r"assemble_context(.*?)\[", drawn)
    assert len(turns) == 10
    for said in turns:
        came, went = map(number, re.search(r"tokens ([\d,]+)→([\d,]+)", said).groups())
        left = re.search(r"dropped [\d,]+ \(([\d,]+) tokens", said)
        put = re.search(r"injected (?:[\d,]+ \()?([\d,]+) tokens", said)
        assert came - (number(left[1]) if left else 0) + (number(put[1]) if put else 0) == went, said
    assert any("injected" in said for said in turns)
    overflows = re.findall(
        r"([\d,]+) tokens over the budget of 600; the framework counts ([\d,]+) of the ([\d,]+) tokens"
        r"(?:, without prompt ([\d,]+), tool_schemas ([\d,]+), framing (\d+))?",
        drawn,
    )
    assert len(overflows) == 6
    assert drawn.count("tokens over") == 6
    for over, counted, sent, *without in overflows:
        assert number(counted) - 600 == number(over)
        if without[0]:
            assert number(sent) - number(counted) == sum(map(number, without))


def test_the_demo_s_agent_is_halted_and_says_so(demonstration):
    spoken = demonstration[0].out.split("Spans:")[0].strip().splitlines()
    assert spoken[0] == "$ opentelemetry-instrument python ag2_support_agent.py"
    assert spoken[-1].split()[:2] == ["support", "HALTED:"]


def test_what_the_demo_says_to_do_next_has_an_answer(demonstration):
    ran, path = demonstration
    first, page, second = (shlex.split(line.split("otel-assembly ", 1)[1]) for line in ran.out.splitlines()[-3:])
    asked = runner(path.parent)(*first)
    assert asked.status == 0
    assert "Item 0 (request" in asked.out
    assert "sliding_window" in asked.out
    assert "to keep it" in asked.out
    assert runner(path.parent)(*page).status == 0
    replayed = runner(path.parent)(*second)
    assert replayed.status == 0, replayed.err
    assert "items dropped" in replayed.out


@pytest.mark.slow
def test_the_demo_s_spans_go_into_a_pipe_too(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    ran = runner(tmp_path)("demo", "-o", pipe)
    reader.join()
    assert ran.status == 0, ran.err
    assert b"assemble_context" in read[0]


@pytest.mark.slow
def test_another_demo_shows_its_own_spans_only_fits_an_ascii_terminal_and_sends_its_spans(demonstration, receiver):
    ran, path = demonstration
    endpoint = f"http://127.0.0.1:{receiver.port}"
    again = runner(path.parent)(
        "demo", "--output", "spans.jsonl", PYTHONIOENCODING="ascii", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint
    )
    assert again.status == 0, again.err
    assert again.out.isascii()
    assert again.out.count("assemble_context") == ran.out.count("assemble_context") > 0
    assert f"sent them to {endpoint}" in again.out
    sent = [span.name for span in receiver.spans()]
    assert sent.count("assemble_context") == again.out.count("assemble_context")


def test_the_demo_says_where_it_cannot_write(refused):
    ran = refused("demo", "--output", "missing/folder/spans.jsonl")
    assert ran.status == 2
    assert "missing/folder/spans.jsonl" in ran.err


#: A hook of some frameworks. AG2 takes three times as long to import as AutoGen.
A_HOOK = {
    "ag2": "ag2.assembly.AssemblerMiddleware.on_llm_call",
    "autogen": "autogen_core.model_context.ChatCompletionContext.get_messages",
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("autogen", "openai"), id="two"),
        # It imports every framework: 15 seconds of processor time, and ten minutes beside twenty runs of the suite.
        pytest.param((), marks=[pytest.mark.slow, pytest.mark.timeout(1800)], id="all"),
    ],
)
def test_doctor_lists_the_frameworks_and_the_hooks_that_take_on_them(otel_assembly, names):
    ran = otel_assembly("doctor", *names)
    assert ran.status == 0, ran.out
    for framework in names or (*HERE, *CLIENTS):
        line = next(line for line in ran.out.splitlines() if f" {framework} " in line)
        taken, expected = re.search(r"(\d+)/(\d+) hooks applied", line).groups()
        assert taken == expected != "0"
    assert all(hook in ran.out for framework, hook in A_HOOK.items() if framework in (names or HERE))
    assert "o200k_base" in ran.out
    assert "cl100k_base" in ran.out
    # Whoever runs a Collector while testing, as `make stack` does, has one at the default endpoint.
    with socket.socket() as probe:
        somebody = probe.connect_ex(("127.0.0.1", 4317)) == 0
    assert ("http://localhost:4317 answers" if somebody else "OTEL_EXPORTER_OTLP_ENDPOINT is not set") in ran.out
    assert "not captured" in ran.out


def test_doctor_lists_what_is_installed_and_not_captured(quick_doctor, tmp_path, monkeypatch):
    for name, version in {"crewai": "1.0", "ag2": "0.11.1", "together": "2.0"}.items():
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
        )
    monkeypatch.syspath_prepend(tmp_path)
    ran = quick_doctor()
    listed = ran.out.partition("\nNot captured\n")[2].partition("\n\n")[0]
    assert re.search(r"• crewai 1\.0 +its agents are not captured", listed)
    assert re.search(r"ag2 0\.11\.1 +classic agents \(ConversableAgent, initiate_chat, GroupChat\)", listed)
    assert re.search(r"together 2\.0 +calls that a program makes with it directly are not captured", listed)
    assert not re.search(r"(openai|anthropic|google-genai|botocore) ", listed)


def test_doctor_says_which_frameworks_are_disabled(quick_doctor):
    ran = quick_doctor()
    assert ran.status == 0
    assert ran.out.count("disabled by OTEL_PYTHON_DISABLED_INSTRUMENTATIONS") == len(HERE) + len(CLIENTS)


@pytest.fixture
def quick_doctor(otel_assembly):
    """The command without a look at the frameworks, which would all be imported."""
    return lambda *arguments, **environment: otel_assembly("doctor", *arguments, **NO_FRAMEWORKS, **environment)


def test_doctor_finds_an_endpoint_that_answers(quick_doctor, receiver):
    ran = quick_doctor(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}")
    assert ran.status == 0
    assert "answers" in ran.out


def test_doctor_fails_for_an_endpoint_that_nobody_answers(quick_doctor):
    ran = quick_doctor(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert ran.status == 1
    assert "does not answer" in ran.out


@pytest.mark.parametrize(
    ("model", "said"), [("gpt-4o", "exactly, by o200k_base"), ("claude-sonnet-4-5", "estimated by o200k_base")]
)
def test_doctor_says_what_counts_for_a_model(quick_doctor, model, said):
    ran = quick_doctor("--model", model)
    assert said in ran.out


def test_doctor_says_that_content_is_captured(quick_doctor):
    ran = quick_doctor(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY")
    assert "captured (SPAN_ONLY)" in ran.out


@pytest.mark.parametrize("value", ["", "false", "True", "1"])
def test_doctor_warns_of_what_autogen_s_runtime_writes_unless_it_is_told_not_to(quick_doctor, value):
    ran = quick_doctor(AUTOGEN_DISABLE_RUNTIME_TRACING=value)
    assert ran.status == 0
    (line,) = [line for line in ran.out.splitlines() if "AutoGen's runtime" in line]
    assert "records the whole content of messages between agents on its own spans" in line
    assert "set AUTOGEN_DISABLE_RUNTIME_TRACING=true to disable these spans" in line


def test_doctor_says_that_autogen_s_runtime_writes_nothing(quick_doctor):
    ran = quick_doctor(AUTOGEN_DISABLE_RUNTIME_TRACING="true")
    assert "creates no spans (AUTOGEN_DISABLE_RUNTIME_TRACING=true)" in ran.out


def test_doctor_says_what_uvicorn_loses_on_sigterm_and_what_prevents_it(quick_doctor):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    (line,) = [line for line in quick_doctor().out.splitlines() if "SIGTERM" in line]
    assert "uvicorn is installed: on SIGTERM it exits without exporting its last spans" in line
    assert "OTEL_ASSEMBLY_FLUSH_ON_SIGTERM=true" in line
    ran = quick_doctor(OTEL_ASSEMBLY_FLUSH_ON_SIGTERM="true")
    assert ran.status == 0
    assert "opentelemetry-instrument flushes (OTEL_ASSEMBLY_FLUSH_ON_SIGTERM=true)" in ran.out


@pytest.mark.parametrize("command", ["demo", "replay", "doctor"])
def test_every_command_has_help(refused, command):
    ran = refused(command, "--help")
    assert ran.status == 0
    assert command in ran.out


def test_no_command_is_wrong_usage(refused):
    assert refused().status == 2


def test_an_unknown_command_gets_a_suggestion(otel_assembly):
    ran = otel_assembly("explane")
    assert ran.status == 2
    assert ran.err == "otel-assembly: unknown command 'explane'; did you mean 'explain'? see otel-assembly --help\n"


def test_an_unknown_command_like_no_other_gets_the_list_of_commands(refused):
    ran = refused("xyzzy")
    assert ran.status == 2
    assert all(command in ran.err for command in ("unknown command 'xyzzy'", "demo, ", "replay, ", "tree, "))


@pytest.mark.parametrize("command", [("demo", "--framework", "letta"), ("doctor", "letta")])
def test_an_unsupported_framework_gets_the_list_of_supported_ones(refused, command):
    ran = refused(*command)
    assert ran.status == 2
    assert "unknown framework 'letta'" in ran.err
    assert all(framework in ran.err for framework in INSTRUMENTORS)


@pytest.mark.parametrize("command", [("demo", "--framework", "openai-agent"), ("doctor", "openai_agent")])
def test_a_misspelled_framework_gets_a_suggestion(refused, command):
    assert "did you mean 'openai_agents'?" in refused(*command).err


@pytest.mark.skipif("openai_agents" not in HERE, reason="openai_agents is not installed here")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["openai-agents", "openai_agents"])
def test_the_demo_takes_a_framework_by_its_name_and_its_distribution_s_name(otel_assembly, name):
    ran = otel_assembly("demo", "--framework", name)
    assert ran.status == 0, ran.err
    assert ran.out.startswith("$ opentelemetry-instrument python openai_agents_agent.py\n")


def test_doctor_checks_the_named_frameworks_only(quick_doctor):
    ran = quick_doctor("openai-agents")
    listed = ran.out.partition("\nFrameworks\n")[2].partition("\n\n")[0]
    assert [line.split()[1] for line in listed.splitlines()] == ["openai_agents"]


def test_tree_draws_the_spans_of_a_file(demonstration):
    ran, path = demonstration
    drawn = runner(path.parent)("tree", path.name)
    assert drawn.status == 0, drawn.err
    tree = ran.out.partition("\nSpans:\n\n")[2].partition("\n\n")[0]
    assert "apply_policy sliding_window" in tree
    assert tree in drawn.out


def test_tree_names_a_file_that_is_missing_or_has_no_spans(otel_assembly, tmp_path):
    missing = otel_assembly("tree", "missing.jsonl")
    assert (missing.status, missing.out) == (2, "")
    assert "missing.jsonl: no such file" in missing.err
    (tmp_path / "empty.jsonl").touch()
    empty = otel_assembly("tree", "empty.jsonl")
    assert (empty.status, empty.out, empty.err) == (1, "", "otel-assembly: empty.jsonl contains no spans\n")
