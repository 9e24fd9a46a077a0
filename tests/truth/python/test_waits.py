"""What a span waited for is seen: how long, in which state, below which function, and in no other span.

What a wait took at most its program knows by its own clock, what it took at least by when what it waited for came. In between is what
Python does before and after, on a machine that others use too.
"""

import json
from collections import Counter
from pathlib import Path

import children
import pprof
import pytest
import waits

TIMES = 10

NO_WAITS = """
import sys, time
import pyroscope

pyroscope.configure(application_name="a", server_address=sys.argv[1])
time.sleep(0.01)
print(pyroscope.shutdown())
"""


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, list]:
    """What the program noted, and the samples of wall time that it left: span, state, functions and nanoseconds."""
    folder = tmp_path_factory.mktemp("waits")
    records, profiles = folder / "records.json", folder / "profiles"
    arguments = ("--times", str(TIMES), "--server", profiles.as_uri(), "--records", records)
    children.succeeded(children.run(waits.__file__, *arguments))
    samples = [
        (sample.labels["span_name"], sample.labels["state"], sample.names, profile.weight(sample))
        for profile in pprof.read_folder(profiles)
        if profile.sample_types == [("wait_count", "count"), ("wall", "nanoseconds")]
        for sample in profile.samples
    ]
    return json.loads(records.read_text()), samples


@pytest.mark.parametrize("way", waits.WAYS, ids=lambda way: way.__name__)
def test_a_wait_is_seen_as_long_as_it_was(way, waited: tuple[dict, list]) -> None:
    record, samples = waited
    name, state = way.__name__, waits.WAYS[way]
    if name not in record["taken"]:
        pytest.skip("the file system of temporary files has no leases")
    of_way = [sample for sample in samples if sample[0] == name]
    # OpenTelemetry's own code too waits for the GIL where others burn.
    assert state == "gil" or all(name in names for _, in_state, names, _ in of_way if in_state == state)
    seen: Counter[str] = Counter()
    for _, in_state, _, weight in of_way:
        seen[in_state] += weight
    wall, cpu, least = record["taken"][name]
    said = f"{dict(seen)} of {wall} ns, of which {cpu} ns of CPU and {least} ns or more waited"
    assert seen[state] < 1.02 * wall, said
    # What waits for the GIL may be stopped with its whole machine instead. A late sample of CPU time within a wait is taken off it.
    late = sum(seen[other] for other in ("lock", "run_queue", "cpu") if other != state)
    assert seen[state] > (0.6 if state == "gil" else 0.7) * least, said
    assert state == "gil" or seen[state] + late > 0.95 * least, said
    # To start a thread is to wait for it, whoever waits without the GIL waits for it afterwards, and SQLite opens and writes files.
    expected = {state, "cpu", "gil", "lock", "run_queue"} | ({"io"} if name == "wait_for_database" else set())
    others = sum(weight for in_state, weight in seen.items() if in_state not in expected)
    assert others < 0.05 * wall, said


def test_a_leaf_says_how_it_waited(waited: tuple[dict, list]) -> None:
    record, samples = waited
    leaves = {(span, names[0]) for span, state, names, _ in samples if state != "cpu"}
    # From 3.15 on Python polls by ppoll, where there is one.
    assert leaves & {("wait_by_poll", "poll"), ("wait_by_poll", "ppoll")}, sorted(leaves)
    for expected in [
        ("receive", "recv"),
        ("wait_by_epoll", "epoll_wait"),
        ("read_pipe", "read"),
        ("write_full_pipe", "write"),
        ("truncate_leased_file", "truncate64"),
        ("open_leased_file_in_its_folder", "openat64"),
        ("lock_file", "flock"),
        ("wait_for_signal", "sigtimedwait"),
        ("run_system", "system"),
        ("wait_for_gil", "(waits for the GIL)"),
    ]:
        assert expected in leaves or expected[0] not in record["taken"], f"{expected} among {sorted(leaves)}"


def test_what_was_taken_adds_up(waited: tuple[dict, list]) -> None:
    record, _ = waited
    children.assert_adds_up(record["stats"])


def test_without_being_asked_there_is_no_profile_of_waits(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    assert children.succeeded(children.run("-c", NO_WAITS, folder.as_uri())) == "True\n"
    assert not list(folder.glob("*wall*"))
