"""Checks the crates against rules.toml: `check.py [CRATE ...]`. Prints what breaks a rule, and the number of files of each crate."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from modules import Crate, circles, floor_of

# What allocates, locks, formats, prints or calls the interpreter by its whole API.
NOT_IN_HANDLERS = [
    "Mutex", "RwLock", "OnceLock", ".lock(", "Box::", "Rc::", "Arc::", "Vec::", "vec!", "HashMap", "String::", ".to_string(", ".to_owned(", "format!", "println!",
    "eprintln!", "thread_local!", "pyo3::", "magnus::",
]  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]


def findings(crate: Crate, rules: dict[str, Any]) -> list[str]:
    """A sentence for each rule that is broken."""
    said = []
    arrows = crate.arrows()

    def file(name: tuple[str, ...]) -> str:
        return str(crate.modules[name].path.relative_to(crate.root))

    for circle in circles(arrows):
        said.append(f"circle of {len(circle)} files")
        for name in circle:
            for other, names in sorted(arrows[name].items()):
                if other in circle:
                    said.append(f"    {file(name)} uses {file(other)}: {', '.join(sorted(names))}")
    floors = rules.get("floors", [])
    listed = {name for floor in floors for name in floor}
    for name in sorted({name[0] for name in arrows if name} - {name.split("/")[0] for name in listed} if floors else ()):
        said.append(f"{name} is on no floor of rules.toml")
    for name, targets in sorted(arrows.items()):
        below = floor_of(name, floors)
        for other, names in sorted(targets.items()):
            above = floor_of(other, floors)
            if below is not None and above is not None and above > below:
                said.append(f"{file(name)} uses {file(other)}, which stands above it: {', '.join(sorted(names))}")
    handler = rules.get("handler", {})
    for name in sorted(arrows):
        if "/".join(name[:1]) not in handler.get("rooms", []):
            continue
        for other, names in sorted(arrows[name].items()):
            if not any("/".join(other[:length]) in handler["rooms"] + handler["may_use"] for length in range(1, len(other) + 1)):
                said.append(f"{file(name)} runs in the signal handler and uses {file(other)}: {', '.join(sorted(names))}")
        for path in crate.modules[name].outside:
            if not any("::".join(path[:length]) in handler["crates"] for length in range(1, len(path) + 1)):
                said.append(f"{file(name)} runs in the signal handler and uses {'::'.join(path)}")
        for word in NOT_IN_HANDLERS:
            if re.search(rf"(?<!\w){re.escape(word)}", crate.modules[name].code):
                said.append(f"{file(name)} runs in the signal handler and says {word}")
    return said


def main(wanted: list[str]) -> int:
    rules = tomllib.loads((Path(__file__).parent / "rules.toml").read_text(encoding="utf-8"))
    broken = 0
    for name, rule in rules.items():
        if wanted and name not in wanted:
            continue
        crate = Crate(ROOT / rule["source"])
        arrows = crate.arrows()
        said = findings(crate, rule)
        broken += len(said)
        print(f"{name}: {len(arrows)} files, {sum(map(len, arrows.values()))} arrows, {len(said) or 'no'} findings")
        for line in said:
            print(f"  {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
