"""The registry's files are what OpenTelemetry's definition language (``definition/2``) asks for, without its checker.

What holds between the registry and the code is in ``test_conventions``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest
import yaml

from otel_assembly import __version__
from otel_assembly.telemetry.conventions_registry import FOLDER

FILES = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*"))}
MANIFEST = FILES.pop("manifest")

#: Names that are defined elsewhere, with the type that they have there, by the registry that defines them: as read in
#: open-telemetry/semantic-conventions at v1.44.0 and in open-telemetry/semantic-conventions-genai at e07f4eb.
ELSEWHERE = {
    "https://opentelemetry.io/schemas/1.44.0": {
        "error.type": "enum",
        "exception.type": "string",
        "exception.stacktrace": "string",
    },
    "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev": {
        "gen_ai.agent.name": "string",
        "gen_ai.conversation.compacted": "boolean",
        "gen_ai.conversation.id": "string",
        "gen_ai.operation.name": "enum",
        "gen_ai.system_instructions": "any",
    },
}
FOREIGN = {name: kind for names in ELSEWHERE.values() for name, kind in names.items()}

#: By kind of definition, what it is called by, and which keys it must and may have.
SAID = {"brief", "stability"}
DEFINITIONS = {
    "attributes": ("key", {"type", *SAID}, {"note", "annotations"}),
    "spans": ("type", {"kind", "name", "requirement_level", "attributes", *SAID}, {"note", "annotations"}),
    "events": ("name", {"requirement_level", "attributes", *SAID}, {"note", "annotations"}),
    "metrics": ("name", {"instrument", "unit", "requirement_level", "attributes", *SAID}, {"note", "annotations"}),
}
GROUPS = {"internal": {"id", "visibility", "attributes"}, "public": {"id", "visibility", "attributes", *SAID}}
SIGNALS = ("spans", "events", "metrics")
TYPES = {"string", "int", "double", "boolean", "string[]", "int[]", "double[]", "boolean[]"}
STABILITIES = {"development", "alpha", "beta", "release_candidate", "stable"}
OWN = {
    "attributes": {"parallel_to", "values_of", "values"},
    "references": {"type", "values"},
    "spans": {"parent", "events"},
    "events": set(),
    "metrics": {"buckets"},
}
NAME = re.compile(r"[a-z][a-z0-9]*([._][a-z0-9]+)*")


def every(kind):
    return [item for file in FILES.values() for item in file.get(kind, ())]


ATTRIBUTES = {item["key"]: item for item in every("attributes")}
GROUPED = {item["id"]: item for item in every("attribute_groups")}


def signals():
    return [(f"{kind}: {item[DEFINITIONS[kind][0]]}", item) for kind in SIGNALS for item in every(kind)]


def listed():
    """Every list of references, with what it is the list of."""
    return [*signals(), *GROUPED.items()]


def referenced(span):
    for ref in span["attributes"]:
        if "ref_group" in ref:
            yield from referenced(GROUPED[ref["ref_group"]])
        else:
            yield ref["ref"]


def test_the_manifest_names_the_version_and_what_the_registry_builds_on():
    assert set(MANIFEST) == {"schema_url", "description", "stability", "dependencies"}
    assert MANIFEST["stability"] in STABILITIES
    assert MANIFEST["schema_url"] == f"https://pypi.org/project/otel-assembly/{__version__}"
    assert {item["schema_url"] for item in MANIFEST["dependencies"]} == set(ELSEWHERE)
    for dependency in MANIFEST["dependencies"]:
        assert set(dependency) == {"schema_url", "registry_path"}
        assert re.fullmatch(
            r"https://github\.com/.+\.git@(v[0-9.]+|[0-9a-f]{40})\[model\]", dependency["registry_path"]
        ), dependency


def test_every_file_is_of_the_language_and_holds_nothing_else():
    known = {"file_format", "attributes", "attribute_groups", "imports", *SIGNALS}
    for name, file in FILES.items():
        assert file["file_format"] == "definition/2", name
        assert set(file) <= known, name
    assert {path.suffix for path in FOLDER.iterdir()} == {".yaml"}


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_definitions_have_what_they_must_and_nothing_unknown(kind):
    called, must, may = DEFINITIONS[kind]
    assert every(kind)
    for item in every(kind):
        assert {called, *must} <= set(item) <= {called, *must, *may}, item
        assert NAME.fullmatch(item[called]), item
        assert item[called].startswith("assembly."), item
        assert item["brief"].endswith("."), item
        assert item["stability"] in STABILITIES, item
        assert set(item.get("annotations", {})) <= {"otel_assembly"}, item
        assert set(item.get("annotations", {}).get("otel_assembly", {})) <= OWN[kind], item


def test_attributes_are_of_a_type_or_have_members():
    for key, item in ATTRIBUTES.items():
        if isinstance(item["type"], str):
            assert item["type"] in TYPES, key
            continue
        members = item["type"]["members"]
        assert set(item["type"]) == {"members"}, key
        assert members, key
        for member in members:
            assert set(member) == {"id", "brief", "stability"}, member
            assert NAME.fullmatch(member["id"]), member
            assert member["brief"].endswith("."), member
            assert member["stability"] in STABILITIES, member
        assert len({member["id"] for member in members}) == len(members), key


def test_names_are_unique():
    assert max(Counter(item["key"] for item in every("attributes")).values()) == 1
    assert max(Counter(item["id"] for item in every("attribute_groups")).values()) == 1
    assert max(Counter(item[DEFINITIONS[kind][0]] for kind in SIGNALS for item in every(kind)).values()) == 1


@pytest.mark.parametrize("flat", [str, lambda name: name.replace(".", "_")], ids=["dotted", "as a constant"])
def test_no_name_is_another_one_or_its_namespace(flat):
    names = [*ATTRIBUTES, *FOREIGN]
    assert len({flat(name) for name in names}) == len(names)
    # The model by its name, and what is known of it.
    assert [(a, b) for a in names for b in names if b.startswith(f"{a}.")] == [
        ("assembly.model", "assembly.model.window")
    ]
    metrics = [item["name"] for item in every("metrics")]
    # Two counters of one kind of money: what was paid, and what was not.
    assert [(a, b) for a in metrics for b in metrics if b.startswith(f"{a}.")] == [
        ("assembly.cost", "assembly.cost.avoided")
    ]


def test_groups_are_internal_or_say_what_they_are():
    for name, group in GROUPED.items():
        assert set(group) == GROUPS[group["visibility"]], name
        assert name.startswith("attributes.assembly."), name


@pytest.mark.parametrize(("name", "span"), listed(), ids=lambda given: given if isinstance(given, str) else "")
def test_references_lead_somewhere_and_say_when_the_attribute_is_there(name, span):
    for ref in span["attributes"]:
        if "ref_group" in ref:
            assert set(ref) == {"ref_group"}
            assert GROUPED[ref["ref_group"]]["visibility"] == "internal"
            continue
        assert ref["ref"] in ATTRIBUTES or ref["ref"] in FOREIGN, ref
        if name == "attributes.assembly.referenced":
            continue
        assert set(ref) == {"ref", "requirement_level"}, ref
        level = ref["requirement_level"]
        assert level in ("required", "opt_in") or list(level) == ["conditionally_required"], ref
        if isinstance(level, dict):
            assert level["conditionally_required"], ref
    assert max(Counter(referenced(span)).values()) == 1


def test_every_group_is_used_but_those_that_are_for_readers():
    used = {ref.get("ref_group") for _, span in listed() for ref in span["attributes"]}
    for_readers = {"attributes.assembly.referenced", "attributes.assembly.model_call", "attributes.assembly.traced"}
    assert set(GROUPED) - used == for_readers


def test_a_condition_that_names_an_attribute_is_one_that_is_read():
    """Of the two forms that programs read there is no third that only looks like them."""
    read = re.compile(r"always, unless `[a-z_.]+`|if `[a-z_.]+` is (set|true)")
    said = [
        ref["requirement_level"] for _, span in listed() for ref in span["attributes"] if "requirement_level" in ref
    ]
    for text in {message["conditionally_required"] for message in said if isinstance(message, dict)}:
        assert read.fullmatch(text) or not ("`" in text or text.startswith("always")), text


def test_what_is_defined_elsewhere_is_referenced_once_with_how_it_is_used():
    refs = GROUPED["attributes.assembly.referenced"]["attributes"]
    assert Counter(ref["ref"] for ref in refs) == Counter(list(FOREIGN))
    for ref in refs:
        assert {"ref", "brief", "annotations"} <= set(ref) <= {"ref", "brief", "note", "annotations"}, ref
        ours = ref["annotations"]["otel_assembly"]
        assert set(ours) <= OWN["references"], ref
        assert ours["type"] == {"enum": "string", "any": "string"}.get(FOREIGN[ref["ref"]], FOREIGN[ref["ref"]]), ref


@pytest.mark.parametrize(("name", "value"), signals(), ids=lambda given: given if isinstance(given, str) else "")
def test_signals_are_of_the_kinds_that_there_are(name, value):
    assert value["requirement_level"] in {"recommended", "opt_in"}
    if name.startswith("spans"):
        assert value["kind"] in {"internal", "client", "server", "producer", "consumer"}
        assert set(value["name"]) == {"note"}
        assert set(re.findall(r"\{(.+?)\}", value["name"]["note"])) <= set(referenced(value))
        assert set(value["annotations"]["otel_assembly"].get("events", ())) <= {
            each["name"] for each in every("events")
        }
    if name.startswith("metrics"):
        assert value["instrument"] in {"counter", "histogram", "updowncounter", "gauge"}
        assert value["unit"] in {"s", "1"} or re.fullmatch(r"\{[a-z]+\}|\{USD\}", value["unit"])


def test_annotations_name_attributes_that_there_are():
    for key, item in ATTRIBUTES.items():
        ours = item.get("annotations", {}).get("otel_assembly", {})
        if "parallel_to" in ours:
            assert ATTRIBUTES[ours["parallel_to"]]["type"].endswith("[]"), key
        if "values_of" in ours:
            assert "members" in ATTRIBUTES[ours["values_of"]]["type"], key
            assert item["type"] == "string[]", key


EXPORTS = """
import asyncio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from otel_assembly import Assembler, Context, ConversationPolicy
reader = InMemoryMetricReader()
recorder = otel_assembly.telemetry.OpenTelemetryRecorder(meter_provider=MeterProvider([reader]))
asyncio.run(Assembler([ConversationPolicy()], recorder=recorder).assemble([], [], Context()))
assert "assembly.duration" in reader.get_metrics_data().to_json()
"""


@pytest.mark.parametrize("work", ["", EXPORTS], ids=["none", "exports"])
def test_a_process_that_only_exports_reads_no_file_of_the_registry(work):
    program = f"""
import pathlib, sys
opened = []
sys.addaudithook(lambda event, given: event == "open" and opened.append(pathlib.Path(str(given[0]))))
import otel_assembly.telemetry
{work}
folder = pathlib.Path(otel_assembly.telemetry.__file__).parent / "registry"
print(*(path.name for path in opened if path.parent == folder), *(sys.modules.keys() & {{"yaml"}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == ([], "")
