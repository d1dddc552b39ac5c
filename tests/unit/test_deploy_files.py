"""What `deploy/` has for containers: as far as that can be seen without running any."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from shared.settings import variables

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(DEPLOY.rglob("*.yaml"))
RULES = YamlLintConfig(
    "{extends: default, rules: {line-length: {max: 120}, document-start: disable, braces: {max-spaces-inside: 1}, "
    "comments: {min-spaces-from-content: 1}, truthy: {check-keys: false}, indentation: {indent-sequences: whatever}}}"
)
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(DEPLOY).as_posix())
def test_yaml_is_well_formed(path: Path) -> None:
    assert [str(problem) for problem in linter.run(path.read_text(), RULES)] == []


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", DEPLOY / "Containerfile"],
        ["check-jsonschema", "--quiet", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
    ],
    ids=lambda command: command[0],
)
def test_a_linter_has_nothing_to_say(command: list[str | Path]) -> None:
    programs = Path(sys.executable).parent
    linted = subprocess.run([programs / command[0], *command[1:]], capture_output=True, text=True, timeout=60)
    assert (linted.returncode, linted.stdout) == (0, ""), linted.stderr


def test_the_manifests_are_what_kubernetes_takes() -> None:
    for own in documents("kubernetes/triptych.yaml"):
        kubernetes_validate.validate(own, kubernetes_validate.latest_version(), strict=True)
    (wrong,) = [own for own in documents("kubernetes/triptych.yaml") if own["kind"] == "Service"]
    wrong["spec"]["portz"] = wrong["spec"].pop("ports")
    with pytest.raises(kubernetes_validate.ValidationError, match="portz"):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_image_is_checked_and_its_volumes_are_mounted_everywhere() -> None:
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    compile(json.loads(check)[2], "check", "exec")
    (volumes,) = re.findall(r"^VOLUME (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    compose = documents("compose.yaml")[0]["services"]["triptych"]
    assert [text.partition(":")[2] for text in compose["volumes"]] == json.loads(volumes)
    mounts = _container()["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts] == [*json.loads(volumes), "/tmp"]


def test_the_services_of_the_compose_file_can_do_little_and_are_reached_from_this_host_only() -> None:
    (compose,) = documents("compose.yaml")
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"], volume
    build = compose["services"]["triptych"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Containerfile"


def test_grafana_finds_the_data_source_and_the_dashboard() -> None:
    (compose,) = documents("compose.yaml")
    (source,) = documents("grafana/provisioning/datasources/triptych.yaml")[0]["datasources"]
    assert source["url"] == f"http://{compose['services']['triptych']['hostname']}:9090"
    assert source["type"] == "prometheus"
    (provider,) = documents("grafana/provisioning/dashboards/triptych.yaml")[0]["providers"]
    mounted = [volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/triptych.json" in mounted
    dashboard = json.loads((DEPLOY / "grafana" / "triptych.json").read_text())
    (variable,) = [own for own in dashboard["templating"]["list"] if own["type"] == "datasource"]
    assert variable["query"] == source["type"], "the variable takes the default data source"


def _stateful_set() -> dict[str, Any]:
    (found,) = [own for own in documents("kubernetes/triptych.yaml") if own["kind"] == "StatefulSet"]
    return found


def _container() -> dict[str, Any]:
    (container,) = _stateful_set()["spec"]["template"]["spec"]["containers"]
    return container


def test_the_pod_is_confined_and_probed() -> None:
    pod, container = _stateful_set()["spec"]["template"]["spec"], _container()
    user = re.findall(r"^USER (\d+):(\d+)$", CONTAINERFILE, re.MULTILINE)
    assert [(str(pod["securityContext"][k])) for k in ("runAsUser", "runAsGroup")] == list(user[0])
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/-/ready", "readiness": "/-/ready", "liveness": "/-/healthy"}
    assert {probe["httpGet"]["port"] for name, probe in container.items() if name.endswith("Probe")} == {"http"}


def test_the_manifests_belong_together() -> None:
    by_kind = {own["kind"]: own for own in documents("kubernetes/triptych.yaml")}
    labels = {"app.kubernetes.io/name": "triptych"}
    spec = by_kind["StatefulSet"]["spec"]
    assert spec["template"]["metadata"]["labels"] == spec["selector"]["matchLabels"] == labels
    assert (
        by_kind["Service"]["spec"]["selector"]
        == by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        == labels
    )
    assert spec["serviceName"] == by_kind["Service"]["metadata"]["name"]
    assert spec["replicas"] == 1, "a data directory has one cluster"
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in _container()["volumeMounts"]} == claims | volumes
    assert by_kind["ConfigMap"]["data"].keys() <= set(variables())
    assert _container()["ports"][0]["containerPort"] == by_kind["Service"]["spec"]["ports"][0]["port"]


def test_the_compose_file_sets_what_is_a_setting() -> None:
    (compose,) = documents("compose.yaml")
    assert compose["services"]["triptych"]["environment"].keys() <= set(variables())
