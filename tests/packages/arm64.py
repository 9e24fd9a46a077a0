"""A Python for 64-bit ARM on this machine: Debian's, unpacked beside the build and run by qemu-user.

Nothing is installed and no setting of the machine changes: apt works on a state of its own, packages are unpacked as
archives. What was fetched stays, so the next run needs no network.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

PYTHON = "3.11"
PACKAGES = (
    *("libc6", "libgcc-s1", "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libuuid1"),
    *(f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib", f"python{PYTHON}-minimal"),
)
QEMU = "qemu-aarch64-static"


class NotHere(Exception):
    """Why there can be none, in words."""


def command(cache: Path) -> list[str]:
    """What to write before the arguments of `python`. The first time it fetches 70 MB."""
    root = kept(cache / "root", lambda folder: unpack(folder, "arm64", PACKAGES))
    qemu = shutil.which(QEMU)
    if qemu is None:
        tools = kept(cache / "qemu", lambda folder: unpack(folder, host_architecture(), ("qemu-user-static",)))
        qemu = str(tools / "usr" / "bin" / QEMU)
    return [qemu, "-L", str(root), str(root / "usr" / "bin" / f"python{PYTHON}")]


def kept(folder: Path, fill) -> Path:
    """The folder, filled once and as a whole."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            filled = Path(scratch, "filled")
            filled.mkdir()
            fill(filled)
            filled.rename(folder)
    return folder


def unpack(folder: Path, architecture: str, packages: tuple[str, ...]) -> None:
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        raise NotHere("apt-get and dpkg are not installed")
    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch)
        for name in ("lists/partial", "cache/archives/partial", "packages"):
            (state / name).mkdir(parents=True)
        (state / "status").touch()
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",  # the default one may not write here
            "Dir::State": state,
            "Dir::State::status": state / "status",
            "Dir::Cache": state / "cache",
        }
        apt = ["apt-get", "-q", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
        run([*apt, "update"], state)
        run([*apt, "download", *packages], state / "packages")
        for package in (state / "packages").glob("*.deb"):
            run(["dpkg", "-x", str(package), str(folder)], state)


def host_architecture() -> str:
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def run(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise NotHere(f"{arguments[0]} {arguments[-1]} failed: {done.stderr.strip()[-300:]}")
