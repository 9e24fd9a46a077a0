"""The packages as a user gets them: each wheel is what its tag says, installs into an empty environment and profiles a span.

    PACKAGES=dist TARGET=target python -m pytest tests/packages        after `ci/package python`; ci/test does it

The wheel for 64-bit ARM is run by qemu-user. That says nothing of real timers and signals, so what is asserted there is what does
not depend on them: loading, the self-test, the walk of a stack and the span that the sampler's code reads, errors, the
profile's file. What sampling did is printed.
"""

import json
import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support" / "python"))

import arm64  # noqa: E402
import pprof  # noqa: E402
import wheel  # noqa: E402

PACKAGES = Path(os.environ["PACKAGES"])
TARGET = Path(os.environ["TARGET"])
PROGRAM = HERE / "program.py"


def the_package(pattern: str) -> Path:
    found = sorted(PACKAGES.rglob(pattern))
    if not found:
        reason = PACKAGES / "aarch64" / "not-built.txt"
        pytest.skip(reason.read_text().strip() if reason.is_file() else f"there is no {pattern} in {PACKAGES}")
    assert len(found) == 1, found
    return found[0]


def test_no_folder_is_left_for_what_was_not_asked_for() -> None:
    reason = PACKAGES / "aarch64" / "not-built.txt"
    assert not reason.is_file() or "--native" not in reason.read_text()


def run(*arguments: str | Path, **environment: str) -> str:
    """Runs a command with none of our settings; its output, once it is known to have ended well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYROSCOPE_", "OTEL_", "PYTHON"))}
    done = subprocess.run(
        list(map(str, arguments)), env={**kept, **environment}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


def empty_environment(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_wheel_is_what_its_tag_says(machine: str) -> None:
    found = wheel.facts(the_package(f"*_{machine}.whl"))
    assert found.wrong == []
    assert found.allowed_on == f"manylinux_2_17_{machine}"


def test_the_wheel_profiles_a_span_in_an_empty_environment(tmp_path: Path) -> None:
    python = empty_environment(tmp_path / "venv")
    run(python, "-m", "pip", "install", "-q", the_package(f"*_{platform.machine()}.whl"))
    record = json.loads(run(python, PROGRAM, tmp_path / "profiles"))
    assert_profiled(record, tmp_path / "profiles")


def test_the_source_distribution_installs_and_profiles(tmp_path: Path) -> None:
    python = empty_environment(tmp_path / "venv")
    # Unoptimised, and where and as the project's own tests are built, so that the crates of others are not compiled once
    # more: what is tested is that the sources are complete.
    settings = {"CARGO_TARGET_DIR": str(TARGET), "MATURIN_PEP517_ARGS": "--profile dev"}
    settings["RUSTFLAGS"] = "-Cforce-frame-pointers=yes"
    # All of its files have one old date, by which cargo would take what was built there of earlier sources for theirs.
    with tarfile.open(the_package("*.tar.gz")) as sources:
        sources.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("pyroscope_otel-*")
    for file in folder.rglob("*"):
        file.touch()
    run(python, "-m", "pip", "install", "-q", folder, **settings)
    record = json.loads(run(python, PROGRAM, tmp_path / "profiles"))
    assert_profiled(record, tmp_path / "profiles")


def assert_profiled(record: dict, folder: Path) -> None:
    assert_works(record)
    assert record["running"]
    stats = record["stats"]
    assert stats["uploaded"]["samples"] == stats["taken"]["samples"] > 0
    in_span = [s for s in pprof.samples_of(folder) if s.labels.get("span_name") == "GET /cart"]
    assert any(frame.function.endswith("spin_in_the_span") for sample in in_span for frame in sample.stack)


def assert_works(record: dict) -> None:
    """What holds wherever the package loads."""
    assert "sample_rate" in record["refused"] and "0" in record["refused"]
    assert "pyroscope.profile.id" in record["attributes"]
    assert record["seen"] == {"functions": ["seen_from_inside", "main", "<module>"], "span_is_seen": True}
    assert record["flushed"]


def test_the_wheel_for_arm64_loads_and_reads_stacks_and_spans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = the_package("*_aarch64.whl")
    try:
        python = arm64.command(TARGET / "arm64")
    except (arm64.NotHere, subprocess.TimeoutExpired) as why:
        pytest.skip(f"no Python for arm64 here: {why}")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "package")
    # The SDK is Python alone, so the one of an environment of this machine does.
    sdk = tmp_path / "sdk"
    python_here = empty_environment(tmp_path / "venv")
    run(python_here, "-m", "pip", "install", "-q", "--target", sdk, "--no-compile", *requirements(path))
    environment = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path / "package", sdk))), "PYTHONNOUSERSITE": "1"}
    record = json.loads(run(*python, PROGRAM, tmp_path / "profiles", **environment))
    assert record["machine"] == "aarch64"
    assert_works(record)
    assert record["running"], record["messages"]
    taken = record["stats"]["taken"]
    with capsys.disabled():
        print(f"\narm64 under qemu-user, Python {record['version']}: {taken['samples']} samples taken of 1 s of CPU time at 100 Hz")


def requirements(path: Path) -> list[str]:
    """What the wheel depends on."""
    with zipfile.ZipFile(path) as archive:
        lines = archive.read(f"{wheel.dist_info(archive)}/METADATA").decode().splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
