"""Whether an interpreter writes its entry frame before it publishes it, by its instructions. x86-64, CPython from 3.13 on.

A loop of the interpreter has its first frame, the *entry frame*, on the C stack. It links the frame that it is to run to that
one and makes it the thread's current one:

    frame->previous = &entry_frame;      mov %rax,0x8(%rsi)
    tstate->current_frame = frame;       mov %rsi,0x48(%rdi)

A signal handler on this thread may walk the stack from there on. What it reads of the entry frame (its code, its caller, its
owner) has to be written by then, and no rule of C says so: compilers for x86-64 do it, those for aarch64 do not.

    python tests/interpreters/scan.py [PYTHON...]
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys

FUNCTION = "_PyEval_EvalFrameDefault"
#: Where they are: tstate->current_frame, and of a frame `previous` and what else is read.
CURRENT_FRAME = 0x48
CODE, PREVIOUS = 0, 8
OWNER = {13: 70, 14: 74, 15: 74}
#: Bytes of the function that are looked at; it begins with this.
LENGTH = 400

DESCRIBE = """
import os, sys, sysconfig
library = "%s/%s" % (sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME"))
is_shared = ".so" in library and os.path.isfile(library)
print(sys.version_info[1], sys.version.split()[0], library if is_shared else sys.executable, sep="\\n")
"""
STORE = re.compile(r"v?mov([a-z]*)\s+(\S+),(-?(?:0x[0-9a-f]+)?)\((%\w+)\)$")
ADDRESS = re.compile(r"lea\s+(-?(?:0x[0-9a-f]+)?)\((%rsp|%rbp)\),(%\w+)$")
STACK = ("%rsp", "%rbp")


class NotHere(Exception):
    """Why nothing can be said, in words."""


def size_of(suffix: str, source: str) -> int:
    """Bytes that such a store writes."""
    for register, size in (("%xmm", 16), ("%ymm", 32)):
        if source.startswith(register):
            return 8 if suffix.startswith(("q", "lp", "hp")) else size
    if source.startswith("$"):
        return {"b": 1, "w": 2, "l": 4, "q": 8}[suffix[:1]]
    if re.match(r"%r(\d+|[a-z]{2})$", source):
        return 8
    if re.match(r"%(e[a-z]{2}|r\d+d)$", source):
        return 4
    return 2 if re.match(r"%([a-ds][ipx]|r\d+w)$", source) else 1


def instructions(library: str) -> list[str]:
    """The first ones of the function."""
    if shutil.which("objdump") is None:
        raise NotHere("objdump is not installed (Debian: binutils)")
    symbols = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^([0-9a-f]+) .*\s{FUNCTION}$", symbols, re.MULTILINE)
    if found is None:
        raise NotHere(f"{library} does not export {FUNCTION}")
    start = int(found[1], 16)
    bounds = [f"--start-address={start}", f"--stop-address={start + LENGTH}"]
    command = ["objdump", "-d", "--no-show-raw-insn", *bounds, library]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split("\t", 1)[1].split("#")[0].strip() for line in text.splitlines() if "\t" in line]


def missing(code: list[str], owner: int) -> list[str]:
    """What of the entry frame is not written when the next frame is published."""
    number = lambda text: int(text or "0", 16)  # noqa: E731
    addresses: dict[str, tuple[str, int]] = {}
    written: set[tuple[str, int]] = set()
    entry = None
    for line in code:
        if address := ADDRESS.match(line):
            addresses[address[3]] = (address[2], number(address[1]))
        elif store := STORE.match(line):
            suffix, source, offset, base = store[1], store[2], number(store[3]), store[4]
            if base in STACK:
                written.update((base, offset + byte) for byte in range(size_of(suffix, source)))
            elif offset == PREVIOUS and source in addresses:
                entry = addresses[source]
            elif offset == CURRENT_FRAME and entry is not None:
                base, at = entry
                fields = {"code": range(CODE, CODE + 8), "previous": range(PREVIOUS, PREVIOUS + 8), "owner": [owner]}
                return [
                    name for name, bytes_ in fields.items() if any((base, at + byte) not in written for byte in bytes_)
                ]
    raise NotHere("its first instructions do not look like those that are known")


def scan(python: str = sys.executable) -> tuple[str, list[str]]:
    """The version of a Python, and what it does not write in time."""
    described = subprocess.run([python, "-c", DESCRIBE], capture_output=True, text=True, check=True).stdout
    minor, version, library = described.split("\n")[:3]
    if platform.machine() != "x86_64":
        raise NotHere("this reads instructions of x86-64")
    if int(minor) not in OWNER:
        raise NotHere(f"{version} has no such frame, or is not known")
    try:
        return version, missing(instructions(library), OWNER[int(minor)])
    except subprocess.CalledProcessError as error:
        raise NotHere(error.stderr.strip()) from error


def main() -> None:
    wrong = False
    for python in sys.argv[1:] or [sys.executable]:
        try:
            version, late = scan(python)
        except NotHere as why:
            print(f"{python}: {why}")
            continue
        print(f"{python} ({version}): {'published before it is written: ' + ', '.join(late) if late else 'written in time'}")
        wrong = wrong or bool(late)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
