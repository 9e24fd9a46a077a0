"""What a step's failure says: of a crash, a hang, a wrong result, or of a download and of tests that may be late."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

#: What a failed step's output says of that which is never a matter of time, as the tests' tools write it: pytest and minitest, xUnit,
#: cargo and the programs themselves. The first that is found counts.
SIGNS = {
    "a process ended by a signal": r"^(E  |FAILED ).*[^0-9.]-(4|5|6|7|8|9|11|31)([^0-9.]|$)|Signals\.SIG|SIG[A-Z0-9]+ \(signal [0-9]"
    r"|signal: [0-9]|unix_wait_status\([0-9]{1,2}\)|unix_wait_status\(1[0-9]{2}\)"
    r"|(Actual: +|exit code:? |ExitCode:? |status )(13[24-79]|159|162)$|signal: segmentation|core dumped|Segmentation fault"
    r"|Fatal Python error|\[BUG\]|^Fatal error\.|cannot unwind|non-unwinding panic",
    "a memory error": r"^==[0-9]+== |Sanitizer:|double free|free\(\): |malloc[a-z_]*\(\): |corrupted size|stack smashing",
    "a process hung": r"^(E  |FAILED ).*(TimeoutExpired|timed out)|Timeout::Error|execution expired|test timed out after|did not end| hung",
    "something was wrong": r"^(E  |FAILED |thread |[^ ]* panicked).*wrong| in the span |odd_(names|calls|spans)|(wrong|not) (chain|span)",
    "an equation is broken": r"adds?_up|adds? up",
}
#: Lines of tests that passed, whose names may say any of it.
PASSED = re.compile(r" s = \.$|\.\.\. ok$")
NOT_FETCHED = re.compile(
    r"Temporary failure|[Cc]ould not resolve|Could not (fetch|reach)|[Cc]onnection (broken|reset|refused|timed out)|timed out"
    r"|NewConnectionError|HTTPSConnectionPool|spurious network error|failed to download|Network error|ECONNRESET|ETIMEDOUT|EAI_AGAIN"
    r"|NU1301|service index|Failed to fetch|TLS handshake|network is unreachable"
)
INSTALLS = re.compile(r"^[a-z.-]+: failed: .*(pip|bundle|npm|cargo|maturin|dotnet|rake)|^error: (failed to|could not)|^E: ", re.M)
#: As pytest, minitest, xUnit, cargo and Go name a test that failed, without its parameters.
FAILED_TEST = re.compile(
    r"^(?:FAILED|ERROR) (?:\.\./)*(?P<pytest>[^\[\s]+::[^\[\s]+)"
    r"|^ +\d+\) (?:Failure|Error):\n(?P<minitest>.*?)(?::| \[.*)?$"
    r"|^.* (?P<xunit>[A-Za-z_][A-Za-z0-9_.#]*)(?:\(.*\))? \[FAIL\]"
    r"|^test (?P<cargo>.+) \.\.\. FAILED|^---- (?P<stdout>.+) stdout ----$"
    r"|^ *--- FAIL: (?P<go>[^ ]+)",
    re.M,
)
SPEAKS = re.compile(r"Failure:|Error:|^FAILED|^E  |^error|panicked|\[FAIL\]")
MOST_CORES = 3


def sign_of(code: int, output: str) -> str:
    """What is never tried again, "" if there is none. `code`: as subprocess gives it."""
    if code == 124:
        return "hung"
    if code < 0 or code > 128:
        return f"ended by signal {-code if code < 0 else code - 128}"
    said = "\n".join(line for line in output.splitlines() if not PASSED.search(line))
    return next((sign for sign, pattern in SIGNS.items() if re.search(pattern, said, re.M)), "")


def failed_tests(output: str) -> list[str]:
    """The names of the tests that failed."""
    return sorted({match[match.lastgroup or 0] for match in FAILED_TEST.finditer(output)})


def late_tests(file: Path) -> dict[str, str]:
    """Of a file such as ci/late-tests: why a test may be late, by its name."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {name.strip(): why.strip() for name, _, why in (line.partition("|") for line in lines)}


