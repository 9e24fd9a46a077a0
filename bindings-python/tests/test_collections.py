"""CPU time of garbage collections is told apart, on the span and below the function that paid for it, and on no other thread."""

import collections
import gc
import hashlib
import threading
import time

import pytest
from conftest import Recording, kept
from opentelemetry.sdk.trace import TracerProvider
from pprof import read_folder

import pyroscope
from pyroscope.otel import PyroscopeSpanProcessor

COLLECTING = "(garbage collection)"


@pytest.fixture
def recording(tmp_path):
    made = Recording(tmp_path)
    assert made.start(wall_time=True, sample_rate=250)
    yield made
    pyroscope.stop()


def seconds(recording):
    """CPU seconds by span, whether garbage was collected, and the function that collected or ran; the same from wall time."""
    pyroscope.stop()
    cpu, wall = collections.Counter(), collections.Counter()
    for profile in read_folder(recording.folder):
        for sample in profile.samples:
            state = sample.labels.get("state")
            is_collecting = sample.names[0] == COLLECTING
            # The same says the state, where there is one.
            assert state in (None, "gc" if is_collecting else "cpu") or not is_collecting
            function = sample.names[1 if is_collecting else 0]
            key = sample.labels.get("span_name"), is_collecting, function
            if state is None:
                cpu[key] += profile.weight(sample) / 1e9
            elif state in ("cpu", "gc"):
                wall[key] += profile.weight(sample) / 1e9
    return cpu, wall


def collect(times):
    for _ in range(times):
        gc.collect()


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def until_sampled(seconds, run, *arguments):
    """Runs it for so much CPU time, and on until there is a sample, so that a kernel that has much to do owes none to what comes next.

    Returns how long it took.
    """
    began = time.thread_time()
    while time.thread_time() < began + seconds:
        run(*arguments)
    enough, latest = kept() + 1, time.thread_time() + 2
    while kept() < enough and time.thread_time() < latest:
        run(*arguments)
    return time.thread_time() - began


def test_who_collects_pays(recording):
    many = [[number] for number in range(100_000)]
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor())
    tracer = provider.get_tracer("test")
    until_sampled(0, burn, 0.005)
    with tracer.start_as_current_span("collects"):
        took = until_sampled(0.3, collect, 1)
    with tracer.start_as_current_span("burns"):
        gc.disable()
        burnt = until_sampled(0.2, burn, 0.005)
        gc.enable()
    del many
    provider.shutdown()
    cpu, wall = seconds(recording)
    # A late sample may stand for what came before it, and be of who asks whether there is one.
    asking = sum(cpu["collects", False, name] for name in ("kept", "until_sampled"))
    assert 0.9 * took < cpu["collects", True, "collect"] + asking < took + 0.02
    assert sum(value for key, value in cpu.items() if key[0] == "burns") > 0.9 * burnt
    assert not [key for key in cpu if key[0] == "burns" and key[1]]
    # What is in spans is in the profile of wall time, with the same stacks.
    assert wall == {key: value for key, value in cpu.items() if key[0]}


def test_another_thread_that_runs_without_the_gil_collects_nothing(recording):
    many = [[number] for number in range(100_000)]
    hashing, done = threading.Event(), threading.Event()

    def digest():
        hashing.set()
        while not done.is_set():
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 100_000)

    thread = threading.Thread(target=digest)
    thread.start()
    hashing.wait()
    until_sampled(0.3, collect, 1)
    done.set()
    thread.join()
    del many
    cpu, _ = seconds(recording)
    assert cpu[None, True, "collect"] > 0.02, "nothing was collected meanwhile"
    assert not [key for key in cpu if key[1] and key[2].endswith("digest")]
