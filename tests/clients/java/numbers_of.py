"""What a recording holds, by Java's own tool and by async-profiler's: sums by function and by span of each profile type.

Where the two tools count the same thing they must agree.
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

TLAB = ("alloc_in_new_tlab_objects", "alloc_in_new_tlab_bytes")
OUTSIDE = ("alloc_outside_tlab_objects", "alloc_outside_tlab_bytes")
SAMPLE = ("alloc_sample_objects", "alloc_sample_bytes")
# The events that count and have a size: the profile type of their number and of their size, and the field of it.
SIZED = {
    "jdk.ObjectAllocationInNewTLAB": (f"memory:{TLAB[0]}:count:space:bytes", f"memory:{TLAB[1]}:bytes:space:bytes", "tlabSize"),
    "jdk.ObjectAllocationOutsideTLAB": (f"memory:{OUTSIDE[0]}:count:space:bytes", f"memory:{OUTSIDE[1]}:bytes:space:bytes", "allocationSize"),
    "jdk.ObjectAllocationSample": (f"memory:{SAMPLE[0]}:count:space:bytes", f"memory:{SAMPLE[1]}:bytes:space:bytes", "weight"),
    "jdk.JavaMonitorEnter": ("mutex:contentions:count:mutex:count", "mutex:delay:nanoseconds:mutex:count", "duration"),
    "jdk.ThreadPark": ("block:contentions:count:block:count", "block:delay:nanoseconds:block:count", "duration"),
    "profiler.Malloc": ("memory:malloc_objects:count::", "memory:malloc_bytes:bytes::", "size"),
    "profiler.LiveObject": ("memory:live:count:objects:count", "", ""),
}
CPU, WALL = "process_cpu:cpu:nanoseconds:cpu:nanoseconds", "wall:wall:nanoseconds:wall:nanoseconds"
EVENTS = ["jdk.ExecutionSample", "profiler.WallClockSample", *SIZED]
# Names that the runtime makes up, as they are known in all processes.
MADE_UP = re.compile(r"(\$\$Lambda)\$?\d*[./+]0x[0-9a-f]+(/\d+)?")


def duration(text: str) -> int:
    """Nanoseconds of PT1M2.5S."""
    minutes, seconds = re.fullmatch(r"PT(?:(\d+)M)?(?:([\d.E-]+)S)?", text).groups()
    return int(minutes or 0) * 60_000_000_000 + round(float(seconds or 0) * 1e9)


def function(frame: dict[str, Any], is_java: bool) -> str:
    method, kind = frame["method"], frame["type"]
    owner, name = method["type"]["name"], method["name"]
    if not owner or kind in ("C++", "Kernel") or kind == "Native" and not is_java:
        return name
    return f"{MADE_UP.sub(lambda made: made[1] + '_', owner)}.{name}"


def unsigned(number: int, digits: int = 16) -> str:
    return f"{number & (1 << 64) - 1:0{digits}x}"


def settings(recording: Path) -> dict[str, str]:
    text = subprocess.run(["jfr", "print", "--json", "--events", "jdk.ActiveSetting", recording], check=True, capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    for event in json.loads(text)["recording"]["events"]:
        found.setdefault(event["values"]["name"], event["values"]["value"])
        if event["values"]["name"] == "period" and event["values"]["value"].endswith(" ms"):
            found["interval"] = str(int(event["values"]["value"][:-3]) * 1_000_000)
    return found


def converted(converter: Path, recording: Path, leaf: int, *options: str) -> dict[str, int]:
    """What async-profiler's tool says, by function: the one at this place of a stack."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "stacks")
        command = ["java", "-jar", str(converter), *options, "-o", "collapsed", str(recording), str(written)]
        subprocess.run(command, check=True, capture_output=True)
        sums: collections.Counter[str] = collections.Counter()
        for line in written.read_text().splitlines():
            stack, count = line.rsplit(" ", 1)
            sums[MADE_UP.sub(r"\1_", re.sub(r"_\[.\]$", "", stack.split(";")[leaf]))] += int(count)
        return dict(sums)


