"""The compose file against the configurations that it mounts; no Docker is needed for that."""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
import yaml
from local_stack.builds import MODULES

ROOT = Path(__file__).parents[1]
COLLECTORS = ROOT / "collectors"
COMPOSE = yaml.safe_load((COLLECTORS / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
#: What the programs themselves read, not a configuration of ours.
OF_PROGRAMS = ("GF_", "GOMEMLIMIT")
MEBIBYTES = {"m": 1, "g": 1024}


def default(text):
    """What compose makes of it where nothing is set: `${NAME:-value}` → value."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def mounts(service):
    """Path in the container → path here; None for a named volume."""
    found = {}
    for mount in SERVICES[service].get("volumes", ()):
        source, target = mount.split(":")[:2]
        found[target] = COLLECTORS / source if source.startswith(".") else None
    return found


def here(service, path):
    """The file of the tree that a container sees under a path: the longest mount wins, as in the container."""
    path = posixpath.normpath(path)
    for target, source in sorted(mounts(service).items(), key=lambda item: -len(item[0])):
        if PurePosixPath(path).is_relative_to(target):
            assert source is not None, f"{path} is in a named volume"
            return (source / PurePosixPath(path).relative_to(target)).resolve()
    raise AssertionError(f"{service} has nothing mounted at {path}")


def option(service, name):
    """The value of `--name=value` or `--name value` in a command."""
    command = [default(part) for part in SERVICES[service]["command"]]
    for index, part in enumerate(command):
        if part == f"--{name}":
            return command[index + 1]
        if part.startswith(f"--{name}="):
            return part.partition("=")[2]
    raise AssertionError(f"{service} is not given --{name}")


def files(service):
    """Every file that it is given by mounts of the tree, but for what Python has compiled of its generator."""
    for source in mounts(service).values():
        if source is not None:
            found = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
            yield from (item for item in found if "__pycache__" not in item.parts)


def listens(service):
    """The ports that a service's configuration opens."""
    if service in ("collector", "jaeger"):
        text = here(service, option(service, "config")).read_text()
        return {int(port) for port in re.findall(r"\$\{env:\w+_PORT:-(\d+)\}", text)}
    if service in ("prometheus", "alertmanager"):
        return {int(option(service, "web.listen-address").rpartition(":")[2])}
    return {"alert-receiver": {9095}, "grafana": {3000}}.get(service, set())


def addresses():
    """(who, host, port) of everything that one service is told of another."""
    texts = {
        name: [str(value) for value in service.get("environment", {}).values()] for name, service in SERVICES.items()
    }
    texts["prometheus"] += [file.read_text() for file in (COLLECTORS / "prometheus" / "targets-compose").iterdir()]
    texts["alertmanager"] += [file.read_text() for file in (COLLECTORS / "alertmanager" / "compose").iterdir()]
    for who, several in texts.items():
        for text in several:
            for host, port in re.findall(r"\b([a-z][a-z-]+):(\d+)\b", default(text)):
                yield who, host, int(port)


@pytest.mark.parametrize("service", SERVICES)
def test_every_image_is_pinned_to_one_release(service):
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+(-slim)?", SERVICES[service]["image"])


def test_the_images_are_the_releases_that_the_stack_tests_run():
    builder = yaml.safe_load((MODULES / "collector" / "builder.yaml").read_text())
    assert SERVICES["collector"]["image"].endswith(f":{builder['dist']['version']}")
    # Prometheus 3.15.0 is published as the Go module v0.315.0.
    prometheus = (MODULES / "prometheus" / "go.mod").read_text()
    minor, patch = re.search(r"prometheus/prometheus v0\.3(\d\d)\.(\d+)", prometheus).groups()
    assert SERVICES["prometheus"]["image"].endswith(f":v3.{int(minor)}.{patch}")
    alertmanager = (MODULES / "alertmanager" / "go.mod").read_text()
    version = re.search(r"prometheus/alertmanager (v[\d.]+)", alertmanager)[1]
    assert SERVICES["alertmanager"]["image"].endswith(f":{version}")


@pytest.mark.parametrize("service", SERVICES)
def test_everything_that_is_mounted_exists(service):
    for target, source in mounts(service).items():
        assert source is None or source.exists(), f"{target} is mounted from {source}"
    named = {mount.split(":")[0] for mount in SERVICES[service].get("volumes", ()) if not mount.startswith(".")}
    assert named <= set(COMPOSE["volumes"])


@pytest.mark.parametrize("service", SERVICES)
def test_a_mount_over_a_read_only_mount_finds_its_place_there(service):
    for target in mounts(service):
        for outer, source in mounts(service).items():
            if target != outer and PurePosixPath(target).is_relative_to(outer):
                assert (source / PurePosixPath(target).relative_to(outer)).exists()


@pytest.mark.parametrize("service", SERVICES)
def test_every_variable_that_is_set_is_read_by_what_is_mounted(service):
    text = "\n".join(file.read_text() for file in files(service))
    for name in SERVICES[service].get("environment", {}):
        if not name.startswith(OF_PROGRAMS):
            assert re.search(rf"\$\{{(env:)?{name}\b", text), f"nobody reads {name}"


def test_grafana_is_given_every_variable_that_its_provisioning_reads():
    text = "\n".join(file.read_text() for file in (COLLECTORS / "grafana").rglob("*.yaml"))
    read = set(re.findall(r"\$\{(\w+)\}", text))
    assert read
    assert read <= set(SERVICES["grafana"]["environment"])


def test_every_address_is_a_service_that_listens_there():
    found = [(who, host, port) for who, host, port in addresses() if host != "localhost"]
    assert {"jaeger", "prometheus", "alertmanager", "alert-receiver", "collector"} <= {host for _, host, _ in found}
    for who, host, port in found:
        assert port in listens(host), f"{who} is told of {host}:{port}"


@pytest.mark.parametrize("service", [name for name, service in SERVICES.items() if "ports" in service])
def test_ports_are_published_on_loopback_and_lead_to_one_that_is_listened_on(service):
    for published in SERVICES[service]["ports"]:
        address, _, inside = default(published).split(":")
        assert address == "127.0.0.1"
        assert int(inside) in listens(service)


@pytest.mark.parametrize("service", ["collector", "jaeger"])
def test_servers_listen_beyond_their_own_loopback(service):
    assert SERVICES[service]["environment"]["LISTEN_HOST"] == "0.0.0.0"
    config = here(service, option(service, "config")).read_text()
    assert "${env:LISTEN_HOST:-127.0.0.1}" in config


def test_prometheus_runs_with_the_shipped_flags_and_finds_rules_and_targets_of_its_own():
    flags = SERVICES["prometheus"]["command"][0]
    assert here("prometheus", flags.removeprefix("@")) == COLLECTORS / "prometheus" / "prometheus.flags"
    path = option("prometheus", "config.file")
    config = yaml.safe_load(here("prometheus", path).read_text())
    (rules,) = config["rule_files"]
    folder, pattern = posixpath.split(posixpath.join(posixpath.dirname(path), rules))
    assert here("prometheus", folder) == ROOT / "dashboards" / "rules"
    assert list(here("prometheus", folder).glob(pattern))
    lists = [config["alerting"]["alertmanagers"][0], *config["scrape_configs"]]
    named = [file for entry in lists for each in entry.get("file_sd_configs", ()) for file in each["files"]]
    for file in named:
        found = here("prometheus", posixpath.join(posixpath.dirname(path), file))
        assert found.parent == COLLECTORS / "prometheus" / "targets-compose"
        assert yaml.safe_load(found.read_text())


def test_what_is_scraped_in_containers_is_what_is_scraped_without():
    def labels(folder):
        return [
            entry["labels"] for entry in yaml.safe_load((COLLECTORS / "prometheus" / folder / "stack.yaml").read_text())
        ]

    assert labels("targets-compose") == labels("targets")


def test_every_receiver_of_alerts_is_the_example_at_the_path_it_has_without_containers():
    config = yaml.safe_load(here("alertmanager", option("alertmanager", "config.file")).read_text())
    named = [hook["url_file"] for receiver in config["receivers"] for hook in receiver["webhook_configs"]]
    assert named
    for file in named:
        mounted = (
            here("alertmanager", posixpath.join(SERVICES["alertmanager"]["working_dir"], file)).read_text().strip()
        )
        without = (COLLECTORS / "alertmanager" / file).read_text().strip()
        assert mounted == without.replace("127.0.0.1", "alert-receiver")


def test_the_example_receiver_takes_the_arguments_that_it_is_given():
    program, *arguments = SERVICES["alert-receiver"]["command"][2:]
    shown = subprocess.run(
        [sys.executable, here("alert-receiver", program), *arguments, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert all(argument in shown for argument in arguments if argument.startswith("--"))
    assert int(option("alert-receiver", "port")) in listens("alert-receiver")


def test_an_exemplar_leads_to_the_datasource_of_jaeger_and_dashboards_are_read_from_where_they_are():
    folder = COLLECTORS / "grafana" / "provisioning"
    (datasources,) = (
        yaml.safe_load(file.read_text())["datasources"] for file in (folder / "datasources").glob("*.yaml")
    )
    by_uid = {datasource["uid"]: datasource for datasource in datasources}
    assert {uid: datasource["type"] for uid, datasource in by_uid.items()} == {
        "prometheus": "prometheus",
        "jaeger": "jaeger",
        "alertmanager": "alertmanager",
    }
    inside, outside = by_uid["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert inside["datasourceUid"] == "jaeger"
    # A viewer may not open what is inside. Two dollars are one to Grafana, which would else look for a variable.
    assert outside["url"] == "${JAEGER_PAGE_URL}/trace/$${__value.raw}"
    assert inside["name"] == outside["name"] == "trace_id"
    (provider,) = yaml.safe_load((folder / "dashboards" / "assembly.yaml").read_text())["providers"]
    variable = provider["options"]["path"].strip("${}")
    assert here("grafana", SERVICES["grafana"]["environment"][variable]) == ROOT / "dashboards"


def test_whoever_is_not_signed_in_at_grafana_only_looks_and_no_password_is_known_elsewhere(tmp_path):
    given = SERVICES["grafana"]["environment"]
    assert given["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert not [name for name in given if "PASSWORD" in name and not name.endswith("__FILE")]
    file = PurePosixPath(given["GF_SECURITY_ADMIN_PASSWORD__FILE"])
    maker = SERVICES["grafana-password"]
    assert mounts("grafana-password") == {str(file.parent): None}
    assert f"{maker['volumes'][0]}:ro" in SERVICES["grafana"]["volumes"]
    assert SERVICES["grafana"]["depends_on"]["grafana-password"]["condition"] == "service_completed_successfully"
    program, path = maker["command"][2:]
    assert path == str(file)
    made = []
    for name in ("one", "other", "one"):
        subprocess.run([sys.executable, "-c", program, tmp_path / name], check=True)
        made.append((tmp_path / name).read_text())
    # Of the machine's own, and the same at the next start.
    assert made[0] == made[2] != made[1]
    assert len(made[0]) >= 20


def test_the_queue_is_in_a_volume_that_the_collector_may_write():
    collector, owner = SERVICES["collector"], SERVICES["queue-owner"]
    folder = collector["environment"]["DATA_DIR"]
    assert mounts("collector")[folder] is None
    assert mounts("queue-owner") == {folder: None}
    assert [mount for mount in collector["volumes"] if mount.endswith(folder)] == owner["volumes"]
    assert owner["command"] == ["chown", collector["user"], folder]
    assert collector["depends_on"]["queue-owner"]["condition"] == "service_completed_successfully"


def test_every_server_is_bounded_and_comes_back():
    for name, service in SERVICES.items():
        assert "mem_limit" in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["cap_drop"] == ["ALL"], name
        once = name in ("queue-owner", "grafana-password")
        assert service["restart"] == ("no" if once else "unless-stopped"), name
        # The Collector's image holds nothing that could ask, and what ends at once needs no asking.
        assert ("healthcheck" in service) == (name != "collector" and not once), name


def test_the_collector_refuses_before_its_container_is_killed():
    given = SERVICES["collector"]["environment"]
    limit = SERVICES["collector"]["mem_limit"]
    soft = int(given["GOMEMLIMIT"].removesuffix("MiB"))
    assert given["MEMORY_LIMIT_MIB"] < soft < int(limit[:-1]) * MEBIBYTES[limit[-1]]


@pytest.mark.parametrize("service", [name for name, service in SERVICES.items() if "healthcheck" in service])
def test_a_health_check_asks_a_port_that_is_listened_on(service):
    (port,) = re.findall(r"127\.0\.0\.1'?[:,] ?(\d+)", " ".join(SERVICES[service]["healthcheck"]["test"]))
    assert int(port) in listens(service)


def test_who_is_waited_for_has_a_health_check():
    for service in SERVICES.values():
        for name, wanted in service.get("depends_on", {}).items():
            assert wanted["condition"] != "service_healthy" or "healthcheck" in SERVICES[name]
