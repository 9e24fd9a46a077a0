"""Subinterpreters: from 3.12 on they are sampled with their own stack and outside of spans; before, their caller's is seen."""

import sys

from opentelemetry.sdk.trace import TracerProvider

from pyroscope.otel import PyroscopeSpanProcessor

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

BURN = """
import time
def burn_{number}():
    end = time.thread_time() + 0.04
    while time.thread_time() < end:
        sum(range(200))
burn_{number}()
"""


def run_in_a_new_one(number: int) -> None:
    one = interpreters.create()
    assert interpreters.run_string(one, BURN.format(number=number)) is None
    interpreters.destroy(one)


def test_samples_of_subinterpreters(recording):
    """Their code objects follow each other at the same addresses with the same versions, yet each has its own name."""
    provider = TracerProvider()
    recording.start_dense()
    provider.add_span_processor(PyroscopeSpanProcessor())
    with provider.get_tracer("test").start_as_current_span("caller") as span:
        for number in range(10):
            run_in_a_new_one(number)
    provider.shutdown()
    samples = recording.samples()
    burns = {name: sample for sample in samples for name in sample.names if name.startswith("burn_")}
    if sys.version_info >= (3, 12):
        assert sorted(burns) == [f"burn_{number}" for number in range(10)]
        assert not any("span_id" in sample.labels for sample in burns.values())
    else:
        assert not burns
        callers = [sample for sample in samples if sample.names[0] == "run_in_a_new_one"]
        assert sum(sample.values[0] for sample in callers) > 100
        have = {sample.labels.get("span_id", sample.labels.get("profile_id")) for sample in callers}
        assert have == {f"{span.get_span_context().span_id:016x}"}
