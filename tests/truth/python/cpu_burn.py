"""A program that burns a known amount of CPU time, to be compared with what its profiles show.

Each thread reads its own CPU clock, which starts at 0 with it, as the last thing before the interpreter lets go of it.

    python cpu_burn.py KIND --rate 100 --server file:///folder --records records.json
"""

import argparse
import hashlib
import json
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from truth_program import burn

MS = 1_000_000


class BurningThread(threading.Thread):
    """Reads its clock after all that `threading` does in it: with 1 ms a thread, that is some percent."""

    def __init__(self, burner: "Burner", body: Callable[[], None]) -> None:
        super().__init__(target=body)
        self._burner = burner

    def _bootstrap_inner(self) -> None:
        super()._bootstrap_inner()
        self._burner.ends()


class Burner:
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.burnt_ns = 0
        self._lock = threading.Lock()

    def short_threads(self, cpu_ns: int, count: int) -> None:
        """Threads that burn until they have used `cpu_ns`, four at a time."""

        def body() -> None:
            burn(cpu_ns - time.thread_time_ns())

        for _ in range(round(count * self.scale / 4)):
            self._at_once(body)

    def native_code(self, seconds: float) -> None:
        """Threads in zlib and hashlib, which release the GIL."""
        zeros, text = bytes(4 << 20), b"the same words again and again " * 8192

        def body() -> None:
            end = int(seconds * self.scale / 4 * 1e9)
            while time.thread_time_ns() < end:
                zlib.compress(text, 6)
                hashlib.sha256(zeros).digest()

        self._at_once(body)

    def ends(self) -> None:
        with self._lock:
            self.burnt_ns += time.thread_time_ns()

    def _at_once(self, body: Callable[[], None]) -> None:
        threads = [BurningThread(self, body) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def mix(burner: Burner) -> None:
    """Everything, in one process."""
    burner.short_threads(1 * MS, 3000)
    burner.short_threads(5 * MS, 1000)
    burner.short_threads(20 * MS, 300)
    burner.native_code(6)


KINDS: dict[str, Callable[[Burner], None]] = {
    "mix": mix,
    "1ms": lambda burner: burner.short_threads(1 * MS, 4000),
    "5ms": lambda burner: burner.short_threads(5 * MS, 800),
    "20ms": lambda burner: burner.short_threads(20 * MS, 200),
    "native": lambda burner: burner.native_code(4),
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    import pyroscope

    pyroscope.configure(application_name="burn", server_address=options.server, sample_rate=options.rate)
    counts = hasattr(pyroscope, "stats")
    burner = Burner(options.scale)
    main_began, process_began = time.thread_time_ns(), time.process_time_ns()
    KINDS[options.kind](burner)
    burner.burnt_ns += time.thread_time_ns() - main_began
    process_ns = time.process_time_ns() - process_began
    record: dict[str, object] = {"burnt_ns": burner.burnt_ns, "process_ns": process_ns}
    if counts:
        record["own_ns"] = pyroscope.stats()["own_cpu_ns"]
        pyroscope.flush(30)
        record["stats"] = pyroscope.stats()
    pyroscope.shutdown()
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
