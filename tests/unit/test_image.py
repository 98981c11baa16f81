"""The image without building it: what its Containerfile is made from is there, and says the same as the chart."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from iscp.model.settings.config import ADMIN_PORT
from tests.chart.values_file import CHART

ROOT = CHART.parents[2]
IMAGE = ROOT / "deploy/image"
BASE = f"images.example/debian@sha256:{'a' * 64}"
CONTAINERFILE = re.sub(r"\\\n", " ", (IMAGE / "Containerfile").read_text())


def lines(instruction: str) -> list[str]:
    return re.findall(rf"^{instruction} +(.*)$", CONTAINERFILE, re.MULTILINE)


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", IMAGE / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nodes_run_as_the_user_that_the_chart_names() -> None:
    """By its number: of a name Kubernetes cannot know that it is not root."""
    user = yaml.safe_load((CHART / "values.yaml").read_text())["runAsUser"]
    assert lines("USER") == [f"{user}:{user}"]
    assert f"--uid {user} " in CONTAINERFILE
    assert lines("EXPOSE") == [str(ADMIN_PORT)]


def test_the_environment_is_that_of_the_lock_by_the_uv_of_the_checkout() -> None:
    assert "scripts/uv.txt /tmp/uv.txt" in lines("COPY")
    assert "--require-hashes -r /tmp/uv.txt" in CONTAINERFILE
    syncs = [each for each in lines("RUN") if "uv sync" in each]
    assert len(syncs) == 2
    for each in syncs:
        assert {"--frozen", "--no-default-groups", "--extra"} <= set(each.split())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"--extra (\S+)", CONTAINERFILE)) == {"node"} <= set(extras)


def test_what_is_copied_is_there_and_not_kept_out() -> None:
    let_in = [each[1:] for each in (IMAGE / "Containerfile.dockerignore").read_text().splitlines() if each[:1] == "!"]
    copied = [name for each in lines("COPY") if "--from" not in each for name in each.split()[:-1]]
    assert sorted(copied) == sorted(let_in)
    assert all((ROOT / each).exists() for each in copied)


def test_nothing_comes_from_elsewhere_than_the_registries() -> None:
    assert lines("ADD") == []
    assert not re.search(r"\b(curl|wget)\b|https?://", CONTAINERFILE)


def test_the_bill_of_materials_names_packages_jars_and_sums(sbom: ModuleType, tmp_path: Path) -> None:
    jar = tmp_path / "delta-spark_4.1_2.13-4.3.1.jar"
    jar.write_bytes(b"")
    listing = "libc6\t2.36-9+deb12u14\tamd64\nlibc6\t2.36-9+deb12u14\tamd64\n"
    parts = [*sbom.python_packages(), *sbom.jars([jar]), *sbom.debian_packages(listing)]
    document = json.loads(sbom.document(parts))
    assert document["bomFormat"] == "CycloneDX"
    found = {each["name"]: each for each in document["components"]}
    assert len(found) == len(document["components"])
    locked = {each["name"]: each["version"] for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert found["pyspark"]["version"] == locked["pyspark"]
    assert found["grpcio"]["purl"] == f"pkg:pypi/grpcio@{locked['grpcio']}"
    assert found["delta-spark_4.1_2.13"]["version"] == "4.3.1"
    assert found["delta-spark_4.1_2.13"]["hashes"][0]["content"].startswith("e3b0c44298fc1c14")
    assert found["libc6"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64"


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs scripts/image with a buildah that writes down its arguments, in `calls`."""
    program = tmp_path / "bin/buildah"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    program.chmod(0o755)

    def run(**settings: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": f"{program.parent}:/usr/bin:/bin", **settings}
        return subprocess.run(
            [str(ROOT / "scripts/image"), "t:1"], env=environ, capture_output=True, text=True, check=False
        )

    return run


def test_the_platform_is_the_builder_and_the_base_own(
    build: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    own = "linux/arm64" if platform.machine() in ("aarch64", "arm64") else "linux/amd64"
    assert build(IMAGE_PLATFORMS=own, IMAGE_BASE=BASE).returncode == 0
    words = (tmp_path / "calls").read_text().split()
    assert words[words.index("--platform") + 1] == own
    assert words[words.index("--tag") + 1] == "t:1"
    assert f"BASE={BASE}" in words


@pytest.mark.parametrize("base", ["", "docker.io/library/debian:bookworm-slim", "base@sha256:abc"])
def test_a_base_that_is_not_named_by_its_digest_is_refused(
    build: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, base: str
) -> None:
    done = build(**({"IMAGE_BASE": base} if base else {}))
    assert done.returncode == 2
    assert "by its digest" in done.stderr
    assert not (tmp_path / "calls").exists()
    assert lines("ARG") == ["BASE"], "there is none by default"


def test_a_platform_that_there_is_no_image_for_is_refused(
    build: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = build(IMAGE_PLATFORMS="linux/s390x", IMAGE_BASE=BASE)
    assert done.returncode == 75
    assert "linux/amd64 and linux/arm64, not linux/s390x" in done.stderr
