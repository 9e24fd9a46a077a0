"""How gunicorn runs `checkout`."""

import json
import os
from typing import Any

workers = 2
threads = 4
worker_class = "gthread"
preload_app = True  # checkout.py, and with it pyroscope.configure, runs before the workers are forked.
control_socket_disable = True  # Versions that have one put it into the home directory.


def worker_exit(server: Any, worker: Any) -> None:
    """Leaves what the worker's profiler did in the log: `ci/demo --check` reads it."""
    import pyroscope

    if worker.pid == os.getpid():
        pyroscope.shutdown()
        server.log.info("profiler of worker %d: %s", worker.pid, json.dumps(pyroscope.stats()))
