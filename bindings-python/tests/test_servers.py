"""Servers with workers: each process profiles, what it sampled arrives once, and all of it, also at the end."""

import pathlib
import sys

import pytest
from serving import WORKERS


def is_asleep(pid: int) -> bool:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def script(name: str) -> pathlib.Path:
    return pathlib.Path(sys.executable).with_name(name)


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "no preload"])
@pytest.mark.parametrize("kind", ["sync", "gthread", "uvicorn.workers.UvicornWorker"])
def test_gunicorn(served, kind, preload):
    program = "asgi:application" if "uvicorn" in kind else "wsgi:application"
    options = ["--preload"] if preload else []
    if kind == "gthread":
        options += ["--threads", "2"]
    served.start(
        *(sys.executable, "-W", "ignore", "-m", "gunicorn", "--bind", f"unix:{served.listens}", "--worker-class", kind),
        *("--workers", WORKERS, "--no-control-socket", *options, program),
    )
    served.ask_until_all_answered()
    served.end()
    served.check(served.answered, loaders=1 if preload else WORKERS)


@pytest.mark.parametrize("workers", [1, WORKERS])
def test_uvicorn(served, workers):
    """It ends by the signal that it got, past atexit."""
    served.start(
        *(sys.executable, "-m", "uvicorn", "--uds", served.listens, "--workers", workers, "asgi:application"),
    )
    served.ask_until_all_answered(workers)
    served.end()
    served.check(served.answered, loaders=workers)


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "no threads"])
@pytest.mark.parametrize("preload", [True, False], ids=["preload", "lazy apps"])
def test_uwsgi(served, preload, threads):
    pytest.importorskip("pyuwsgi", reason="pyuwsgi has no wheel for this Python")
    options = [] if preload else ["--lazy-apps"]
    options += ["--enable-threads"] if threads else []
    served.start(
        *(script("pyuwsgi"), "--master", "--die-on-term", "--http-socket", served.listens, "--processes", WORKERS),
        *("--module", "wsgi:application", "--virtualenv", sys.prefix, *options),
    )
    served.ask_until_all_answered()
    # A worker that is busy when it is told to end skips Python's exit functions: it is until its request is logged and
    # it waits for the next one.
    answers = sum(served.answered.values())
    served.wait_until(lambda: served.output(None).count("[pid: ") == answers, "requests were not logged")
    served.wait_until(lambda: all(is_asleep(pid) for pid in served.answered), "workers do not wait")
    served.end()
    # uWSGI's master ends without ending its Python, so what it sampled since its last upload is lost.
    served.check(served.answered, loaders=0 if preload else WORKERS)


def test_celery(served):
    """Its workers end by os._exit, past atexit."""
    served.start(
        *(sys.executable, "-W", "ignore", "-m", "celery", "-A", "tasks", "worker", "--pool", "prefork"),
        *("--concurrency", WORKERS, "--without-gossip", "--without-mingle"),
    )

    def done() -> list[str]:
        return served.done.read_text().splitlines() if served.done.exists() else []

    served.wait_until(lambda: len(done()) == 10, "the tasks were not done")
    served.end()
    served.check(set(done()), loaders=1)
