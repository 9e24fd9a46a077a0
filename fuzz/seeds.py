"""Writes what the viewer's fuzz targets begin with: each attack of tests/stress/viewer.py, as small as it can be drawn, and the
recordings that real Java clients sent.

The first argument is the folder that has a folder corpus-TARGET for each target.
"""

import gzip
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "stress"), str(ROOT / "tests" / "clients" / "java")]
import client
import viewer

# What is larger slows the fuzzer down and has nothing in it that a smaller one has not.
MOST = 64 << 10
# The number in front of a request's bytes, see receive/properties.rs.
TRACES, PROFILES, PUSH, JSON = 0, 2, 4, 1
DOORS = {"/v1/traces": TRACES, "/v1development/profiles": PROFILES, viewer.PUSH: PUSH}
LINES = [
    "name=shop{region=eu}&units=samples&sampleRate=100&from=1&until=2&format=folded\nmain;work 3\nmain 1\n",
    "name=shop&format=lines\nmain;work\nmain;work\n",
    "name=process_cpu{service_name=victim}&spyName=gospy&aggregationType=sum\nmain 9223372036854775807\nmain 1\n",
]
REQUESTS = [
    (TRACES, '{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]},"scopeSpans":'
     '[{"spans":[{"traceId":"0102030405060708090a0b0c0d0e0f10","spanId":"0102030405060708","name":"GET /",'
     '"startTimeUnixNano":"1","endTimeUnixNano":"5"}]}]}]}'),
    (PUSH, '{"series":[{"labels":[{"name":"service_name","value":"shop"}],"samples":[{"rawProfile":"AAAA","ID":"1"}]}]}'),
]


class Least:
    """Dice that always fall on the smallest number, the first of a choice or the shortest."""

    def choice(self, choices):
        return min(choices, key=lambda one: one if isinstance(one, int) else len(one) if isinstance(one, bytes) else 0)

    def randrange(self, start, stop=None):
        return 0 if stop is None else start

    def randbytes(self, length):
        return bytes(range(1, length + 1))

    def random(self):
        return 0.0


def field(message, wanted):
    """The first bytes of so many a field of a message that viewer.py wrote, which has such fields only."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key, size = varint(), varint()
        if key >> 3 == wanted:
            return message[at : at + size]
        at += size
    raise ValueError(f"no field {wanted}")


def seeds():
    for door, text in REQUESTS:
        yield "request", bytes([door | JSON]) + text.encode()
    for text in LINES:
        yield "ingested", text.encode()
    for attack in dict.fromkeys(viewer.UPLOADS):
        if attack in (viewer.garbage, viewer.bomb, viewer.recording):
            continue  # Of two of these nothing is left when they are small, and recordings come below.
        door, _, packed = attack(Least())
        body = gzip.decompress(packed)
        yield "request", bytes([DOORS[door]]) + body
        if door == viewer.PUSH:
            yield "profile", gzip.decompress(field(field(field(body, 1), 2), 1))
    yield "request", bytes([PUSH]) + gzip.decompress(viewer.honest(0)[2])
    for path in sorted((ROOT / "viewer" / "tests" / "java").glob("*.upload")):
        _, content_type, body = path.read_bytes().split(b"\n", 2)
        form = client.parts(content_type.decode(), body)
        yield "recording", len(form["labels"]).to_bytes(2, "big") + form["labels"] + form["jfr"]


def main(folder):
    written = 0
    for number, (target, data) in enumerate(seeds()):
        if len(data) <= MOST:
            place = folder / f"corpus-viewer-{target}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"seed-{number}").write_bytes(data)
            written += 1
    print(f"{written} seeds")


main(pathlib.Path(sys.argv[1]))
