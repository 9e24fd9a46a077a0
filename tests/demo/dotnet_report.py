"""Reads the viewer's API and prints what each span of the service burnt, allocated and waited for.

    python dotnet_report.py http://127.0.0.1:4040 [directory for the SVG files]
"""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "shop"))

from report import Viewer, show

HEADING = ["service", "span", "count", "CPU", "allocated", "lock wait", "exceptions"]
SERVICE = "orders"


def value(viewer: Viewer, kind: str, name: str) -> int:
    """The sum of a profile type's samples in spans of this name, 0 where there are none."""
    top: Any = viewer.get("/api/top", service=SERVICE, name=name, type=kind)
    return int(top["total"])


def table(viewer: Viewer) -> list[list[str]]:
    """A line a span name."""
    lines = [HEADING]
    for name, span in viewer.spans(SERVICE).items():
        lines.append(
            [
                SERVICE,
                name,
                f"{span['count']:,}",
                "-" if span["cpu_ns"] is None else f"{span['cpu_ns'] / 1e9:.2f} s",
                f"{value(viewer, 'memory', name) / 1e6:,.1f} MB",
                f"{value(viewer, 'lock', name) / 1e9:.2f} s",
                f"{value(viewer, 'exception', name):,}",
            ]
        )
    return lines


def main() -> None:
    """Prints the table and writes the files."""
    viewer = Viewer(sys.argv[1])
    show(table(viewer))
    if len(sys.argv) > 2:
        for name, span in viewer.spans(SERVICE).items():
            if span["samples"]:
                file = Path(sys.argv[2]) / f"{SERVICE}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}.svg"
                file.write_bytes(viewer.read("/flame.svg", service=SERVICE, name=name))


if __name__ == "__main__":
    main()