def recording(recording: Path, converter: Path) -> dict[str, Any]:
    command = ["jfr", "print", "--json", "--stack-depth", "2048", "--events", ",".join(EVENTS), recording]
    events = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["recording"]["events"]
    said = settings(recording)
    by_clock, interval = said.get("event") == "wall", int(said.get("interval", 10_000_000))
    wall = interval if by_clock else int(said.get("wall", interval))
    is_java = "event" not in said
    sums: dict[str, dict[str, Any]] = {}

    def add(kind: str, value: int, event: dict[str, Any]) -> None:
        values = event["values"]
        one = sums.setdefault(kind, {"total": 0, "functions": collections.Counter(), "spans": collections.Counter(), "traces": {}, "labelled": 0})
        one["total"] += value
        frames = (values.get("stackTrace") or {}).get("frames") or []
        one["functions"][function(frames[0], is_java) if frames else "(no stack)"] += value
        one["labelled"] += value if values.get("contextId") else 0
        if span := values.get("spanId"):
            one["spans"][unsigned(span)] += value
            if values.get("traceIdHi") or values.get("traceIdLo"):
                one["traces"][unsigned(span)] = unsigned(values["traceIdHi"]) + unsigned(values["traceIdLo"])

    for event in events:
        kind, values = event["type"], event["values"]
        if kind == "jdk.ExecutionSample":
            if values["state"] != "STATE_SLEEPING":
                add(CPU, interval, event)
        elif kind == "profiler.WallClockSample":
            if by_clock and values["state"] == "STATE_RUNNABLE":
                add(CPU, values["samples"] * interval, event)
            add(WALL, values["samples"] * wall, event)
        else:
            number, size, field = SIZED[kind]
            add(number, 1, event)
            if size:
                add(size, duration(values[field]) if field == "duration" else values[field], event)
    # The events of Grafana's copy of the profiler have fields that the tool does not know.
    if said.get("version", "").count(".") == 1:
        agree(sums, recording, converter, interval)
    return {kind: shown(one) for kind, one in sorted(sums.items())}


def agree(sums: dict[str, dict[str, Any]], recording: Path, converter: Path, interval: int) -> None:
    """Compares the sums of all functions with what async-profiler's tool says of them."""
    empty: dict[str, dict[str, int]] = {"functions": {}}

    def ours(*kinds: str) -> dict[str, int]:
        both: collections.Counter[str] = collections.Counter()
        for kind in kinds:
            both.update(sums.get(kind, empty)["functions"])
        return dict(both)

    theirs = converted(converter, recording, -1, "--state", "default", "--norm")
    assert ours(CPU) == {name: number * interval for name, number in theirs.items()}, theirs
    # The last one of these stacks is the class of the object or of the lock.
    for options, event in [("--alloc", "jdk.ObjectAllocation"), ("--lock", "jdk.")]:
        kinds = [kinds for name, kinds in SIZED.items() if name.startswith(event) and (event != "jdk." or "Allocation" not in name)]
        assert ours(*(number for number, _, _ in kinds)) == converted(converter, recording, -2, options), options
    assert ours(SIZED["jdk.ObjectAllocationInNewTLAB"][1], SIZED["jdk.ObjectAllocationOutsideTLAB"][1]) == converted(
        converter, recording, -2, "--alloc", "--total"
    )
    assert ours(SIZED["profiler.Malloc"][1]) == converted(converter, recording, -1, "--nativemem", "--total")


def shown(one: dict[str, Any]) -> dict[str, Any]:
    """The functions that have most, all spans, the trace of each span that names one, and what has labels of a context."""
    functions = sorted(one["functions"].items(), key=lambda item: (-item[1], item[0]))
    shown = {"total": one["total"], "functions": dict(functions[:12])}
    if one["spans"]:
        shown["spans"] = dict(sorted(one["spans"].items()))
    if one["traces"]:
        shown["traces"] = dict(sorted(one["traces"].items()))
    if one["labelled"]:
        shown["labelled"] = one["labelled"]
    return shown
