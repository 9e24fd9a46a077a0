"""What `go tool pprof` says of recorded uploads: `numbers.py FOLDER` writes FOLDER/sums.json, with which viewer/tests/clients.rs compares.

For each upload and sample type: the total, flat and cumulative value of each function, and the total of each span.
"""

import email
import email.policy
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

UNITS = {"nanoseconds": "ns", "bytes": "B"}


def profile(upload: bytes) -> bytes:
    """The profile in an upload: the body, or the field `profile` of a form."""
    head, body = upload.split(b"\r\n\r\n", 1)
    head = head.split(b"\r\n", 1)[1]
    form = email.message_from_bytes(head + b"\r\n\r\n" + body, policy=email.policy.HTTP)
    if not form.is_multipart():
        return body
    fields = {part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in form.iter_parts()}
    return fields["profile"]


def pprof(file: str, *flags: str) -> str:
    command = ["go", "tool", "pprof", "-symbolize=none", *flags, file]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    # Of a tag that no sample has it says so with code 1 or 0.
    if done.returncode and "no matches" not in done.stderr:
        raise RuntimeError(done.stderr)
    return done.stdout


def number(text: str) -> int:
    found = re.fullmatch(r"(-?[0-9.]+)(ns|B)?", text)
    if not found:
        raise ValueError(f"{text} is no number in the least unit")
    return round(float(found[1]))


def top(file: str, sample_type: str, unit: str, *flags: str) -> dict[str, list[int]]:
    """Flat and cumulative value by function."""
    all_of_it = ["-nodecount=1000000", "-nodefraction=0", "-edgefraction=0"]
    text = pprof(file, "-top", f"-sample_index={sample_type}", f"-unit={UNITS.get(unit, '')}", *all_of_it, *flags)
    rows: dict[str, list[int]] = {}
    for line in text.splitlines():
        row = re.fullmatch(r"\s*(\S+)\s+\S+%\s+\S+%\s+(\S+)\s+\S+%\s+(.+)", line)
        if row:
            name = re.sub(r" \((partial-)?inline\)$", "", row[3])
            flat, cumulative = rows.get(name, [0, 0])
            rows[name] = [flat + number(row[1]), cumulative + number(row[2])]
    return rows


def sums(file: str) -> dict[str, object]:
    raw = pprof(file, "-raw")
    # The line before the samples, after those of the period and the time.
    types = re.search(r"^Samples:\n(.*)$", raw, re.MULTILINE)
    spans = sorted(set(re.findall(r"span_id:\[([0-9a-f]{16})\]", raw)))
    found: dict[str, object] = {}
    for sample_type, unit in re.findall(r"([^/\s]+)/([^\s\[]+)", types[1]) if types else []:
        functions = top(file, sample_type, unit)
        # Anchored, as pprof takes an id of digits, or of digits and then letters, for a number with its unit: one id in 700.
        by_span = {span: sum(flat for flat, _ in top(file, sample_type, unit, f"-tagfocus=span_id=^{span}$").values()) for span in spans}
        found[sample_type] = {"unit": unit, "total": sum(flat for flat, _ in functions.values()), "functions": functions, "spans": by_span}
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    all_sums = {}
    for upload in sorted(folder.glob("*.http")):
        with tempfile.NamedTemporaryFile(suffix=".pb.gz") as file:
            file.write(profile(upload.read_bytes()))
            file.flush()
            all_sums[upload.name] = sums(file.name)
    lines = [f"{json.dumps(name)}: {json.dumps(said, sort_keys=True)}" for name, said in all_sums.items()]
    (folder / "sums.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
