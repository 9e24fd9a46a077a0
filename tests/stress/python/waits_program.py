"""A program that waits in all ways, as often as it can, while modules come and go, children are forked and signals interrupt it.

`waits_soak.py` runs this, with each of its waits as a sample, and judges its profiles.

    python waits_program.py --seconds 15 --seed 1 --server file:///folder --records records.json [--library module.so]
"""

import argparse
import faulthandler
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pyroscope
import waits_ended
import waits_modules
import waits_pairs
import waits_signals
import waits_tasks
import waits_work
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from pyroscope import _arguments
from pyroscope.otel import PyroscopeSpanProcessor

PAIRS, WORKERS = 2, 2
#: Seconds beyond twice its own that it may take.
PATIENCE = 90


def work_on(work: waits_work.Work, chance: random.Random) -> None:
    kinds = [*waits_work.KINDS, *waits_ended.KINDS, *([waits_modules.modules] if work.modules else [])]
    while not work.is_over():
        for kind in chance.sample(kinds, len(kinds)):
            kind(work, chance)


def run(options: argparse.Namespace, folder: str) -> dict:
    settings = {
        "application_name": "waits",
        "server_address": options.server,
        "wall_time": True,
        "every_wait": True,
        # What it would warn of, waits that were dropped, is in the table.
        "log_level": "error",
        # So that what is judged at a time is small.
        "upload_interval": 2,
    }
    if not _arguments.launch(settings):
        raise RuntimeError("the profiler did not start")
    # A logger takes all loggers' lock when it is first asked this, as each loop does of its own, and a fork holds that lock.
    logging.getLogger("asyncio").isEnabledFor(logging.DEBUG)
    provider = TracerProvider(resource=Resource({"service.name": "waits"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
    modules = waits_modules.copy_modules(options.library, folder) if options.library else []
    work = waits_work.Work(provider.get_tracer("waits"), folder, time.monotonic() + options.seconds, modules)
    chances = (random.Random(options.seed * 1000 + number) for number in range(100))
    is_over, is_calm = threading.Event(), threading.Event()
    jobs: list[tuple] = [(work_on, work, next(chances)) for _ in range(WORKERS)]
    for _ in range(PAIRS):
        pair = waits_pairs.Pair()
        jobs += [(waits_pairs.lead, work, pair, next(chances)), (waits_pairs.follow, work, pair)]
    jobs.append((waits_tasks.loops, work, next(chances)))
    handlers = waits_signals.Handlers(work)
    threads = [threading.Thread(target=live, args=(is_calm, *job)) for job in jobs]
    for thread in threads:
        thread.start()
    targets = [threading.get_ident(), *(thread.ident or 0 for thread in threads)]
    disturber = threading.Thread(target=waits_signals.disturb, args=(is_over, targets, next(chances)))
    disturber.start()
    waits_signals.interrupt(work, next(chances))
    is_over.set()
    disturber.join()
    is_calm.set()
    for thread in threads:
        thread.join()
    if not pyroscope.flush(60):
        raise RuntimeError("the profiles were not written")
    return {"pid": os.getpid(), "stats": pyroscope.stats(), "handled": handlers.count}


def live(is_calm: threading.Event, job: Callable[..., None], *arguments: object) -> None:
    """Does it, and is there until nobody sends signals any more."""
    job(*arguments)
    is_calm.wait()


def end(raised: threading.ExceptHookArgs) -> None:
    """Others wait for a thread that failed."""
    threading.__excepthook__(raised)
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--library", default="")
    options = parser.parse_args()
    # Who hangs says where, and what it has forked ends with it.
    os.setpgid(0, 0)
    options.records.with_suffix(".group").write_text(str(os.getpid()))
    faulthandler.dump_traceback_later(options.seconds * 2 + PATIENCE, exit=True)
    # Of forks beside threads, which is what this is about.
    warnings.simplefilter("ignore")
    sys.setswitchinterval(0.0005)
    # Names of hosts need a module that is read when the first one is.
    "localhost".encode("idna")
    threading.excepthook = end
    with tempfile.TemporaryDirectory() as folder:
        try:
            options.records.write_text(json.dumps(run(options, folder)))
        except BaseException:
            traceback.print_exc()
            os._exit(1)


if __name__ == "__main__":
    main()
