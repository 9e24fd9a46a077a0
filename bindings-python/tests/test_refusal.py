"""An interpreter that is not what the tables say is not sampled: one warning says why, and spans go on working."""

import json
import sys

import pytest

PROGRAM = """
import logging, sys
import opentelemetry.context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import pyroscope
from pyroscope.otel import PyroscopeSpanProcessor

told = []
logger = logging.getLogger("pyroscope")
logger.handlers, logger.propagate = [logging.Handler()], False
logger.handlers[0].emit = lambda record: told.append((record.levelname, record.getMessage()))

{pretend}

assert not pyroscope.configure(application_name="test", server_address="none")
exported = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(PyroscopeSpanProcessor())
provider.add_span_processor(SimpleSpanProcessor(exported))
with provider.get_tracer("test").start_as_current_span("request"):
    with provider.get_tracer("test").start_as_current_span("inner"):
        assert sum(range(10 ** 6))
assert not pyroscope.configure(application_name="test", server_address="none")
assert [span.name for span in exported.get_finished_spans()] == ["inner", "request"]
assert pyroscope.stats()["taken"]["samples"] == 0
assert "signal/tid" not in open("/proc/self/timers").read()
(level, text), = told
assert level == "WARNING", level
print(text)
"""


def refusal(python, pretend: str) -> str:
    text = python(PROGRAM.format(pretend=pretend)).strip()
    assert text.startswith("no profiles are taken, spans go on working: ")
    return text.partition(": ")[2]


VERSION = ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    "pretend, why",
    [
        ("sys.implementation.name = 'otherpython'", "otherpython {} is not CPython"),
        ("sys.abiflags = 'd'", "this CPython {} is a debug build"),
        ("sys.abiflags = 't'", "this CPython {} is a free-threaded build"),
        ("sys.version_info = (3, 16, 0, 'final', 0)", "CPython {} is not among 3.10 to 3.15"),
    ],
)
def test_what_is_not_known_is_named_once(python, pretend, why):
    assert refusal(python, pretend) == why.format(VERSION)


@pytest.mark.parametrize("minor", sorted({10, 11, 12, 13, 14, 15} & {sys.version_info[1] - 1, sys.version_info[1] + 1}))
def test_another_versions_table_is_refused(python, minor):
    """From 3.14 to 3.15 no type's size differs: only the self-test finds out, and lives through it."""
    why = refusal(python, f"sys.version_info = (3, {minor}, 0, 'final', 0)")
    assert why.startswith(f"CPython {VERSION} ") and ("differs" in why or " bytes, not " in why), why


def test_a_patch_release_that_nobody_has_seen_is_used(python):
    """What is asked is the interpreter, not its number."""
    python(
        f"""
        import sys
        import pyroscope

        sys.version = "3.{sys.version_info[1]}.99 (made up)"
        sys.version_info = (3, {sys.version_info[1]}, 99, "final", 0)
        assert pyroscope.configure(application_name="test", server_address="none")
        """
    )


def test_a_shortage_of_memory_at_the_first_start_is_no_property_of_the_interpreter(python):
    told = python(
        """
        import json, logging, resource
        import pyroscope, pyroscope._arguments

        told = []
        logger = logging.getLogger("pyroscope")
        logger.handlers, logger.propagate = [logging.Handler()], False
        logger.handlers[0].emit = lambda record: told.append(record.getMessage())

        settings = {"application_name": "test", "server_address": "none"}
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 900 * 1024, -1))
        refused = pyroscope.configure(**settings)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        assert not refused
        assert pyroscope.configure(**settings), told
        print(json.dumps(told))
        """
    )
    (text,) = json.loads(told)
    assert text.startswith("no profiles are taken, spans go on working: mapping "), text
