"""Whether a viewer shows what a client sent: `check.py URL FOLDER SAID`.

FOLDER holds the client's uploads and what `go tool pprof` says of them (record.py, numbers.py), SAID what the client printed: its service and
its spans. Nothing of the service may be refused, and sums of CPU, functions and spans must be the same.
"""

import json
import sys
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path


def ask(url: str, path: str, **parameters: str) -> dict:
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(parameters)}") as answer:
        return json.load(answer)


def main() -> None:
    url, folder, said = sys.argv[1].rstrip("/"), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
    service = said["service"]
    services = ask(url, "/api/services", since="1h")
    assert services["refused"] == [], services["refused"]
    [row] = [row for row in services["services"] if row["service"] == service]
    print(f"{service}: {row['profiles']} profiles, {row['cpu_ns'] / 1e9:.2f} s of CPU, types:", *(seen["word"] for seen in row["profile_types"]), sep="  ")
    assert row["sampled_by"] == "span", row

    uploads = json.loads((folder / "sums.json").read_text())
    of_cpu = [types["cpu"] for types in uploads.values() if "cpu" in types]
    total = sum(sums["total"] for sums in of_cpu)
    functions: Counter[str] = Counter()
    for sums in of_cpu:
        functions.update({name: flat for name, (flat, _) in sums["functions"].items() if flat})
    top = ask(url, "/api/top", service=service, since="1h")
    shown: Counter[str] = Counter()
    for function in top["functions"]:
        if function["own"]:
            shown[function["function"]] += function["own"]
    assert top["total"] == total > 0, (top["total"], total)
    assert shown == functions, f"only here: {shown - functions}; only there: {functions - shown}"
    for name, span in said["spans"].items():
        of_span = sum(sums["spans"].get(span, 0) for sums in of_cpu)
        flame = ask(url, "/api/flame", span=span)
        assert flame["total"] == of_span > 0, (name, flame["total"], of_span)
    print(f"{len(uploads)} uploads, {len(functions)} functions and {len(said['spans'])} spans have the same CPU time as in go tool pprof")


if __name__ == "__main__":
    main()
