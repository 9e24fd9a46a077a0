"""Every misbehaving server against the client of every language: what was taken is received or counted as lost.

Run with the interpreter that has the wheel; FAULT_SERVER names the built program (README.md).
"""

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import languages  # noqa: E402

CLIENTS = HERE / "clients"
SERVER = os.environ.get("FAULT_SERVER", str(HERE.parents[1] / "target/debug/fault-server"))
PASSWORD = "hunter2"

#: Most runs wait most of the time.
POOL = ThreadPoolExecutor(6)


@cache
def faults() -> dict[str, dict[str, Any]]:
    listed = subprocess.run([SERVER, "--list"], capture_output=True, text=True, check=True, timeout=20)
    return {fault["name"]: fault for fault in json.loads(listed.stdout)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("fault", faults())
    metafunc.parametrize("client", languages.clients(CLIENTS))


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> dict[tuple[str, str], "Future[tuple[Any, Any]]"]:
    """All runs that were asked for, begun at once; by client and fault."""
    items = [item for item in request.session.items if not item.get_closest_marker("skip")]
    chosen = [(item.callspec.params["client"], item.callspec.params["fault"]) for item in items]
    return {one: POOL.submit(run, *one) for one in chosen}


def run(client: str, name: str) -> tuple[Any, Any]:
    """What the client printed, and what the server received."""
    # A stop that has to give up need not wait long before.
    patience = 0.3 if faults()[name]["end"] == "dropped_queue" else 20
    with subprocess.Popen([SERVER, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        environment = languages.environment(**json.loads(server.stdout.readline())["environment"])
        command = languages.command(client, CLIENTS, str(patience))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        received = json.loads(server.communicate(timeout=60)[0])
    assert done.returncode == 0 and done.stderr == "", f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout), received


def test_all_of_it_ends_where_it_must(
    client: str, fault: str, runs: dict[tuple[str, str], "Future[tuple[Any, Any]]"]
) -> None:
    result, received = runs[client, fault].result(timeout=300)
    expected, stats = faults()[fault], result["stats"]
    weight = {name: stats[name]["weight"] for name in languages.STATS["tallies"]}

    languages.assert_adds_up(stats)
    assert weight["taken"] > 100_000_000, stats
    lost = weight["dropped_ring"] + (weight["dropped_queue"] if expected["last_is_dropped"] else 0)
    ended = weight[expected["end"]]
    # A runtime that compiles beside the program burns between the last flush and the stop, too.
    assert ended + lost == weight["taken"] and ended > 0.5 * weight["taken"], stats
    kept = weight["uploaded"] + (weight["dropped_unanswered"] if expected["keeps_unanswered"] else 0)
    assert received["weight"] == kept, (received, stats)
    assert received["too_large"] == (fault == "413 once: in two halves")

    assert stats["retries"] >= expected["retries_at_least"], stats
    if expected["repeats_all"]:
        assert received["repeated"] == stats["retries_unanswered"] > 0, (received, stats)
    assert received["repeated"] <= stats["retries_unanswered"], (received, stats)
    if expected["waits_at_least"]:
        assert received["seconds_between_requests"][0] >= expected["waits_at_least"], received
    assert (received["proxied"] > 0) == expected["is_proxied"], received

    told = "\n".join(result["messages"])
    assert languages.in_any_case(expected["says"]) in languages.in_any_case(f"{told}\n{stats['last_error']}")
    assert PASSWORD not in told and PASSWORD not in stats["last_error"]
    if expected["says_nothing"]:
        assert told == ""

    # A stop may take 5 s, the server's patience is 10 s and more: these bounds tell waiting for it from waiting for the machine.
    assert result["stopped_in"] < 9
    assert result["blocked"] < 1
