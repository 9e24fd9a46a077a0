"""Reads the viewer's API and prints what each span burnt; writes the flame graphs beside it.

    python report.py http://127.0.0.1:4040 [directory for the SVG files]
"""

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any


HEADING = ["service", "span", "count", "CPU", "CPU/wall", "hottest function (share of the CPU)"]


class Viewer:
    """The JSON API of a running spanprof."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def read(self, path: str, **parameters: str) -> bytes:
        """The body of an answer; an error says what the viewer said."""
        address = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{address}: {error.code} {error.read().decode(errors='replace')}") from error

    def get(self, path: str, **parameters: str) -> Any:
        """An answer's JSON."""
        return json.loads(self.read(path, **parameters))

    def services(self) -> dict[str, dict[str, Any]]:
        """The services by name."""
        return {row["service"]: row for row in self.get("/api/services")["services"]}

    def spans(self, service: str) -> dict[str, dict[str, Any]]:
        """A service's span names."""
        return {row["name"]: row for row in self.get("/api/spans", service=service)["spans"]}


def cpu_per_wall(span: dict[str, Any]) -> float | None:
    """CPU for each second of wall time."""
    if span["cpu_ns"] is None or not span["wall_total_ns"]:
        return None
    share: float = span["cpu_ns"] / span["wall_total_ns"]
    return share


def row(service: str, span: dict[str, Any]) -> list[str]:
    """A line of the table."""
    hottest = span["hottest"]
    per_wall = cpu_per_wall(span)
    return [
        service,
        span["name"],
        f"{span['count']:,}",
        "-" if span["cpu_ns"] is None else f"{span['cpu_ns'] / 1e9:.2f} s",
        "-" if per_wall is None else f"{per_wall:.0%}",
        f"{hottest['function']} ({hottest['share']:.0%})" if hottest else "-",
    ]


def table(viewer: Viewer) -> list[list[str]]:
    """All lines, most CPU first within a service, and what was burnt outside of spans last."""
    lines = [HEADING]
    for service in sorted(viewer.services()):
        answer = viewer.get("/api/spans", service=service)
        lines += [row(service, span) for span in answer["spans"]]
        outside = answer["outside"]["cpu_ns"] / 1e9
        lines.append([service, "(outside spans)", "", f"{outside:.2f} s", "", ""])
    return lines


def show(lines: list[list[str]]) -> None:
    """Prints columns; numbers stand to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        cells = [
            cell.rjust(width) if column in (2, 3, 4) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ]
        print("  ".join(cells).rstrip())


def write_flame_graphs(viewer: Viewer, directory: Path) -> list[Path]:
    """One SVG a span name that has samples."""
    written = []
    for service in sorted(viewer.services()):
        for name, span in viewer.spans(service).items():
            if span["samples"]:
                file = directory / f"{service}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}.svg"
                file.write_bytes(viewer.read("/flame.svg", service=service, name=name))
                written.append(file)
    return written


def main() -> None:
    """Prints the table and writes the files."""
    viewer = Viewer(sys.argv[1])
    show(table(viewer))
    if len(sys.argv) > 2:
        files = write_flame_graphs(viewer, Path(sys.argv[2]))
        print(f"\n{len(files)} flame graphs: {sys.argv[2]}/*.svg")


if __name__ == "__main__":
    main()
