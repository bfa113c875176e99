"""The files in scripts/container, as far as they can be looked at without a builder; and how a container's role ends, for real."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from swarm import devnet

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts/container"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
IMAGE = (FOLDER / "Containerfile").read_text()
PLAIN_EXITS = {0, 2, 3, 5, 6, 7, 8, 9, 10}


def unit(role: str) -> dict[str, str]:
    lines = (ROOT / f"scripts/systemd/murmur-{role}.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def test_there_is_a_service_for_each_role_that_systemd_has_one_for() -> None:
    assert {f"murmur-{name}.service" for name in SERVICES} == {
        file.name for file in (ROOT / "scripts/systemd").iterdir()
    }


@pytest.mark.parametrize("role", SERVICES)
def test_a_service_runs_as_that_of_systemd(role: str) -> None:
    given, known = SERVICES[role], unit(role)
    password = f"{'trainer' if role == 'hub' else role}-password"
    line = known["ExecStart"].replace("%d/password", f"/run/secrets/{password}")
    assert ["/usr/local/bin/murmur", *given["command"]] == line.split()
    assert given["secrets"] == [password] and given["profiles"] == [role]
    assert seconds(given["stop_grace_period"]) == int(known["TimeoutStopSec"])
    assert (given["restart"], given["entrypoint"]) == ("on-failure", ["murmur-service"])
    assert given["cap_drop"] == ["ALL"] and given["read_only"] and "no-new-privileges:true" in given["security_opt"]


@pytest.mark.parametrize("role", SERVICES)
def test_its_health_is_asked_where_it_and_prometheus_look(role: str) -> None:
    given = SERVICES[role]
    (port,) = given["environment"].values()
    assert f":{port}/healthz" in given["healthcheck"]["test"][-1]
    scraped = (ROOT / "scripts/grafana/prometheus.yml").read_text()
    assert f"127.0.0.1:{port}" in scraped or f"localhost:{port}" in scraped
    assert given["network_mode"] == "host" and "ports" not in given, "as docs/running.md says, and no port is mapped"


def test_all_that_is_kept_lies_in_volumes_that_are_declared() -> None:
    for role, given in SERVICES.items():
        mounted = dict(one.split(":") for one in given["volumes"])
        assert mounted.keys() <= COMPOSE["volumes"].keys()
        assert set(mounted.values()) <= {"/var/lib/murmur", f"/var/lib/murmur/{role}/keys"}
    assert {name for given in SERVICES.values() for name in given["secrets"]} == COMPOSE["secrets"].keys()
    assert re.search(r"for role in (.*?);", IMAGE)[1].split() == ["node", "validator", "relay", "bootnode", "run"]  # type: ignore[index]


def test_the_image_runs_as_nobody_special_and_takes_files_that_a_release_has() -> None:
    assert "USER 10001:10001" in IMAGE and "useradd --uid 10001" in IMAGE
    named = set(re.findall(r"/release/([\w/]+)", IMAGE))
    assert named == {"install", "container/service"}
    copied = re.search(r"^cp -r (.*) \"\$output\"$", (ROOT / "scripts/release").read_text(), re.MULTILINE)
    assert copied and {"scripts/install", "scripts/container"} <= set(copied[1].split())
    assert "COPY" not in IMAGE and "ADD" not in IMAGE, "nothing that lies beside the release gets into a layer"


def test_a_devnet_gets_from_the_clone_what_is_committed_and_listens_on_the_loopback_alone() -> None:
    image = (FOLDER / "devnet/Containerfile").read_text()
    (service,) = (compose := yaml.safe_load((FOLDER / "devnet/compose.yml").read_text()))["services"].values()
    assert "COPY" not in image and "ADD" not in image and "git --git-dir=/clone archive HEAD" in image
    assert (FOLDER / "devnet" / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).samefile(FOLDER / "devnet/Containerfile")
    assert service["network_mode"] == "host" and "ports" not in service, "what a swarm listens on is 127.0.0.1"
    assert service["cap_drop"] == ["ALL"] and service["read_only"] and "USER 10001:10001" in image
    assert service["volumes"] == [f"{name}:/murmuration/.swarm" for name in compose["volumes"]]
    entry, command = (
        json.loads(line.split(" ", 1)[1]) for line in image.splitlines() if line.startswith(("ENTRYPOINT", "CMD"))
    )
    for words in (entry + command, service["healthcheck"]["test"][1:]):
        assert words[0] == "scripts/devnet"
        devnet.parser().parse_args(words[1:])
    assert "/container/devnet" in (ROOT / "scripts/release").read_text(), "a release has none"


@pytest.fixture
def role(tmp_path: Path) -> dict[str, str]:
    """An environment in which `murmur` is a role that ends with the code it is given, or works until it is told to stop."""
    murmur = tmp_path / "murmur"
    murmur.write_text(
        "#!/bin/sh\n[ $1 = work ] || exit $1\ntrap 'exit 130' TERM\necho up\nwhile :; do sleep 0.05; done\n"
    )
    murmur.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "MURMUR_RESTART_SECONDS": "0"}


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 137, 139])
def test_only_what_starting_again_may_mend_is_an_error_to_the_restart_policy(role: dict[str, str], code: int) -> None:
    command = [FOLDER / "service", str(code)]
    done = subprocess.run(command, env=role, capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == (0 if code in PLAIN_EXITS else code)
    assert code == 0 or f"exit code {code}" in done.stderr
    kept_down = set(map(int, unit("node")["RestartPreventExitStatus"].split()))
    assert PLAIN_EXITS - {0} == kept_down


def test_a_container_that_is_stopped_has_its_role_come_to_its_end(role: dict[str, str]) -> None:
    with subprocess.Popen([FOLDER / "service", "work"], env=role, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout and running.stdout.readline() == "up\n"
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(10) == 130
