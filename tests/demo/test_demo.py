"""What `ci/demo --check` asserts of the running viewer, after the services of examples/shop were under load.

SPANPROF_URL is the viewer, SPANPROF_DEMO the directory with the services' logs and the SVG files.
"""

import itertools
import json
import math
import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "shop"))

from hot import CHEAP, CPU_BOUND, HOT
from report import Viewer, cpu_per_wall

PERIOD = 10_000_000  # Nanoseconds of CPU a sample, at the profiler's 100 Hz.
DIRECTORY = Path(os.environ["SPANPROF_DEMO"])
VIEWER = Viewer(os.environ["SPANPROF_URL"])
SERVICES = ("checkout", "search")


@pytest.fixture(scope="module")
def spans() -> dict:
    """All span names, by service and name."""
    return {(service, name): span for service in SERVICES for name, span in VIEWER.spans(service).items()}


def hottest(span: dict) -> tuple[str, str]:
    """Function, without the class it is in, and file."""
    return span["hottest"]["function"].rpartition(".")[2], span["hottest"]["file"]


def test_each_span_name_is_filed_under_its_service(spans):
    assert set(spans) == set(HOT) | CHEAP
    assert all(span["count"] > 0 for span in spans.values())


@pytest.mark.parametrize("key", HOT, ids=" ".join)
def test_the_hottest_function_is_the_one_that_was_made_hot(spans, key):
    span = spans[key]
    assert span["samples"] >= 10
    function, file = hottest(span)
    assert function == HOT[key].function and file.endswith(HOT[key].file)


@pytest.mark.parametrize("key", sorted(CPU_BOUND), ids=" ".join)
def test_a_span_that_computes_all_the_time_has_cpu_for_most_of_it(spans, key):
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load > processors + 2:
        pytest.skip(f"other programs take the time of the spans: load {load} on {processors} processors")
    assert cpu_per_wall(spans[key]) > CPU_BOUND[key]


def test_no_span_burns_more_than_its_time(spans):
    for key, span in spans.items():
        # Five standard errors of a sum of samples.
        error = 5 * PERIOD * math.sqrt(max(1, span["samples"]))
        assert span["cpu_ns"] <= span["wall_total_ns"] + error, key


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_hot_runs_outside_of_spans(service):
    inside = {hot.function for key, hot in HOT.items() if hot.file.endswith(f"{service}.py")}
    top = VIEWER.get("/api/top", service=service, outside="1")
    strays = [row for row in top["functions"] if row["function"].rpartition(".")[2] in inside]
    assert strays == []
    assert top["total"] < VIEWER.services()[service]["cpu_ns"] / 2


@pytest.mark.parametrize("service", SERVICES)
def test_spans_and_what_is_outside_of_them_add_up_to_the_service(service):
    answer = VIEWER.get("/api/spans", service=service)
    parts = sum(span["cpu_ns"] for span in answer["spans"]) + answer["outside"]["cpu_ns"]
    assert parts == VIEWER.services()[service]["cpu_ns"]


def test_both_forked_workers_sent_profiles_and_lost_nothing():
    log = (DIRECTORY / "checkout.log").read_text()
    workers = dict(re.findall(r"profiler of worker (\d+): (\{.*\})", log))
    assert len(workers) == 2
    for stats in map(json.loads, workers.values()):
        assert stats["uploaded"] == stats["taken"] and stats["taken"]["samples"] > 0


def test_a_trace_holds_both_services_and_tasks_that_took_turns():
    trace = VIEWER.get("/api/traces", service="checkout", name="GET /offer/<int:user>")["traces"][0]
    spans = {span["span"]: span for span in VIEWER.get(f"/api/trace/{trace['trace']}")["spans"]}
    by_name = {span["name"]: span for span in spans.values()}
    request = by_name["GET /similar/{user}"]
    assert request["service"] == "search"
    assert spans[request["parent"]]["service"] == "checkout"
    shards = [span for span in spans.values() if span["name"] == "score shard"]
    assert len(shards) == 4 and all(shard["parent"] == request["span"] for shard in shards)
    for a, b in itertools.combinations(shards, 2):
        assert a["start_unix_ns"] < b["start_unix_ns"] + b["wall_ns"]
        assert b["start_unix_ns"] < a["start_unix_ns"] + a["wall_ns"]


def test_the_flame_graphs_name_the_hot_functions():
    drawn = {file.stem: file.read_text() for file in DIRECTORY.glob("*.svg")}
    for (service, name), hot in HOT.items():
        stem = f"{service}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}"
        assert hot.function in drawn[stem]
