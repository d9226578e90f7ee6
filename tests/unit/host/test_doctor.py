"""The doctor's diagnosis: each broken set-up gives one finding, with its values and the fix."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tarn_host import shell
from tarn_host.doctor import command, look
from tarn_host.doctor.facts import (
    MIB,
    Container,
    Facts,
    Finding,
    Ingestor,
    Inside,
    Log,
    Secrets,
    Volume,
    Wanted,
)
from tarn_host.doctor.judge import exit_code, judge
from tarn_host.doctor.log_lines import reason, seconds
from tarn_host.doctor.look import container, inside, secret_mounts, stuck_ingestors, unix, wanted_services
from tarn_host.doctor.services import services
from tarn_host.stack.engine import Engine, Machine
from tarn_host.stack.project import Project

NOW = 1_800_000_000.0
ENGINE = Engine(server="27.1.0", error="", compose="2.30.0", data_root="/data", memory_bytes=None)
MACHINE = Machine(linux=True, root=False, debian=False, has_dockerd=True, systemd=True, docker_host="")
SERVICES = (
    Wanted(name="init", image="tarn/services:t", one_shot=True),
    Wanted(name="minio", image="tarn/minio:t", after=("init",), ports={"TARN_PORT_S3": 9000}),
    Wanted(
        name="bootstrap",
        image="tarn/services:t",
        one_shot=True,
        after=("init", "minio"),
        peers=("minio:9000",),
    ),
    Wanted(name="catalog", image="tarn/catalog:t", after=("bootstrap",), peers=("minio:9000",)),
    Wanted(name="trino", image="tarn/trino:t", after=("init",), peers=("catalog:8181", "minio:9000")),
)
VOLUMES = tuple(
    Volume(name=f"tarn-1_{n}", there=True, owner="tarn-1") for n in ("minio-data", "secrets-minio")
)


def well(service: str, **changes: Any) -> Container:
    """A container of a working stack."""
    ended = service in ("init", "bootstrap")
    facts: dict[str, Any] = {
        "state": "exited" if ended else "running",
        "health": "" if ended else "healthy",
        "started_unix": NOW - 3600,
        "image_id": f"sha256:{service}",
        "memory_limit_bytes": 512 * MIB,
        "inside": None if ended else Inside(peers={"minio:9000": ""}, memory_bytes=100 * MIB),
    }
    return Container(service=service, name=f"tarn-1-{service}-1", **{**facts, **changes})


WELL = Facts(
    root="/somewhere",
    project="tarn-1",
    now_unix=NOW,
    engine=ENGINE,
    machine=MACHINE,
    disk_free_mib=50_000,
    available_mib=9_000,
    wanted=SERVICES,
    containers=tuple(well(s.name) for s in SERVICES),
    volumes=VOLUMES,
    secrets=Secrets(asked=True),
    ports={"TARN_PORT_S3": "9000"},
    own_ports=frozenset({9000}),
    taken={9000: ""},
    store_ahead_s=0.4,
    newest_unix=NOW - 3600,
    built_ids={s.name: f"sha256:{s.name}" for s in SERVICES},
    source_changed=False,
)


def but(service: str, **changes: Any) -> Facts:
    """The working stack with one container changed."""
    changed = tuple(well(c.service, **changes) if c.service == service else c for c in WELL.containers)
    return replace(WELL, containers=changed)


def only(facts: Facts) -> Finding:
    """The only finding, which must name a fix."""
    found, _ = judge(facts)
    assert len(found) == 1, [f.what for f in found]
    assert found[0].fix
    assert exit_code(found) == 1
    return found[0]


def test_a_stack_that_works_has_nothing() -> None:
    assert judge(WELL) == ([], [])
    assert exit_code([]) == 0


def test_the_variable_of_a_memory_limit_has_no_hyphen() -> None:
    front = Wanted(name="catalog-front", image="tarn/catalog-front:t")
    full = well("catalog-front", inside=Inside(memory_bytes=500 * MIB))
    found = only(replace(WELL, wanted=(*SERVICES, front), containers=(*WELL.containers, full)))
    assert (found.code, found.fix) == (
        "memory-limit",
        "raise TARN_MEM_CATALOG_FRONT in .env, then run scripts/up",
    )


def silent(error: str, **changes: Any) -> Facts:
    return Facts(
        root="/x",
        project="tarn-1",
        now_unix=NOW,
        engine=replace(ENGINE, server=None, error=error),
        machine=replace(MACHINE, **changes),
    )


BROKEN: dict[str, tuple[Facts, str, tuple[str, ...], str]] = {
    "engine not installed": (
        replace(silent("docker: not found", has_dockerd=False), has_client=False),
        "engine-missing",
        ("no program `docker`",),
        "install Docker Engine",
    ),
    "engine not running": (
        silent("Cannot connect to the Docker daemon"),
        "engine-silent",
        ("Cannot connect",),
        "start Docker",
    ),
    "no engine at DOCKER_HOST": (
        silent("no route", docker_host="tcp://x:1"),
        "engine-silent",
        ("DOCKER_HOST=tcp://x:1",),
        "unset DOCKER_HOST",
    ),
    "an engine of another machine": (
        replace(WELL, engine=replace(ENGINE, remote="ssh://me@far")),
        "engine-remote",
        ("another machine (ssh://me@far)",),
        "docker context use default",
    ),
    "no right to use the engine": (
        silent("permission denied while trying to connect"),
        "engine-rights",
        ("permission denied",),
        "group `docker`",
    ),
    "engine too old": (
        replace(WELL, engine=replace(ENGINE, server="19.03.1")),
        "engine-old",
        ("19.03.1", "20.10"),
        "upgrade",
    ),
    "no Compose": (
        replace(WELL, engine=replace(ENGINE, compose=None)),
        "compose-missing",
        ("not there",),
        "docker-compose-plugin",
    ),
    "Compose too old": (
        replace(WELL, engine=replace(ENGINE, compose="2.5.0")),
        "compose-old",
        ("2.5.0", "2.20"),
        "docker-compose-plugin",
    ),
    "Compose refuses .env": (
        replace(WELL, config_error='invalid hostPort: "x"'),
        "compose-config",
        ("invalid hostPort",),
        ".env",
    ),
    "little disk": (replace(WELL, disk_free_mib=100), "disk", ("100 MiB", "/data"), "docker builder prune"),
    "little memory": (
        replace(WELL, available_mib=700, containers=()),
        "memory",
        ("700 MiB",),
        "scripts/up --small",
    ),
    "a taken port": (
        replace(
            WELL,
            containers=(),
            own_ports=frozenset(),
            taken={9000: ""},
            holders={9000: "container b-minio-1 of the copy of Tarn in /b/tarn"},
        ),
        "port",
        ("9000", "/b/tarn"),
        "TARN_PORT_S3=19000",
    ),
    "a CA that containers do not know": (
        replace(
            WELL,
            failed_logs=(
                Log(".tarn/logs/build.log", ("spark | x", "uv: invalid peer certificate: UnknownIssuer")),
            ),
            ca_variables={"SSL_CERT_FILE": "/etc/corp.pem"},
        ),
        "build-ca",
        ("UnknownIssuer", ".tarn/logs/build.log"),
        "SSL_CERT_FILE=/etc/corp.pem names the CA",
    ),
    "no DNS while building": (
        replace(WELL, failed_logs=(Log("l", ("Temporary failure resolving 'deb.example.org'",)),)),
        "build-dns",
        ("deb.example.org",),
        "DNS",
    ),
    "a build that failed by itself": (
        replace(WELL, failed_logs=(Log("l", ("step 3", "ERROR: javac found a mistake", "")),)),
        "build",
        ("javac found a mistake",),
        "read l",
    ),
    "the host's clock is wrong": (
        replace(WELL, store_ahead_s=-7300.0),
        "clock",
        ("2.0 h ahead of", "the store's answers"),
        "timedatectl",
    ),
    "a container's clock is wrong": (
        but("catalog", inside=Inside(clock_ahead_s=95.0)),
        "clock",
        ("95 s behind", "catalog"),
        "timedatectl",
    ),
    "the clock was set back": (
        replace(WELL, newest_unix=NOW + 9 * 86_400),
        "clock",
        ("9 days", "set back"),
        "timedatectl",
    ),
    "DNS inside a container": (
        but("trino", inside=Inside(peers={"catalog:8181": "dns: Name or service not known"})),
        "dns",
        ("trino", "catalog", "Name or service not known"),
        "scripts/down and scripts/up",
    ),
    "a closed way between containers": (
        but("trino", inside=Inside(peers={"minio:9000": "tcp: timed out"})),
        "network",
        ("minio:9000",),
        "firewall",
    ),
    "a published port that does not answer": (
        replace(WELL, closed=("minio 127.0.0.1:9000",)),
        "published",
        ("127.0.0.1:9000",),
        "filters 127.0.0.1",
    ),
    "a service that was stopped": (
        but("trino", state="exited", health="", inside=None),
        "service-stopped",
        ("trino",),
        "scripts/up",
    ),
    "a service that was stopped and ended by the signal": (
        but("trino", state="exited", health="", exit_code=143, inside=None),
        "service-stopped",
        ("exit code 143",),
        "scripts/up",
    ),
    "a paused service": (
        but("trino", state="paused", inside=None),
        "service-paused",
        ("paused",),
        "unpause trino",
    ),
    "out of memory": (
        but("trino", state="restarting", oom_killed=True, exit_code=137, restarts=4, inside=None),
        "oom",
        ("512 MiB", "4 restarts"),
        "TARN_MEM_TRINO",
    ),
    "out of memory inside, still alive": (
        but("trino", health="unhealthy", inside=Inside(oom_kills=2)),
        "oom",
        ("trino",),
        "TARN_MEM_TRINO",
    ),
    "near its memory limit": (
        but("trino", inside=Inside(memory_bytes=500 * MIB)),
        "memory-limit",
        ("500 of its 512 MiB",),
        "TARN_MEM_TRINO",
    ),
    "at its limit of processes": (
        but("trino", inside=Inside(pids_refused=3)),
        "pids-limit",
        ("3 times",),
        "pids_limit",
    ),
    "ended with a reason of its own": (
        but(
            "trino",
            state="exited",
            exit_code=78,
            health="",
            inside=None,
            log=("ok", "trino cannot start: heap is x", ""),
        ),
        "service-ended",
        ("exit code 78", "trino cannot start: heap is x"),
        "docker compose logs trino",
    ),
    "unhealthy": (
        but("trino", health="unhealthy", health_output="shallow: status 503"),
        "service-unhealthy",
        ("status 503",),
        "logs",
    ),
    "never started": (
        but("trino", state="created", error="port is already allocated", inside=None),
        "service-created",
        ("port is already allocated",),
        "scripts/up",
    ),
    "half up": (
        replace(WELL, containers=tuple(c for c in WELL.containers if c.service != "trino")),
        "half-up",
        ("trino not there", "catalog, minio running"),
        "scripts/up",
    ),
    "a volume of another copy": (
        replace(WELL, volumes=(replace(VOLUMES[0], owner="tarn-2"), VOLUMES[1])),
        "volume-foreign",
        ("tarn-1_minio-data", "tarn-2"),
        "nothing was changed",
    ),
    "the lake's volume is gone": (
        replace(WELL, volumes=(replace(VOLUMES[0], there=False), VOLUMES[1]), containers=()),
        "volume-gone",
        ("tarn-1_minio-data",),
        "backup",
    ),
    "the log's volume is not there yet, as after a restore": (
        replace(WELL, volumes=(*VOLUMES, replace(VOLUMES[0], name="tarn-1_kafka-data", there=False))),
        "volume-gone",
        ("tarn-1_kafka-data",),
        "scripts/tarn restore",
    ),
    "secrets of another copy": (
        replace(WELL, secrets=Secrets(asked=True, fault="the secret volumes contradict each other: x")),
        "secrets-contradict",
        ("contradict",),
        "nothing is changed",
    ),
    "a deleted secret": (
        replace(WELL, secrets=Secrets(asked=True, missing=("trino/catalog_credential",))),
        "secret-missing",
        ("trino/catalog_credential",),
        "started again (trino)",
    ),
    "a full disk under the store": (
        but("minio", inside=Inside(data_free_bytes=9 * MIB, data_bytes=9000 * MIB)),
        "disk-full",
        ("9 of 9000 MiB",),
        "free some space",
    ),
    "a store that says it is full": (
        but(
            "minio",
            health="unhealthy",
            log=("x", "Storage backend has reached its minimum free drive threshold"),
        ),
        "disk-full",
        ("minimum free drive",),
        "free some space",
    ),
    "an old image": (
        replace(WELL, built_ids={**WELL.built_ids, "catalog": "sha256:new"}),
        "image-old",
        ("catalog runs",),
        "scripts/up",
    ),
    "newer sources": (replace(WELL, source_changed=True), "source-newer", ("changed since",), "scripts/up"),
    "the log of another copy": (
        replace(WELL, ingestors=(Ingestor("canary", "Stopped", "SourceChanged", "cluster x is not y"),)),
        "ingestor",
        ("cluster x is not y",),
        "another copy",
    ),
    "a proxy that takes 127.0.0.1": (
        replace(WELL, proxy={"HTTP_PROXY": "http://p"}),
        "proxy",
        ("HTTP_PROXY",),
        "NO_PROXY=127",
    ),
}


HERE = "127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("environ", "fix"),
    [
        ({"no_proxy": HERE}, ""),
        ({"NO_PROXY": f".corp, {HERE}"}, ""),
        ({"no_proxy": "*", "NO_PROXY": HERE}, ""),
        ({}, "export NO_PROXY=127.0.0.1,localhost"),
        ({"no_proxy": "", "NO_PROXY": ""}, "export NO_PROXY=127.0.0.1,localhost"),
        ({"no_proxy": ".corp", "NO_PROXY": HERE}, f'export no_proxy="$no_proxy,{HERE}"'),
        ({"no_proxy": HERE, "NO_PROXY": ".corp"}, f'export NO_PROXY="$NO_PROXY,{HERE}"'),
        (
            {"no_proxy": ".corp", "NO_PROXY": ".corp"},
            f'export no_proxy="$no_proxy,{HERE}" NO_PROXY="$NO_PROXY,{HERE}"',
        ),
    ],
)
def test_what_a_proxy_is_not_asked_for_is_judged_in_both_spellings_and_kept(
    environ: dict[str, str], fix: str
) -> None:
    """curl and Python's clients read no_proxy first, Go's NO_PROXY."""
    facts = replace(WELL, **look._proxy({"http_proxy": "http://p", **environ}))
    found, _ = judge(facts)
    assert [(one.code, one.fix) for one in found] == ([("proxy", fix)] if fix else [])
    assert judge(replace(WELL, **look._proxy(environ)))[0] == []


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_set_up_has_one_finding_with_values_and_fix(name: str) -> None:
    facts, code, values, fix = BROKEN[name]
    found = only(facts)
    assert found.code == code
    for value in values:
        assert value in found.what
    assert fix in found.fix


def test_findings_of_different_set_ups_read_differently() -> None:
    texts = [only(facts).what for facts, *_ in BROKEN.values()]
    assert len(set(texts)) == len(texts)


def test_what_follows_from_a_cause_stands_with_it() -> None:
    stopped = but("minio", state="exited", health="", inside=None)
    both = tuple(
        replace(c, health="unhealthy", health_output="no store") if c.service in ("catalog", "trino") else c
        for c in stopped.containers
    )
    found = only(replace(stopped, containers=both))
    assert (found.code, found.service) == ("service-stopped", "minio")
    assert found.follows == ("catalog (unhealthy)", "trino (unhealthy)")


def test_init_that_refuses_is_the_cause_of_all_that_was_not_started() -> None:
    log = json.dumps({"level": "error", "event": "credentials not made", "reason": "secrets-spark disagrees"})
    rest = tuple(
        replace(c, state="created", health="", inside=None) for c in WELL.containers if c.service != "init"
    )
    init = well("init", exit_code=5, log=(log,))
    found = only(replace(WELL, containers=(init, *rest), own_ports=frozenset(), taken={}))
    assert "credentials not made: secrets-spark disagrees" in found.what
    assert len(found.follows) == 4


def test_a_port_that_hinders_a_service_is_named_while_the_others_run() -> None:
    facts = replace(
        but("minio", state="created", health="", inside=None),
        own_ports=frozenset(),
        taken={9000: "nginx (pid 7)"},
    )
    codes = {f.code: f for f in judge(facts)[0]}
    assert "nginx (pid 7)" in codes["port"].what


def test_starting_is_a_note_at_first_and_a_finding_later() -> None:
    found, notes = judge(but("trino", health="starting", started_unix=NOW - 20))
    assert found == []
    assert notes == ["still starting: trino"]
    late = only(but("trino", health="starting", started_unix=NOW - 999, health_output="no catalog"))
    assert (late.code, "no catalog" in late.what) == ("service-starting", True)


def test_a_stack_that_is_not_started_is_no_fault() -> None:
    found, notes = judge(replace(WELL, containers=(), own_ports=frozenset(), taken={}))
    assert found == []
    assert "not started" in notes[0]


def test_a_copy_that_is_not_up_is_not_at_fault_for_the_ports_of_another_one() -> None:
    """scripts/up changes ports not set by the user; those that the user set are a conflict."""
    facts = replace(
        WELL,
        containers=(),
        own_ports=frozenset(),
        taken={9000: ""},
        holders={9000: "container b-minio-1 of the copy of Tarn in /b/tarn"},
        tarns={9000: "/b/tarn"},
    )
    found, notes = judge(facts)
    assert found == []
    assert any("/b/tarn has the ports 9000: scripts/up takes others" in note for note in notes)
    assert only(replace(facts, fixed=frozenset({"TARN_PORT_S3"}))).code == "port"


def test_nothing_was_found_is_not_said_beside_findings() -> None:
    found, notes = judge(replace(WELL, containers=(), own_ports=frozenset(), taken={9000: "nginx (pid 7)"}))
    assert [one.code for one in found] == ["port"]
    assert notes == ["the stack is not started (scripts/up starts it)"]


def test_a_service_that_was_short_of_memory_is_heard_about_what_it_says_now() -> None:
    facts = but(
        "trino",
        health="unhealthy",
        health_output="deep: schema a-team is not found",
        inside=Inside(oom_kills=1),
    )
    found, _ = judge(facts)
    assert [one.code for one in found] == ["service-unhealthy", "oom"]
    assert "schema a-team is not found" in found[0].what
    blamed = replace(
        facts,
        containers=tuple(
            replace(c, state="exited", exit_code=1, health="", inside=None, log=("no room",))
            if c.service == "minio"
            else c
            for c in facts.containers
        ),
    )
    codes = {one.code: one for one in judge(blamed)[0]}
    assert "trino (unhealthy)" in codes["service-ended"].follows, "the store is the cause"
    assert "TARN_MEM_TRINO" in codes["oom"].fix


def test_a_busy_copy_is_told_and_not_called_stale() -> None:
    found, notes = judge(replace(WELL, busy=True, source_changed=True))
    assert found == []
    assert "is running" in notes[0]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (
            ['{"level": "info", "event": "up"}', '{"level": "error", "event": "no", "reason": "why"}', "x"],
            "no: why",
        ),
        (["[2026] ERROR broken pipe", "    at java.lang", "later words"], "[2026] ERROR broken pipe"),
        (["spark cannot start: secret x is empty", "bye"], "spark cannot start: secret x is empty"),
        (["Traceback (most recent call last):", '  File "x"', "ValueError: seven"], "ValueError: seven"),
        (["one", "two", "  "], "two"),
        ([], ""),
    ],
)
def test_the_reason_is_the_line_that_says_why(lines: list[str], wanted: str) -> None:
    assert reason(lines) == wanted


def test_seconds_in_words() -> None:
    assert [seconds(v) for v in (4, -95, 600, 7300, 9 * 86_400)] == [
        "4 s",
        "95 s",
        "10 min",
        "2.0 h",
        "9 days",
    ]


def test_a_container_as_the_engine_describes_it() -> None:
    row = {
        "Name": "/tarn-1-trino-1",
        "Image": "sha256:1",
        "RestartCount": 2,
        "Config": {"Labels": {"com.docker.compose.service": "trino"}},
        "HostConfig": {"Memory": 1024},
        "State": {
            "Status": "running",
            "ExitCode": 0,
            "OOMKilled": True,
            "Error": "",
            "StartedAt": "2026-11-21T10:00:00.123456789Z",
            "Health": {"Status": "unhealthy", "Log": [{"Output": "old"}, {"Output": "no\n answer"}]},
        },
    }
    found = container(row, ("x",))
    assert (found.service, found.name, found.health, found.restarts) == (
        "trino",
        "tarn-1-trino-1",
        "unhealthy",
        2,
    )
    assert (found.oom_killed, found.health_output, found.memory_limit_bytes) == (True, "no answer", 1024)
    assert found.started_unix == 1795255200.0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:01:00.5+01:00", 60.0),
    ],
)
def test_time_stamps_of_the_engine(text: str, wanted: float | None) -> None:
    assert unix(text) == wanted


def test_the_clock_inside_is_compared_with_the_middle_of_the_call() -> None:
    seen = inside({"time": 107.0, "peers": {}, "data": [1, 2], "tmp": None}, 100.0, 104.0)
    assert (seen.clock_ahead_s, seen.clock_unsure_s, seen.data_free_bytes, seen.tmp_bytes) == (
        5.0,
        2.0,
        1,
        None,
    )


def test_wanted_services_come_from_the_configuration() -> None:
    ends = {"condition": "service_completed_successfully"}
    config = {
        "services": {
            "init": {"image": "i"},
            "cli": {"image": "i", "profiles": ["tools"]},
            "kafka": {
                "image": "k",
                "depends_on": {"init": ends},
                "environment": {"A": "kafka:9092", "B": "127.0.0.1:9092"},
                "ports": [{"published": "9092", "target": 9094}],
            },
            "ingest": {
                "image": "i",
                "environment": {"K": "kafka:9092", "U": "http://other:1", "L": "SASL://kafka:9095"},
            },
        }
    }
    found = {s.name: s for s in wanted_services(config, {"TARN_PORT_KAFKA": "9092"})}
    assert set(found) == {"init", "kafka", "ingest"}
    assert (found["init"].one_shot, found["kafka"].one_shot) == (True, False)
    assert found["kafka"].ports == {"TARN_PORT_KAFKA": 9092}
    assert found["kafka"].peers == ()
    assert found["ingest"].peers == ("kafka:9092", "kafka:9095")
    assert found["ingest"].needs == {"kafka"}


def test_stuck_ingestors_are_those_that_do_not_go_on_by_themselves() -> None:
    said = {
        "a": {"state": "Running"},
        "b": {"state": "Waiting", "conditions": [{"message": "no broker"}]},
        "c": {"state": "Stopped", "conditions": [{"reason": "OffsetGap", "message": "offset 7 is gone"}]},
    }
    assert list(stuck_ingestors(said)) == [Ingestor("c", "Stopped", "OffsetGap", "offset 7 is gone")]


def test_secret_volumes_are_mounted_read_only_and_one_that_is_gone_is_not_made() -> None:
    here = Project(name="tarn-1", base="b", own_base=True, settings={})
    volumes = (*VOLUMES, Volume(name="tarn-1_secrets-spark", there=False))
    assert secret_mounts(here, volumes) == [
        *("--volume", "tarn-1_secrets-minio:/secrets/minio:ro"),
        *("--tmpfs", "/secrets/spark"),
    ]
    assert secret_mounts(here, volumes[2:]) == []


def test_both_forms_of_the_result_say_the_same() -> None:
    facts = BROKEN["a deleted secret"][0]
    found, notes = judge(facts)
    said = json.loads(command.as_json(facts, found, notes, 1.23))
    text = "\n".join(command.as_text(facts, found, notes))
    assert said["ok"] is False
    assert said["findings"][0]["code"] == "secret-missing"
    assert said["findings"][0]["what"] in text
    assert said["findings"][0]["fix"] in text
    assert "one thing is wrong" in text
    assert json.loads(command.as_json(WELL, [], [], 0.0))["ok"] is True


def test_of_several_replicas_the_one_that_is_not_well_is_looked_at() -> None:
    ended = replace(well("catalog"), name="tarn-1-catalog-2", state="exited", health="", exit_code=137)
    facts = replace(WELL, containers=(*WELL.containers, ended))
    (found,) = services(facts)
    assert (found.code, found.service) == ("service-ended", "catalog")
    assert facts.container("minio") == well("minio")
    assert facts.container("absent") is None


def test_a_container_of_doctors_own_is_none_of_the_copys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image has Compose's labels of project and service, and so have its containers."""
    here = Project(name="tarn-1", base="x", own_base=True, settings={})
    image = {"com.docker.compose.project": "tarn-1", "com.docker.compose.service": "bootstrap"}
    state = {"Status": "running", "StartedAt": "2026-11-29T14:00:00Z", "Health": {"Status": "starting"}}
    rows = [
        {"Id": name, "Name": f"/{name}", "State": state, "Config": {"Labels": {**image, **labels}}}
        for name, labels in (
            ("doctors", {}),
            ("made", {"com.docker.compose.container-number": "1"}),
            ("run", {"com.docker.compose.container-number": "1", "com.docker.compose.oneoff": "True"}),
        )
    ]
    asked: list[list[str]] = []

    def capture(words: list[str], **_: object) -> shell.Result:
        asked.append(words)
        out = {"ps": "doctors made run", "inspect": json.dumps(rows)}.get(words[1], "")
        return shell.Result(0, out, "")

    monkeypatch.setattr(shell, "capture", capture)
    monkeypatch.setattr(look, "container", lambda row, log: SimpleNamespace(service="x", name=row["Name"]))
    assert [one.name for one in look._containers(here)] == ["/made"]
    assert "com.docker.compose.project=" in look.as_root(here, []), "and no filter finds it"
