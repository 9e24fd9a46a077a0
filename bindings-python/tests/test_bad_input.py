"""What is not allowed is said by name, value and what is, before anything starts; a server that is down harms nobody."""

import os
import socket
import threading
import time
from pathlib import Path

import children
import pyroscope
import pytest
import receiver
from children import assert_adds_up
from conftest import burn

# Arguments, and what the message must contain: setting, value, what is allowed.
REFUSED = {
    "scheme": ({"server_address": "ftp://x"}, ("server_address", "ftp://x", "http")),
    "port": ({"server_address": "localhost:99999"}, ("server_address", "localhost:99999", "host:port")),
    "rate 0": ({"sample_rate": 0}, ("sample_rate", "0", "1 to 1000")),
    "rate 100000": ({"sample_rate": 100_000}, ("sample_rate", "100000", "1 to 1000")),
    "rate -1": ({"sample_rate": -1}, ("sample_rate", "-1", "1 to 1000")),
    "space in a tag": ({"tags": {"a key": "x"}}, ("tags", "a key", "[A-Za-z_]")),
    "reserved tag": ({"tags": {"span_id": "x"}}, ("tags", "span_id", "reserved")),
    "21 tags": ({"tags": {f"t{number}": "x" for number in range(21)}}, ("tags", "21", "at most 20")),
    "interval": ({"upload_interval": 0}, ("upload_interval", "0", "1 s")),
    "no name": ({"application_name": ""}, ("application_name",)),
}

# A variable with a value that does not parse.
VARIABLES = {
    "PYROSCOPE_SAMPLE_RATE": "often",
    "PYROSCOPE_PROFILING_INTERVAL": "10 parsecs",
    "PYROSCOPE_UPLOAD_INTERVAL": "soon",
    "PYROSCOPE_PROFILING_ENABLED": "perhaps",
    "PYROSCOPE_PROFILING_CPU_ENABLED": "2",
    "PYROSCOPE_LABELS": "nothing",
    "PYROSCOPE_HTTP_HEADERS": "{not json",
    "PYROSCOPE_SERVER_ADDRESS": "gopher://x",
    "OTEL_PYROSCOPE_ADD_SPAN_NAME": "maybe",
}


def threads() -> set[str]:
    """Of the process: one of an earlier test that was joined may be there for a moment longer."""
    return set(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("case", REFUSED)
def test_argument_is_refused_before_anything_starts(case: str) -> None:
    arguments, parts = REFUSED[case]
    before = threads()
    with pytest.raises(ValueError) as refused:
        pyroscope.configure(**{"application_name": "app", "server_address": "none", **arguments})
    message = str(refused.value)
    assert all(part in message for part in parts), message
    assert threads() <= before
    assert not pyroscope.shutdown()


def test_refused_argument_leaves_the_running_profiler_alone(tmp_path: Path) -> None:
    assert pyroscope.configure(application_name="app", server_address=tmp_path.as_uri())
    before = threads()
    with pytest.raises(ValueError):
        pyroscope.configure(application_name="app", server_address="ftp://x")
    assert threads() <= before
    assert pyroscope.shutdown()


@pytest.mark.parametrize("arguments", [{"sample_rat": 100}, {"sample_rate": "100"}, {"tags": "a=b"}, {"scope": "all"}])
def test_unknown_argument_or_type_is_a_type_error(arguments: dict) -> None:
    before = threads()
    with pytest.raises(TypeError, match=next(iter(arguments))):
        pyroscope.configure(application_name="app", server_address="none", **arguments)
    assert threads() <= before


@pytest.mark.parametrize("name", VARIABLES)
def test_variable_that_does_not_parse_is_named(name: str) -> None:
    value = VARIABLES[name]
    program = """
import os, pyroscope
before = os.listdir("/proc/self/task")
try:
    pyroscope.configure(application_name="app")
except ValueError as error:
    print(error)
assert os.listdir("/proc/self/task") == before
"""
    said = children.succeeded(children.run("-c", program, environment={name: value}))
    # An address is checked with the arguments, under the setting's name.
    assert name in said or name.removeprefix("PYROSCOPE_").lower() in said, said
    # Headers hold credentials as a rule.
    assert value in said or name == "PYROSCOPE_HTTP_HEADERS", said


def test_span_processor_with_a_bad_variable_leaves_spans_working() -> None:
    program = """
import logging, sys
logging.basicConfig(stream=sys.stdout)
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor
provider = TracerProvider()
provider.add_span_processor(PyroscopeSpanProcessor())
with provider.get_tracer("t").start_as_current_span("span") as span:
    assert span.get_span_context().is_valid
print("spans work")
"""
    variables = {"PYROSCOPE_SAMPLE_RATE": "often", "PYROSCOPE_SERVER_ADDRESS": "none"}
    finished = children.run("-c", program, environment=variables)
    said = children.succeeded(finished)
    assert "spans work" in said
    assert "PYROSCOPE_SAMPLE_RATE" in said, said


def test_address_without_scheme_means_http() -> None:
    with receiver.Receiver() as server:
        assert pyroscope.configure(application_name="app", server_address=f"localhost:{server.port}")
        burn(0.1)
        assert pyroscope.flush(30)
        assert pyroscope.shutdown()
        assert not server.errors
        assert server.wait_for(lambda: bool(server.profiles()))
        assert server.series[0].labels["service_name"] == "app"


def test_server_that_is_down_is_not_noticed_and_the_profile_waits() -> None:
    listener = socket.socket()
    # Bound and not listening: every connection is refused until the receiver listens.
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    assert pyroscope.configure(application_name="app", server_address=f"http://127.0.0.1:{port}")
    burn(0.2)
    assert not pyroscope.flush(1)
    until(lambda: pyroscope.stats()["last_error"] != "")
    stats = pyroscope.stats()
    assert stats["queued"]["samples"] > 0
    assert stats["uploaded"]["samples"] == 0
    assert f"127.0.0.1:{port}" in stats["last_error"]
    assert_adds_up(stats)
    queued = stats["queued"]["weight"]

    with receiver.Receiver(listener) as server:
        assert pyroscope.flush(60)
        stats = pyroscope.stats()
        assert stats["queued"]["samples"] == 0
        assert stats["uploaded"]["weight"] >= queued
        assert_adds_up(stats)
        assert sum(profile.total() for profile in server.profiles()) == stats["uploaded"]["weight"]
        assert not server.errors


def test_program_with_a_dead_server_ends_by_itself(tmp_path: Path) -> None:
    program = """
import sys
import pyroscope
from truth_program import burn
pyroscope.configure(application_name="app", server_address=sys.argv[1])
burn(200_000_000)
print("all work done")
"""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        finished = children.run("-c", program, address)
    assert children.succeeded(finished) == "all work done\n"
    assert "Traceback" not in finished.stderr


def test_folder_that_cannot_be_written_is_said_in_stats(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    assert pyroscope.configure(application_name="app", server_address=(blocked / "profiles").as_uri())
    burn(0.1)
    pyroscope.flush(30)
    stats = pyroscope.stats()
    assert str(blocked) in stats["last_error"]
    assert stats["refused"]["samples"] > 0
    assert_adds_up(stats)


def until(condition) -> None:
    """Waits for what another thread does, and fails when it does not."""
    pause, end = threading.Event(), time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        pause.wait(0.01)