def why_again(output: str, late: dict[str, str]) -> str:
    """Why a step without a sign is tried again: it could not fetch what it installs, or all that failed may be late. "": it is not."""
    failed = failed_tests(output)
    if not failed:
        end = "\n".join(output.splitlines()[-60:])
        return "a download failed" if NOT_FETCHED.search(end) and INSTALLS.search(output) else ""
    if not set(failed) <= late.keys():
        return ""
    return f"{' '.join(failed)}: {late[failed[-1]]}"


def where_it_speaks(output: str) -> str:
    """The lines that speak of a failure, each with some that follow, and the end."""
    lines = output.splitlines()
    spoken = [number for number, line in enumerate(lines) if SPEAKS.search(line)][:20]
    shown = sorted({after for number in spoken for after in range(number, min(number + 13, len(lines)))})[-120:]
    return "\n".join([*(f"{number + 1}: {lines[number]}" for number in shown), "--", *lines[-30:]])


def is_core(file: Path) -> bool:
    """An ELF file of type 4, whatever its name."""
    with file.open("rb") as content:
        head = content.read(18)
    return head[:4] == b"\x7fELF" and head[16:18] == b"\x04\x00"


def cores(since: float, folder: Path, root: Path) -> Iterator[Path]:
    """Cores that were written since a time of the file system, in a step's folder or where else the kernel may put them."""
    try:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    except OSError:
        return
    if pattern.startswith("|"):
        return
    places = [Path(pattern).parent] if pattern.startswith("/") else [folder, root, Path(os.environ.get("TMPDIR", "/tmp"))]
    seen = set()
    for place in places:
        for directory, _, names in os.walk(place):
            for file in (Path(directory, name) for name in names if "core" in name):
                # What lies in another step's folder is that step's.
                is_others = folder.parent in file.parents and folder not in file.parents
                try:
                    is_one = not is_others and file.is_file() and file.stat().st_mtime >= since and is_core(file)
                except OSError:
                    continue
                if is_one and file not in seen:
                    seen.add(file)
                    yield file


def backtraces(since: float, folder: Path, root: Path) -> str:
    """Of the cores of a step, at most three. Where two steps run those of the other may be among them."""
    found = list(cores(since, folder, root))
    if not found:
        return "no backtrace: no core was found"
    shown = [f"--- core {core}\n{backtrace(core)}" for core in found[:MOST_CORES]]
    return "\n".join([*shown, *([f"and {len(found) - MOST_CORES} more cores"] if len(found) > MOST_CORES else [])])


def backtrace(core: Path) -> str:
    """Who left a core, and where each of its threads stood, by gdb."""
    if not shutil.which("gdb") and not installed("gdb"):
        return "no backtrace: gdb is not installed"
    # What is mapped first is the program, which a core does not name by its whole path.
    mapped = gdb("-ex", "info proc mappings", "-c", str(core))
    program = [line.split()[-1] for line in mapped.splitlines() if line.split()[-1:] and line.split()[-1].startswith("/")][:1]
    options = ["-iex", "set debuginfod enabled off", "-iex", "set auto-load no"]
    said = gdb(*options, "-ex", "bt 40", "-ex", "thread apply all bt 12", *program, "-c", str(core))
    lines = [line for line in said.splitlines() if line and not line.startswith(("[New LWP", "warning:"))]
    return "\n".join(lines[:150])


def installed(package: str) -> bool:
    """Whether a Debian package could be installed."""
    install = ["bash", "-c", 'set -eu; . "$1/lib.sh"; apt_install "$2"', "bash", str(Path(__file__).parent), package]
    return subprocess.run(install, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0


def gdb(*arguments: str) -> str:
    """What it prints; it has two minutes."""
    command = ["gdb", "-nx", "-batch", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no backtrace: {error}"
    return done.stdout
