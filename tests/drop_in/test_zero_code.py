"""opentelemetry-instrument: spans have profiles without a line of code, where the environment asks for it and only there."""

import json
import sys
from pathlib import Path

import pytest
from conftest import run
from receiver import Receiver

PROGRAM = """
import json, logging, sys, time
modules = sorted(name for name in sys.modules if name == "pyroscope" or name.startswith("pyroscope."))
from opentelemetry import context, trace
runtime = type(context._RUNTIME_CONTEXT).__name__

def burn_in_span():
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        sum(range(200))

with trace.get_tracer("zero").start_as_current_span("zero-code") as span:
    burn_in_span()
    profile_id = span.attributes.get("pyroscope.profile.id")
    span_id = format(span.get_span_context().span_id, "016x")
print(json.dumps({"span_id": span_id, "profile_id": profile_id, "modules": modules, "runtime": runtime}))
"""

QUIET = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}


def instrument(folder: Path, **env: str) -> dict:
    """Runs the program by opentelemetry-instrument; returns what it says."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = str(Path(sys.executable).parent / "opentelemetry-instrument")
    out = run(sys.executable, command, sys.executable, str(program), env={**QUIET, "OTEL_SERVICE_NAME": "zero", **env})
    return json.loads(out)


@pytest.mark.parametrize("context", [{}, {"OTEL_PYTHON_CONTEXT": "pyroscope_context"}])
def test_spans_have_profiles(tmp_path, context):
    with Receiver() as receiver:
        said = instrument(
            tmp_path, OTEL_PYROSCOPE_ADD_SPAN_PROCESSOR="true", PYROSCOPE_SERVER_ADDRESS=receiver.url, **context
        )
        assert receiver.wait_for(lambda: bool(receiver.profiles()))
    assert said["profile_id"] == said["span_id"] and said["runtime"] == "RuntimeContext"
    samples = [sample for profile in receiver.profiles() for sample in profile.samples if "burn_in_span" in sample.names]
    assert {sample.labels.get("span_id") for sample in samples} == {said["span_id"]}
    assert {sample.labels.get("span_name") for sample in samples} == {"zero-code"}
    assert all(series.labels["service_name"] == "zero" for series in receiver.series)


@pytest.mark.parametrize("env", [{}, {"OTEL_PYROSCOPE_ADD_SPAN_PROCESSOR": "false"}])
def test_nothing_is_loaded_where_it_was_not_asked_for(tmp_path, env):
    said = instrument(tmp_path, **env)
    assert said["profile_id"] is None and said["modules"] == [] and said["runtime"] == "ContextVarsRuntimeContext"


def test_the_context_alone_changes_nothing_else(tmp_path):
    said = instrument(tmp_path, OTEL_PYTHON_CONTEXT="pyroscope_context")
    assert said["runtime"] == "RuntimeContext" and said["profile_id"] is None
    assert "pyroscope.otel" not in said["modules"]


def test_a_value_that_does_not_parse_leaves_the_program_alone(tmp_path):
    said = instrument(tmp_path, OTEL_PYROSCOPE_ADD_SPAN_PROCESSOR="maybe")
    assert said["span_id"] != "0" * 16 and said["profile_id"] is None
