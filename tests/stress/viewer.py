"""Attacks a running viewer by each of its doors, with senders and readers that mean well beside, and watches it.

Attacks multiply, nest, lie, wait and hang up; each is drawn from a seeded generator. Now and then the viewer is killed
and started again on its file. Memory must stay within --memory, /ready and a push that means well must be answered soon,
and what was stored must be shown or counted as forgotten. Prints one table; ends with code 1 if something is not as it
must be.
"""

import argparse
import collections
import gzip
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

RECORDING = gzip.decompress(pathlib.Path(__file__).parents[2].joinpath("viewer/tests/java/async-profiler.jfr.gz").read_bytes())
PERIOD = 10_000_000
PUSH = "/push.v1.PusherService/Push"
# Each door of protobuf takes this name for it.
PACKED = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}


def varint(number):
    out = bytearray()
    number &= (1 << 64) - 1
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def fixed(field, value):
    return varint(field << 3 | 1) + value.to_bytes(8, "little")


def text(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


class Profile:
    """A pprof of CPU time, one string table, functions, locations and samples."""

    def __init__(self):
        self.strings, self.rest = [""], []
        kind = number(1, self.string("cpu")) + number(2, self.string("nanoseconds"))
        self.rest += [text(1, kind), text(11, kind), number(12, PERIOD), number(9, time.time_ns())]

    def string(self, value):
        self.strings.append(value)
        return len(self.strings) - 1

    def function(self, index, name, file=0):
        self.rest.append(text(5, number(1, index) + number(2, name) + number(4, file)))
        self.rest.append(text(4, number(1, index) + text(4, number(1, index) + number(2, 1))))

    def sample(self, locations, labels=(), value=PERIOD):
        packed = b"".join(varint(location) for location in locations)
        labels = b"".join(text(3, number(1, key) + number(2, text_)) for key, text_ in labels)
        self.rest.append(text(2, text(1, packed) + text(2, varint(value)) + labels))

    def bytes(self):
        return b"".join(self.rest) + b"".join(text(6, string) for string in self.strings)


def push(profile, service, identity=""):
    pairs = (("__name__", "process_cpu"), ("service_name", service))
    labels = b"".join(text(1, text(1, name) + text(2, value)) for name, value in pairs)
    raw = text(2, text(1, gzip.compress(profile, 1)) + text(2, identity))
    return PUSH, PACKED, gzip.compress(text(1, labels + raw), 1)


def honest(count):
    profile = Profile()
    for index, name in enumerate(["main", "handler", f"work {count % 50}"], 1):
        profile.function(index, profile.string(name))
    profile.sample([3, 2, 1])
    return push(profile.bytes(), "honest", f"honest-{os.getpid()}-{count}")


def attribute(key, value):
    return text(1, key) + text(2, value)


def traces(service, spans):
    resource = text(1, attribute("service.name", text(1, service)))
    body = text(1, text(1, resource) + text(2, b"".join(text(2, span) for span in spans)))
    return "/v1/traces", PACKED, gzip.compress(body, 1)


def span(dice, more=b"", start=None, end=None):
    start = start if start is not None else time.time_ns()
    ids = text(1, dice.randbytes(16)) + text(2, dice.randbytes(8))
    times = fixed(7, start) + fixed(8, end if end is not None else start + 5)
    return ids + text(5, f"GET /{dice.randrange(20)}") + times + more


def same_names(dice):
    profile, size = Profile(), dice.choice([100, 4_096, 1 << 20])
    name = profile.string("n" * size)
    functions = dice.randrange(1_000, 30_000)
    for index in range(1, functions):
        profile.function(index, name, name)
    profile.sample(range(1, min(functions, 900)))
    return push(profile.bytes(), f"names {dice.randrange(9)}")


def many_labels(dice):
    profile = Profile()
    profile.function(1, profile.string("main"))
    value = profile.string("v" * dice.choice([10, 2_000]))
    keys = [profile.string(f"key {n}") for n in range(25)]
    for n in range(dice.randrange(100, 5_000)):
        profile.sample([1], [(key, value) for key in keys] + [(profile.string("own"), profile.string(str(n)))])
    return push(profile.bytes(), "labels")


def packed_numbers(dice):
    profile = Profile()
    profile.function(1, profile.string("main"))
    profile.sample([1] * dice.randrange(1 << 20, 12 << 20))
    return push(profile.bytes(), "packed")


def churn(dice):
    profile, index = Profile(), 0
    for _ in range(200):
        stack = []
        for _ in range(dice.randrange(5, 40)):
            index += 1
            profile.function(index, profile.string(f"f{dice.randrange(1 << 40)}"))
            stack.append(index)
        profile.sample(stack, value=dice.choice([PERIOD, 1 << 53]))
    return push(profile.bytes(), f"churn {dice.randrange(5)}")


def other_service(dice):
    profile = Profile()
    profile.function(1, profile.string("main"))
    profile.sample([1], [(profile.string("service_name"), profile.string("honest"))])
    return push(profile.bytes(), "attacker")


def bomb(dice):
    kind = dice.choice([b";", b"a;", b"a 1\n", b"\0", b"{", b'{"series":[', b"[["])
    body = gzip.compress(kind * (dice.randrange(1 << 20, 60 << 20) // len(kind)), 1)
    ingest = ["/ingest?name=bomb", "/ingest?name=bomb&format=lines"]
    door = dice.choice([*ingest, PUSH, "/v1/traces", "/v1development/profiles"])
    headers = {"content-encoding": "gzip", "content-type": dice.choice(["application/json", "application/x-protobuf"])}
    return door, headers, body


def shared_stack(dice):
    strings = ["", "cpu", "nanoseconds", "work", *map(str, range(dice.choice([0, 50_000])))]
    stack = text(7, b"") + text(7, text(1, b"\1" * dice.choice([10, 1_000, 100_000])))
    tables = stack + text(3, b"") + text(3, number(1, 3)) + text(2, b"") + text(2, text(3, number(1, 1)))
    tables += b"".join(text(5, string) for string in strings)
    sample = text(2, number(1, 1) + text(4, varint(PERIOD)))
    profiles, samples = dice.choice([(1, 50_000), (2_000, 1), (50, 100), (20_000, 1)])
    kind = number(1, 1) + number(2, 2)
    profile = text(2, text(1, kind) + text(5, kind) + number(6, PERIOD) + fixed(3, time.time_ns()) + sample * samples)
    body = gzip.compress(text(1, text(2, profile * profiles)) + text(2, tables), 1)
    return "/v1development/profiles", PACKED, body


def nested(dice):
    value, depth = number(2, 1), dice.choice([10, 90, 3_000])
    for _ in range(depth):
        value = text(5, text(1, value))
    wide = text(5, text(1, number(2, 1)) * dice.choice([10, 500_000]))
    more = text(9, attribute("a", dice.choice([value, wide])))
    more += text(13, text(4, b"") * dice.choice([0, 300_000]))
    return traces("nested", [span(dice, more)])


def long_service(dice):
    return traces("s" * dice.choice([3_000, 1 << 20]), [span(dice) for _ in range(dice.randrange(10, 5_000))])


def lying_times(dice):
    ends = [0, (1 << 63) - 1, (1 << 64) - 1, time.time_ns() + 3_600_000_000_000]
    starts = [0, time.time_ns(), (1 << 63) - 1]
    return traces("liar", [span(dice, start=dice.choice(starts), end=dice.choice(ends)) for _ in range(500)])


def long_attributes(dice):
    attributes = b"".join(text(9, attribute(str(n), text(1, dice.choice(["\1", "x"]) * 4_096))) for n in range(100))
    return traces("attributes", [span(dice, attributes) for _ in range(20)])


def recording(dice):
    """What async-profiler wrote, many times over, with a few bytes changed."""
    chunks = bytearray(RECORDING)
    for _ in range(dice.choice([0, 1, 8])):
        chunks[dice.randrange(len(chunks))] = dice.randrange(256)
    body = gzip.compress(bytes(chunks) * dice.choice([1, 20, 100]), 1)
    return f"/ingest?name=recording{dice.randrange(9)}&format=jfr&from={int(time.time())}", {}, body


def garbage(dice):
    path, headers, body = dice.choice([honest, lambda _: other_service(dice)])(dice.randrange(1 << 30) + (1 << 40))
    body = bytearray(body)
    for _ in range(dice.randrange(1, 9)):
        body[dice.randrange(len(body))] = dice.randrange(256)
    return path, headers, bytes(body[: dice.randrange(1, len(body) + 1)])


UPLOADS = [same_names, many_labels, packed_numbers, churn, churn, other_service, bomb, bomb, shared_stack, nested]
UPLOADS += [long_service, lying_times, long_attributes, recording, garbage]
KIND = "process_cpu%3Acpu%3Ananoseconds%3Acpu%3Ananoseconds"
SHOWN = ["api/flame", "api/diff", "api/top", "flame", "folded", "flame.svg", "profile.pb.gz"]
QUESTIONS = [f"/{path}?since=all" for path in SHOWN]
QUESTIONS += ["/", "/metrics", "/api/services", "/api/spans?service=liar&since=all"]
QUESTIONS += [f"/pyroscope/render?query={KIND}%7Ba%3D~%60.%7B9999%7D%60%7D", f"/pyroscope/render?query={KIND}%7B%7D"]
QUESTIONS += ["/api/flame?" + "&".join(f"attr.{n}=1" for n in range(1_200))]
QUESTIONS += ["/tenant/evil{}/ingest", "/tenant/evil{}/api/services"]


def frame(kind, flags, stream, payload):
    """One of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def asked(path, count=0):
    """A question over HTTP/2, after so many on its connection."""
    path = path.encode()
    return frame(1, 5, 2 * count + 1, b"\x82\x86\x04" + bytes([len(path)]) + path + b"\x01\x09localhost")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A window of 0 for answers, then a question.
NEVER_TAKEN = PREFACE + frame(4, 0, 0, b"\0\4" + bytes(4)) + asked("/api/services")
POSTED = f"POST {PUSH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n".encode()
READY = b"GET /ready HTTP/1.1\r\nhost: localhost\r\n"
HEAVY = b"GET /api/diff?since=all HTTP/1.1\r\nhost: localhost\r\n\r\n"
# What connections that take places begin with, and what they send twice a second after that: bodies that never come, or by
# bytes, heads, answers that may not be sent, with and without pings or a byte of window, small and large questions, and
# small ones of who answers no ping.
SLOW = [(POSTED, b""), (POSTED, b"x"), (READY + b"x: ", b"x"), (NEVER_TAKEN, b""), (b"", READY + b"\r\n"), (HEAVY, HEAVY)]
SLOW += [(NEVER_TAKEN, frame(6, 0, 0, bytes(8))), (NEVER_TAKEN, frame(8, 0, 1, b"\0\0\0\1"))]
SLOW += [(PREFACE + frame(4, 0, 0, b""), lambda count: asked("/ready", count))]
# How long they are there, and how long not.
CROWDED = 8
# Bodies that arrive slowly at the same time.
TRICKLES = 40
# A push that took so many seconds is told of by itself, among the details.
SLOW_PUSH = 0.7


class Viewer:
    """The program, which may be killed and started again."""

    def __init__(self, program, memory, folder):
        listen = ["--listen", "127.0.0.1:0", "--listen-otlp", "none", "--listen-grpc", "none"]
        self.command = [program, *listen, "--memory", f"{memory}m", "--data", os.path.join(folder, "spanprof.db")]
        self.starts, self.deaths, self.peak, self.started = 0, 0, 0, []
        self.lock = threading.Lock()
        # Other processes ask too.
        self.shared_port = multiprocessing.Value("i", 0)
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.shared_port.value = int(self.process.stdout.readline().rsplit(":", 1)[1])
        self.starts += 1
        self.started.append(time.monotonic())

    @property
    def port(self):
        return self.shared_port.value

    def watch(self):
        """Its resident memory in KiB; one that ended by itself is counted and started again."""
        with self.lock:
            if self.process.poll() is not None:
                self.deaths += 1
                self.start()
            try:
                with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
                    peak = next((line for line in status if line.startswith("VmHWM")), "VmHWM: 0 kB")
            except OSError:
                return
            self.peak = max(self.peak, int(peak.split()[1]))

    def kill(self):
        with self.lock:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.start()

    def ask(self, path, headers=None, body=None, timeout=30.0, address="127.0.0.1"):
        """The status and the body; 0 if no answer came. It is asked from an address."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout, source_address=(address, 0))
        try:
            connection.request("GET" if body is None else "POST", path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)


def is_closed(stream):
    """Whether its other end closed it; what else came is thrown away."""
    try:
        while stream.recv(1 << 16):
            pass
        return True
    except BlockingIOError:
        return False


class Soak:
    """Threads that do one thing each until the time is over."""

    def __init__(self, viewer, seed, seconds):
        self.viewer, self.seed, self.until = viewer, seed, time.monotonic() + seconds
        self.statuses = collections.Counter()
        self.crowd = {}

    def each(self, act, name, pause=0.0):
        dice = random.Random(f"{self.seed} {name}")

        def run():
            while time.monotonic() < self.until:
                try:
                    act(dice)
                except OSError:
                    pass  # a kill, or a connection that was refused
                time.sleep(pause)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def upload(self, dice):
        make = dice.choice(UPLOADS)
        path, headers, body = make(dice)
        if dice.random() < 0.1:
            path = f"/tenant/evil{dice.randrange(40)}{path}" if make is garbage else path
        status, _ = self.viewer.ask(path, headers, body, timeout=dice.choice([0.1, 30, 30]))
        self.statuses[make.__name__, status] += 1

    def question(self, dice):
        status, _ = self.viewer.ask(dice.choice(QUESTIONS).format(dice.randrange(99)), timeout=dice.choice([0.2, 30]))
        self.statuses["question", status] += 1

    def slow_sender(self, dice):
        with self.viewer.connect() as stream:
            stream.sendall(f"POST {PUSH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 15000000\r\n\r\n".encode())
            stream.sendall(bytes(dice.choice([1, 1 << 20, 14 << 20])))
            for _ in range(dice.randrange(20)):
                time.sleep(0.1)
                stream.sendall(b"x")

    def trickle(self, dice):
        """Most of a large body at once, and the rest just above the least rate."""
        with self.viewer.connect() as stream:
            stream.sendall(f"POST {PUSH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 15000000\r\n\r\n".encode())
            stream.sendall(bytes(dice.choice([1 << 20, 8 << 20, 11 << 20])))
            for _ in range(min(100, int(10 * (self.until - time.monotonic())))):
                time.sleep(0.1)
                stream.sendall(bytes(1_331))

    def small_trickles(self, dice):
        """Many bodies that are just small, nearly all of each at once, and the rest just above the least rate."""
        size = 256 << 10
        head = f"POST {PUSH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n".encode()
        streams = []
        try:
            for _ in range(TRICKLES):
                streams.append(self.viewer.connect())
                streams[-1].settimeout(0)
            left = {stream: head + bytes(240 << 10) for stream in streams}
            for _ in range(min(dice.randrange(20, 60), int(4 * (self.until - time.monotonic())))):
                for stream, rest in list(left.items()):
                    try:
                        sent = stream.send(rest)
                        left[stream] = rest[sent:] or bytes(400)
                    except BlockingIOError:
                        pass
                    except OSError:
                        del left[stream]
                time.sleep(0.25)
        finally:
            for stream in streams:
                stream.close()

    def many_questions(self, dice):
        """As many as may wait for their turn, on two connections."""
        with self.viewer.connect() as one, self.viewer.connect() as other:
            for stream in (one, other):
                questions = (asked(f"/api/diff?since={dice.choice(['all', '1h'])}", count) for count in range(20))
                stream.sendall(PREFACE + frame(4, 0, 0, b"") + b"".join(questions))
            for stream in (one, other):
                stream.settimeout(2)
                while stream.recv(1 << 16):
                    pass

    def half_head(self, dice):
        with self.viewer.connect() as stream:
            stream.sendall(dice.choice([b"", b"GET ", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\nhost: localhost\r\n"]))
            time.sleep(dice.random() * 3)

    def crowds(self, dice, places):
        """More connections than there are places, of which each moves next to nothing; one that is closed comes again."""
        is_time = int(self.until - time.monotonic()) // CROWDED % 2 == 0
        for place in range(places):
            stream, again, count = self.crowd.pop(place, (None, b"", 0))
            try:
                if not is_time:
                    raise OSError
                if stream is None:
                    (first, again), count = dice.choice(SLOW), 0
                    stream = self.viewer.connect()
                    stream.settimeout(0)
                    stream.sendall(first)
                elif is_closed(stream):
                    raise OSError
                else:
                    stream.sendall(again(count) if callable(again) else again)
                    count += 1
                self.crowd[place] = stream, again, count
            except OSError:
                if stream is not None:
                    stream.close()

    def slow_reader(self, dice):
        with self.viewer.connect() as stream:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            stream.sendall(b"GET /folded?since=all HTTP/1.1\r\nhost: localhost\r\n\r\n")
            for _ in range(dice.randrange(30)):
                time.sleep(0.1)
                stream.recv(100)


class Witness:
    """One who means well, in a process of its own, so that what attackers do in theirs keeps it from nothing."""

    def __init__(self, viewer, until, act, pause):
        self.viewer, self.until, self.pause = viewer, until, pause
        self.took, self.late, self.sent, self.acknowledged, self.refused, self.silent = [], [], 0, 0, 0, 0
        self.full, self.busy, self.slow = 0, 0, []
        context = multiprocessing.get_context("fork")
        self.answers, answers = context.Pipe(duplex=False)
        self.process = context.Process(target=self.run, args=(act, answers), daemon=True)
        self.process.start()
        answers.close()

    def run(self, act, answers):
        while time.monotonic() < self.until:
            act(self)
            start = time.monotonic()
            time.sleep(self.pause)
            # What this process itself had to wait for a core.
            self.late.append(time.monotonic() - start - self.pause)
        numbers = self.sent, self.acknowledged, self.refused, self.silent, self.full, self.busy
        answers.send((self.took, self.late, self.slow, *numbers))

    def end(self):
        self.took, self.late, self.slow, *numbers = self.answers.recv()
        self.sent, self.acknowledged, self.refused, self.silent, self.full, self.busy = numbers
        self.process.join()

    def ready(self):
        start = time.monotonic()
        status, _ = self.viewer.ask("/ready", timeout=10)
        took = time.monotonic() - start
        if status == 200:
            self.took.append(took)
        # One that is killed answers nothing, but at once.
        self.refused += 1 if status not in (0, 200) else 0
        self.silent += 1 if status == 0 and took > 5 else 0

    def question(self):
        # From an address that has no other question.
        status, sentence = self.viewer.ask("/api/services", address="127.0.0.2")
        self.acknowledged += status == 200
        self.busy += status == 503
        self.full += status == 503 and b"questions wait" in sentence

    def push(self):
        path, headers, body = honest(self.sent)
        self.sent += 1
        start = time.monotonic()
        while time.monotonic() < self.until + 30:
            first = time.monotonic()
            status, _ = self.viewer.ask(path, headers, body)
            if status:
                self.took.append(time.monotonic() - first)
                if self.took[-1] > SLOW_PUSH:
                    self.slow.append((first, self.took[-1]))
            if status == 200:
                self.acknowledged += 1
                return
            self.refused += 1 if status else 0
            self.silent += 1 if status == 0 and time.monotonic() - first > 5 else 0
            time.sleep(0.2)
        print(f"a push that means well was not taken within {time.monotonic() - start:.0f} s", file=sys.stderr)


def lose(viewer, times, seed):
    """Kills the viewer in the middle of pushes, as often as said. Each push is sent until it is acknowledged, and every
    other one once more after that. Returns how many were acknowledged, lost, and stored twice."""
    dice, acknowledged, stop = random.Random(seed), set(), threading.Event()

    def send(sender):
        count = 0
        while not stop.is_set():
            path, headers, body = honest(sender * 1_000_000 + count)
            # Every other one once more, as a sender does that the answer did not reach.
            for _ in range(1 + count % 2):
                while viewer.ask(path, headers, body, timeout=5)[0] != 200:
                    time.sleep(0.01)
            acknowledged.add((sender, count))
            count += 1

    senders = [threading.Thread(target=send, args=(sender,)) for sender in range(3)]
    for sender in senders:
        sender.start()
    for _ in range(times):
        time.sleep(dice.random() * 0.3)
        viewer.kill()
    stop.set()
    for sender in senders:
        sender.join()
    kept = stored(viewer).get("honest", 0)
    return len(acknowledged), max(0, len(acknowledged) - kept), max(0, kept - len(acknowledged))


def metrics(viewer):
    rows = viewer.ask("/metrics")[1].decode().splitlines()
    return {row.rsplit(" ", 1)[0]: int(row.rsplit(" ", 1)[1]) for row in rows if row and row[0] != "#"}


def stored(viewer):
    services = json.loads(viewer.ask("/api/services?since=all")[1])["services"]
    return {row["service"]: row["profiles"] for row in services}


def settled(viewer):
    """How many profiles it forgot since it started, and those that it has, at an instant at which it forgets none."""

    def forgotten():
        gone = 'spanprof_forgotten_total{what="profiles"'
        return sum(value for name, value in metrics(viewer).items() if name.startswith(gone))

    for _ in range(1_000):
        before, left = forgotten(), stored(viewer)
        if forgotten() == before:
            return before, left
    raise RuntimeError("it forgets for ever")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--memory", type=int, default=128, help="MiB")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=float, default=15, help="seconds between two; 0 for none")
    parser.add_argument("--in-time", action="store_true", help="late and missing answers are wrong, on a machine of its own")
    parser.add_argument("--lose", type=int, default=0, help="instead, kill it so often while profiles are pushed")
    arguments = parser.parse_args()
    if arguments.lose:
        with tempfile.TemporaryDirectory() as folder:
            viewer = Viewer(arguments.program, arguments.memory, folder)
            row = lose(viewer, arguments.lose, arguments.seed)
            forgotten = sum(value for name, value in metrics(viewer).items() if name.startswith("spanprof_forgotten"))
            viewer.process.kill()
            viewer.process.wait()
        print("".join(f"{name:>14}" for name in ("kills", "acknowledged", "lost", "doubles", "forgotten")))
        print("".join(f"{value:>14}" for value in (arguments.lose, *row, forgotten)))
        return 1 if row[1] or row[2] or forgotten or not row[0] else 0
    with tempfile.TemporaryDirectory() as folder:
        viewer = Viewer(arguments.program, arguments.memory, folder)
        soak = Soak(viewer, arguments.seed, arguments.seconds)
        # Before there are threads, as they are forked.
        probe = Witness(viewer, soak.until, Witness.ready, 0.05)
        sender = Witness(viewer, soak.until, Witness.push, 0.1)
        reader = Witness(viewer, soak.until, Witness.question, 0.1)
        threads = [soak.each(soak.upload, f"upload {n}") for n in range(6)]
        threads += [soak.each(soak.question, f"question {n}") for n in range(4)]
        threads += [soak.each(soak.slow_sender, f"slow {n}") for n in range(8)]
        threads += [soak.each(soak.trickle, f"trickle {n}") for n in range(2)]
        threads.append(soak.each(soak.small_trickles, "small trickles"))
        threads.append(soak.each(soak.many_questions, "many questions"))
        threads += [soak.each(soak.half_head, f"half {n}") for n in range(8)]
        threads += [soak.each(soak.slow_reader, f"reader {n}") for n in range(4)]
        places = min(arguments.memory * 5 // 4, 800)
        threads.append(soak.each(lambda dice: soak.crowds(dice, places), "crowd", pause=0.5))
        killed = time.monotonic()
        while time.monotonic() < soak.until:
            viewer.watch()
            if arguments.kills and time.monotonic() - killed > arguments.kills:
                viewer.kill()
                killed = time.monotonic()
            time.sleep(0.02)
        for thread in threads:
            thread.join(40)
        probe.end()
        sender.end()
        reader.end()
        viewer.watch()
        # What the last process found, took in and forgot; the file says what is left.
        viewer.process.send_signal(signal.SIGTERM)
        viewer.process.wait()
        viewer.start()
        forgotten_before, stored_before = settled(viewer)
        twice = [honest(sender.sent + count) for count in range(20)]
        for path, headers, body in twice * 2:
            viewer.ask(path, headers, body)
        forgotten_after, left = settled(viewer)
        counted = metrics(viewer)
        added, repeated = counted["spanprof_profiles_stored_total"], counted["spanprof_profiles_repeated_total"]
        viewer.process.kill()
        viewer.process.wait()

    def millis(values, part):
        return sorted(values)[int(len(values) * part)] * 1_000 if values else 0.0

    if os.environ.get("SOAK_DETAILS"):
        for (name, status), count in sorted(soak.statuses.items()):
            print(f"{name:<16}{status:>5}{count:>8}")
        for first, took in sender.slow:
            start = max(at for at in viewer.started if at <= first)
            sent = f"{first - viewer.started[0]:.1f} s after the first start, {first - start:.1f} s after the last"
            print(f"a push took {took:.3f} s, sent {sent}")
    row = {
        "peak MiB": viewer.peak / 1024,
        "of": arguments.memory,
        "ready p99": millis(probe.took, 0.99),
        "ready max": millis(probe.took, 1 - 1e-9),
        "push p99": millis(sender.took, 0.99),
        "push max": millis(sender.took, 1 - 1e-9),
        "unready": probe.refused,
        "late max": millis(probe.late + sender.late, 1 - 1e-9),
        "honest": sender.acknowledged,
        "refused": sender.refused,
        "asked": reader.acknowledged,
        "busy": reader.busy,
        "stored": left.get("honest", 0),
        "kills": viewer.starts - 2 - viewer.deaths,
        "deaths": viewer.deaths,
    }
    print("".join(f"{name:>11}" for name in row))
    print("".join(f"{value:>11.0f}" for value in row.values()))
    wrong = []
    if viewer.peak > arguments.memory << 10:
        wrong.append(f"{viewer.peak} KiB were resident")
    if viewer.deaths:
        wrong.append("it ended by itself")
    late = row["late max"]
    if arguments.in_time:
        for what, most in (("ready p99", 100), ("push p99", 2_000)):
            if row[what] > most + late:
                wrong.append(f"{what} is {row[what]:.0f} ms, and no process waited longer than {late:.0f} ms for a core")
        if probe.refused > 0.05 * len(probe.took):
            wrong.append(f"/ready was refused {probe.refused} times of {probe.refused + len(probe.took)}")
        if probe.silent + sender.silent:
            wrong.append(f"{probe.silent} times /ready and {sender.silent} pushes that mean well had no answer")
    if reader.full:
        wrong.append(f"{reader.full} questions of one who asked one at a time were not let wait")
    if not reader.acknowledged:
        wrong.append("no question of one who asks one at a time was answered")
    if not sender.acknowledged:
        wrong.append("no push that means well was taken")
    if left.get("honest", 0) > sender.sent + 20:
        wrong.append(f"{left['honest']} profiles are stored of {sender.sent + 20} that were sent")
    if (added, repeated) != (20, 20):
        wrong.append(f"of 20 profiles that were sent twice {added} were stored and {repeated} known")
    before, forgotten = sum(stored_before.values()), forgotten_after - forgotten_before
    if before + added != sum(left.values()) + forgotten:
        wrong.append(f"{before} profiles and {added} more are {sum(left.values())} and {forgotten} forgotten")
    for sentence in wrong:
        print(f"wrong: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
