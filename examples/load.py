"""Asks a service of this machine for the same few paths again and again, from two threads.

    python load.py http://127.0.0.1:8000 8 /summary/north /summary/south
"""

import itertools
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

CLIENTS = 2
AT_LEAST = 10  # Requests of each client, so that a busy machine has something to show too.


def ask(url: str, paths: list[str], first: int, until: float) -> int:
    """How many requests were answered; an error ends the program."""
    paths = paths[first % len(paths) :] + paths[: first % len(paths)]
    for count, path in enumerate(itertools.cycle(paths)):
        if count >= AT_LEAST and time.monotonic() >= until:
            return count
        with urllib.request.urlopen(url + path, timeout=30) as answer:
            answer.read()
    return 0


def main() -> None:
    """Prints how many requests were answered."""
    url, seconds, paths = sys.argv[1].rstrip("/"), float(sys.argv[2]), sys.argv[3:]
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        raise SystemExit(f"load.py: {url} is not on this machine")
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(CLIENTS) as pool:
        answered = [pool.submit(ask, url, paths, client, until) for client in range(CLIENTS)]
        print(f"{sum(one.result() for one in answered)} requests were answered")


if __name__ == "__main__":
    main()
