"""HTTP load on both services: a fixed mix from four clients, for a fixed time.

    python load.py --checkout http://127.0.0.1:8001 --search http://127.0.0.1:8002 --seconds 25
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

# What a client sends, in turn.
CHECKOUT = ["/cart", "/coupon", "/export", "/offer", "/cart", "/coupon", "/health", "/offer"]
SEARCH = ["/suggest", "/documents", "/suggest", "/health", "/documents", "/suggest"]
WORDS = ["lmap", "chiar", "tabel", "shef", "spon", "glvoe", "scraf", "plaet"]
PACE = 0.12  # Seconds from one request's start to the next: about one core for both services.


def request(path: str, chance: random.Random) -> tuple[str, str, str | None]:
    """Method, path and body."""
    match path:
        case "/cart" | "/offer":
            return "GET", f"{path}/{chance.randrange(500)}", None
        case "/coupon":
            code = "".join(chance.choice("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789") for _ in range(18))
            return "POST", path, json.dumps({"code": code + "."})
        case "/suggest" | "/documents":
            return "GET", f"{path}?word={chance.choice(WORDS)}", None
        case _:
            return "GET", path, None


class Client(threading.Thread):
    """Sends one request after the other."""

    def __init__(self, url: str, paths: list[str], seed: int, until: float) -> None:
        super().__init__()
        parts = urlsplit(url)
        if parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise SystemExit(f"load.py: {url} is not on this machine")
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        self.paths = paths[seed % len(paths) :] + paths[: seed % len(paths)]
        self.chance = random.Random(seed)
        self.until = until
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self) -> None:
        """Keeps its pace, and does not catch up when an answer was late."""
        turn = 0
        while (start := time.monotonic()) < self.until:
            self.send(self.paths[turn % len(self.paths)])
            turn += 1
            if turn % 4 == 0:
                self.connection.close()  # The next one goes to whichever worker takes it.
            time.sleep(max(0.0, start + PACE - time.monotonic()))
        self.connection.close()

    def send(self, path: str) -> None:
        """Sends one request and counts it."""
        method, target, body = request(path, self.chance)
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            self.connection.request(method, target, body, headers)
            answer = self.connection.getresponse()
            answer.read()
            if answer.status != 200:
                self.failures.append(f"{method} {target}: {answer.status}")
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(f"{method} {target}: {error!r}")
            self.connection.close()
        self.counts[path] += 1


def main() -> int:
    """Prints how many requests of each path were sent; fails if any failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", required=True, metavar="URL")
    parser.add_argument("--search", required=True, metavar="URL")
    parser.add_argument("--seconds", type=float, default=25.0)
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    clients = [Client(arguments.checkout, CHECKOUT, seed, until) for seed in (0, 3)]
    clients += [Client(arguments.search, SEARCH, seed, until) for seed in (0, 1)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    counts = sum((client.counts for client in clients), Counter())
    failures = [failure for client in clients for failure in client.failures]
    print(f"{counts.total()} requests:", ", ".join(f"{count} {path}" for path, count in counts.most_common()))
    for failure in failures[:10]:
        print("failed:", failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
