"""What a wheel must be before anybody installs it: small, true to its tag, whole, and nothing else in it.

    python wheel.py dist/*.whl          prints what each is, one JSON object a line; code 1 if something is wrong

Needs requirements.txt of this folder.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass, field
from email.parser import BytesParser
from io import BytesIO
from pathlib import Path, PurePosixPath

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "bindings-python" / "python"
NATIVE = "pyroscope/_native.abi3.so"
MOST_BYTES = 4_000_000
MANYLINUX = "manylinux_2_17"
# Not in the limited API, yet public in every CPython since 3.7: bindings-python/src/span/context_var.rs says why they are used.
BESIDE_ABI3 = {f"PyContextVar_{name}" for name in ("New", "Get", "Set", "Reset")}
METADATA = {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE"}
# What else may be beside them: the list of crates that is built in, and what a package tells other programs.
OPTIONAL = re.compile(r"sboms/[^/]+\.cyclonedx\.json|entry_points\.txt")


@dataclass
class Facts:
    """A wheel, and what is wrong with it, in sentences."""

    file: str
    bytes: int
    tags: list[str] = field(default_factory=list)
    allowed_on: str = ""
    glibc: str = ""
    abi3: str = ""
    exports: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def facts(path: Path) -> Facts:
    found = Facts(path.name, path.stat().st_size)
    if found.bytes > MOST_BYTES:
        found.wrong.append(f"it has {found.bytes} bytes, more than {MOST_BYTES}")
    with zipfile.ZipFile(path) as archive:
        look_at_files(archive, found)
        look_at_record(archive, found)
        look_at_tags(archive, path, found)
        look_at_exports(archive, found)
        look_at_unwinder(archive, found)
    look_at_symbols(path, found)
    look_at_abi3(path, found)
    return found


def look_at_files(archive: zipfile.ZipFile, found: Facts) -> None:
    """Each file of the sources, the native module, the metadata, and no other."""
    found.files = sorted(archive.namelist())
    info = dist_info(archive)
    sources = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*")
        if path.is_file() and path.suffix != ".so" and "__pycache__" not in path.parts
    }
    needed = sources | {NATIVE} | {f"{info}/{name}" for name in METADATA}
    have = set(found.files)
    for name in sorted(needed - have):
        found.wrong.append(f"{name} is missing")
    for name in sorted(have - needed):
        if not (name.startswith(info) and OPTIONAL.fullmatch(name.removeprefix(f"{info}/"))):
            found.wrong.append(f"{name} does not belong into it")
    for name in sorted(sources & have):
        if archive.read(name) != (SOURCES / name).read_bytes():
            found.wrong.append(f"{name} is not what the sources have")
    license_file = f"{info}/licenses/LICENSE"
    if license_file in have and archive.read(license_file) != (ROOT / "LICENSE").read_bytes():
        found.wrong.append(f"{license_file} is not the project's")


def look_at_record(archive: zipfile.ZipFile, found: Facts) -> None:
    """RECORD lists all files by the sums that they have."""
    record = f"{dist_info(archive)}/RECORD"
    listed = dict(line.split(",")[:2] for line in archive.read(record).decode().splitlines())
    for name in found.files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
        if name != record and listed.get(name) != f"sha256={digest}":
            found.wrong.append(f"RECORD does not have {name} as it is")


def look_at_tags(archive: zipfile.ZipFile, path: Path, found: Facts) -> None:
    """The file's name and its WHEEL say the same."""
    wheel = BytesParser().parsebytes(archive.read(f"{dist_info(archive)}/WHEEL"))
    found.tags = sorted(wheel.get_all("Tag", []))
    python, abi, platforms = path.stem.split("-")[-3:]
    if found.tags != sorted(f"{python}-{abi}-{platform}" for platform in platforms.split(".")):
        found.wrong.append(f"its name says otherwise than its tags {found.tags}")
    machine = machine_of(archive)
    if (python, abi) != ("cp310", "abi3"):
        found.wrong.append(f"it is for {python}-{abi}, not for cp310-abi3")
    if f"{MANYLINUX}_{machine}" not in platforms.split("."):
        found.wrong.append(f"it is for {platforms}, not for {MANYLINUX}_{machine}")


def look_at_exports(archive: zipfile.ZipFile, found: Facts) -> None:
    """The module's init function alone, so that nothing of it meets another library's symbols."""
    symbols = elf(archive).get_section_by_name(".dynsym").iter_symbols()
    found.exports = sorted(s.name for s in symbols if s.name and s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL")
    if found.exports != ["PyInit__native"]:
        found.wrong.append(f"it exports {found.exports}, not PyInit__native alone")


def look_at_unwinder(archive: zipfile.ZipFile, found: Facts) -> None:
    """The unwinder of libgcc, which is glibc's too. With another one CPython crashes where it ends a daemon thread in it."""
    tags = elf(archive).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
    if "libgcc_s.so.1" not in [tag.needed for tag in tags]:
        found.wrong.append("it does not ask for libgcc_s.so.1, so it has an unwinder of its own")
    if b"libunwind: " in archive.read(NATIVE):
        found.wrong.append("LLVM's unwinder is in it")


def look_at_symbols(path: Path, found: Facts) -> None:
    """What auditwheel says of the versions of glibc that it wants."""
    shown = json.loads(output_of("auditwheel", "show", "--json", str(path)))
    found.allowed_on = shown["overall_tag"]
    if not found.allowed_on.startswith(f"{MANYLINUX}_"):
        found.wrong.append(f"auditwheel: it runs on {found.allowed_on}, not on {MANYLINUX}")
    versions = [version for names in shown["versioned_symbols"].values() for version in names]
    numbers = [tuple(map(int, version[6:].split("."))) for version in versions if version.startswith("GLIBC_")]
    found.glibc = ".".join(map(str, max(numbers, default=())))


def look_at_abi3(path: Path, found: Facts) -> None:
    """What abi3audit says of the functions of Python that it calls."""
    report = json.loads(output_of("abi3audit", "--report", str(path)))
    for spec in report["specs"].values():
        for module in spec["wheel"]:
            result = module["result"]
            found.abi3 = result["computed"]
            if not result["is_abi3_baseline_compatible"]:
                found.wrong.append(f"abi3audit: {module['name']} needs Python {result['computed']}")
            beside = set(result["non_abi3_symbols"]) - BESIDE_ABI3
            if beside:
                found.wrong.append(f"abi3audit: {module['name']} calls {sorted(beside)}, which the stable ABI does not have")


def output_of(tool: str, *arguments: str) -> str:
    """abi3audit ends with 1 when it has found something, and its report says what."""
    done = subprocess.run([sys.executable, "-m", tool, *arguments], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"{tool} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def dist_info(archive: zipfile.ZipFile) -> str:
    return next(PurePosixPath(name).parts[0] for name in archive.namelist() if ".dist-info/" in name)


def elf(archive: zipfile.ZipFile) -> ELFFile:
    return ELFFile(BytesIO(archive.read(NATIVE)))


def machine_of(archive: zipfile.ZipFile) -> str:
    return {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}.get(elf(archive)["e_machine"], elf(archive)["e_machine"])


def main(paths: list[str]) -> int:
    all_facts = [facts(Path(path)) for path in paths]
    for found in all_facts:
        print(json.dumps(asdict(found)))
        for sentence in found.wrong:
            print(f"{found.file}: {sentence}", file=sys.stderr)
    return 1 if any(found.wrong for found in all_facts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
