"""Grafana's Java clients, as a program meets them.

`client.py build FOLDER` puts the jars that pom.xml names and the compiled programs there. With them `client.py check FOLDER URL` runs one against
a viewer and asks the viewer what it shows, and `client.py record FOLDER FIXTURES` writes the fixtures of viewer/tests/java.rs anew: what the clients
send, and what Java's and async-profiler's own tools say of it.
"""

from __future__ import annotations

import email
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import numbers_of

HERE = Path(__file__).parent
# Options of async-profiler's recordings: nothing of the machine, its libraries and its properties, which are somebody's.
NOTHING_ELSE = "jfropts=31"
SERVICE = "shop-java"


def build(folder: Path) -> None:
    """Fetches the jars that pom.xml names, and compiles the programs."""
    jars, classes = folder / "jars", folder / "classes"
    fetch = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    subprocess.run(fetch, check=True, stdin=subprocess.DEVNULL)
    sources = [str(path) for path in sorted(HERE.glob("*.java"))]
    # The agent has OpenTelemetry's API too, under other names.
    path = os.pathsep.join(str(jar) for jar in jars.glob("*.jar") if "javaagent" not in jar.name)
    subprocess.run(["javac", "-d", str(classes), "-cp", path, *sources], check=True)


def jar(folder: Path, name: str) -> str:
    [found] = folder.glob(f"jars/{name}-[0-9]*.jar")
    return str(found)


def java(folder: Path, program: str, seconds: int, url: str = "", **settings: str) -> list[str]:
    """Runs a program to its end, with the client that it is for."""
    api = [jar(folder, f"opentelemetry-{part}") for part in ("api", "context", "common")]
    path = [str(folder / "classes"), *api]
    options = []
    if program == "Traced":
        options = [f"-javaagent:{jar(folder, 'opentelemetry-javaagent')}", f"-Dotel.javaagent.extensions={jar(folder, 'otel')}"]
    elif program == "Labelled":
        path.append(jar(folder, "agent"))
    environment = {
        "PATH": os.environ["PATH"],
        "PYROSCOPE_SERVER_ADDRESS": url,
        "PYROSCOPE_APPLICATION_NAME": SERVICE,
        "PYROSCOPE_FORMAT": "jfr",
        "PYROSCOPE_UPLOAD_INTERVAL": "3s",
        "OTEL_SERVICE_NAME": SERVICE,
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        **{name: value for name, value in settings.items() if name.isupper()},
    }
    options += settings.get("options", "").split()
    command = ["java", *options, "-cp", os.pathsep.join(path), program, str(seconds)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def get(url: str, path: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
        return json.load(answer)


def check(folder: Path, url: str) -> None:
    """The spans of a service under OpenTelemetry's agent have the CPU time, the memory and the waits of what they did."""
    java(folder, "Traced", 7, url, PYROSCOPE_PROFILER_ALLOC="128k", PYROSCOPE_PROFILER_LOCK="1ms")
    spans = {row["name"]: row for row in get(url, "/api/spans", service=SERVICE)["spans"]}
    assert {"GET /price", "GET /tax", "POST /order"} <= spans.keys(), spans
    for name, function in [("GET /price", "Work.price"), ("GET /tax", "Work.lambda$tax$0")]:
        top = get(url, "/api/top", service=SERVICE, name=name)
        first = top["functions"][0]
        assert first["function"] == function and first["own"] > top["total"] / 2, (name, top["functions"][:3])
        assert spans[name]["cpu_ns"] >= top["total"] > 100_000_000, (spans[name], top["total"])
    for kind, name, function in [
        ("memory:alloc_in_new_tlab_bytes:bytes:space:bytes", "POST /order", "Work.pack"),
        ("mutex:delay:nanoseconds:mutex:count", "", "Work.lambda$order$1"),
    ]:
        # The lock is waited for by a thread that has no span.
        top = get(url, "/api/top", service=SERVICE, type=kind, **({"name": name} if name else {}))
        assert top["functions"][0]["function"] == function, (kind, top["functions"][:3])
    refused = [count for count in get(url, "/api/services")["refused"] if count["service"] == SERVICE]
    assert not refused, refused
    samples = sum(row["samples"] for row in spans.values())
    print(f"{len(spans)} span names of {SERVICE} with {samples} samples of CPU")


def parts(content_type: str, body: bytes) -> dict[str, bytes]:
    """The parts of a form, unpacked."""
    form = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    read = {}
    for part in form.get_payload():
        raw = part.get_payload(decode=True)
        read[part.get_param("name", header="content-disposition")] = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    return read


def record(folder: Path, fixtures: Path) -> None:
    fixtures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        common = {"PYROSCOPE_AP_EXTRA_ARGUMENTS": NOTHING_ELSE}
        events = {"PYROSCOPE_PROFILER_ALLOC": "512k", "PYROSCOPE_PROFILER_LOCK": "1ms", "PYROSCOPE_ALLOC_LIVE": "true"}
        for fixture, program, settings in [
            ("traced", "Traced", {**common, **events}),
            ("labelled", "Labelled", {**common, **events}),
            ("wall", "Labelled", {**common, "PYROSCOPE_PROFILER_EVENT": "wall"}),
        ]:
            uploads = scratch / fixture
            uploads.mkdir()
            capture = subprocess.Popen([sys.executable, HERE / "capture.py", uploads], stdout=subprocess.PIPE, text=True)
            assert capture.stdout
            java(folder, program, 12, capture.stdout.readline().strip(), **settings)
            capture.send_signal(signal.SIGTERM)
            capture.wait()
            # The last one, which no class is loaded in any more.
            last = max((path for path in uploads.glob("*.query") if "/ingest" in path.read_text()), key=lambda path: int(path.stem))
            head = dict(line.split(": ", 1) for line in last.with_suffix(".headers").read_text().splitlines())
            body = last.with_suffix(".body").read_bytes()
            (fixtures / f"{fixture}.upload").write_bytes(f"{last.read_text()}\n{head['Content-Type']}\n".encode() + body)
            keep(fixtures, fixture, parts(head["Content-Type"], body)["jfr"], folder, scratch)
        with zipfile.ZipFile(jar(folder, "async-profiler")) as archive:
            library = scratch / "libasyncProfiler.so"
            library.write_bytes(archive.read("linux-x64/libasyncProfiler.so"))
        written = scratch / "by-itself.jfr"
        how = f"start,event=itimer,interval=10ms,wall=50ms,alloc=512k,live,nativemem=256k,lock=1ms,chunktime=5s,{NOTHING_ELSE},jfr,file={written}"
        java(folder, "Plain", 8, options=f"-agentpath:{library}={how}")
        keep(fixtures, "async-profiler", written.read_bytes(), folder, scratch)
        written = scratch / "jdk.jfr"
        java(folder, "Plain", 4, options=f"-XX:StartFlightRecording=settings={HERE / 'shop.jfc'},filename={written},dumponexit=true")
        keep(fixtures, "jdk", written.read_bytes(), folder, scratch)
    for path in sorted(fixtures.iterdir()):
        print(f"{path.stat().st_size:8} {path.name}")


def keep(fixtures: Path, fixture: str, recording: bytes, folder: Path, scratch: Path) -> None:
    """Writes what the tools say of a recording, and the recording itself unless it is in an upload."""
    plain = scratch / f"{fixture}.jfr"
    plain.write_bytes(recording)
    numbers = numbers_of.recording(plain, Path(jar(folder, "jfr-converter")))
    (fixtures / f"{fixture}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    if not (fixtures / f"{fixture}.upload").exists():
        (fixtures / f"{fixture}.jfr.gz").write_bytes(gzip.compress(recording, mtime=0))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", folder]:
            build(Path(folder).resolve())
        case ["check", folder, url]:
            check(Path(folder).resolve(), url)
        case ["record", folder, fixtures]:
            record(Path(folder).resolve(), Path(fixtures).resolve())
        case other:
            sys.exit(f"{other}: allowed are build FOLDER, check FOLDER URL and record FOLDER FIXTURES")
