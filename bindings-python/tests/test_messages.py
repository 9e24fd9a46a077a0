"""How messages reach the logger: from our Python functions, told once, and never at the program's cost."""

import logging
import time

import pytest
from conftest import burn
from opentelemetry.sdk.trace import TracerProvider

import pyroscope
from pyroscope import _messages, _native
from pyroscope.otel import PyroscopeSpanProcessor


def test_a_span_passes_on_what_the_uploader_has_to_say(caplog):
    """A program that only makes spans learns that its server is not there."""
    assert pyroscope.configure(application_name="x", server_address="http://127.0.0.1:9", upload_interval=1)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor())
    tracer = provider.get_tracer("test")
    deadline = time.monotonic() + 30
    while "127.0.0.1:9" not in caplog.text and time.monotonic() < deadline:
        with tracer.start_as_current_span("a"):
            burn(0.01)
    provider.shutdown()
    assert "127.0.0.1:9" in caplog.text


CALLS = {
    "flush": pyroscope.flush,
    "stats": pyroscope.stats,
    "shutdown": pyroscope.shutdown,
    "tag_wrapper": lambda: pyroscope.tag_wrapper({}).__enter__(),
    "add_thread_tag": lambda: pyroscope.add_thread_tag("good", "x"),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_public_function_passes_messages_on(caplog, name):
    _native.take_messages()
    assert _native.add_thread_tag(f"not allowed, {name}", "x") is False
    assert not caplog.records
    CALLS[name]()
    assert [record.name for record in caplog.records] == ["pyroscope"]


def test_the_exception_of_a_callback_is_told(caplog):
    processor = PyroscopeSpanProcessor()
    processor._began = True
    processor.on_start(object())
    _messages.deliver()
    processor.shutdown()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) <= 1 and all("'object' object has no attribute" in text for text in told), told


def test_a_logger_that_raises_does_no_harm(monkeypatch):
    class Raises(logging.Filter):
        def filter(self, record):
            raise KeyError("no record is good enough")

    raises = Raises()
    logging.getLogger("pyroscope").addFilter(raises)
    try:
        assert pyroscope.configure(application_name="x", server_address="none", oncpu=False)
    finally:
        logging.getLogger("pyroscope").removeFilter(raises)


def test_logging_is_loaded_by_who_has_something_to_say(python):
    out = python(
        """
        import sys
        before = set(sys.modules)
        import pyroscope
        pyroscope.configure(application_name="x", server_address="none")
        loaded = set(sys.modules) - before
        print(sorted(loaded & {"logging", "contextlib", "typing", "inspect", "re", "opentelemetry"}), end="")
        pyroscope.configure(application_name="x", server_address="none", oncpu=False)
        print("logging" in sys.modules)
        """
    )
    assert out == "[]True\n"


def test_a_daemon_thread_that_logs_as_python_ends(python):
    """Until 3.13 Python ends such threads by unwinding them, which aborts at a native frame of ours."""
    python(
        """
        import logging, threading
        import pyroscope
        from opentelemetry.sdk.trace import TracerProvider
        from pyroscope.otel import PyroscopeSpanProcessor
        logs = threading.Event()

        class Waits(logging.Filter):
            def filter(self, record):
                if threading.current_thread() is not threading.main_thread():
                    logs.set()
                    while True:  # wants the GIL when Python ends
                        pass
                return True

        logging.getLogger("pyroscope").addFilter(Waits())
        pyroscope.configure(application_name="unknown_service:python", server_address="none")
        processor = PyroscopeSpanProcessor()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("test")
        with tracer.start_as_current_span("first"):
            pass

        def work():
            processor.on_start(object())
            tracer.start_span("whose start passes the failure on")

        threading.Thread(target=work, daemon=True).start()
        assert logs.wait(20)
        """
    )
    assert python.stderr == ""


def test_the_first_start_says_which_variables_ask_for_what_is_not_there_yet(python):
    """Once each, and where the level lets it."""
    program = """
        import logging, pyroscope
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=__import__("sys").stdout)
        for _ in range(2):
            pyroscope.configure(application_name="x", server_address="none")
        """
    names = [f"PYROSCOPE_PROFILING_{kind}_ENABLED" for kind in ("ALLOCATION", "LOCK")]
    asks = {name: "true" for name in names} | {"PYROSCOPE_PROFILING_HEAP_ENABLED": "false"}
    said = python(program, {**asks, "PYROSCOPE_LOG_LEVEL": "info"}).splitlines()
    assert said == [f"{name}: only CPU time is profiled yet" for name in names]
    assert python(program, asks) == ""


def test_the_wrong_name_of_wall_time_is_told_with_the_right_one(python):
    program = """
        import logging, pyroscope
        logging.basicConfig(format="%(levelname)s %(message)s", stream=__import__("sys").stdout)
        assert pyroscope.configure(application_name="x", server_address="none")
        """
    told = "PYROSCOPE_PROFILING_WALL_TIME_ENABLED is not read; did you mean PYROSCOPE_PROFILING_WALLTIME_ENABLED?"
    assert python(program, {"PYROSCOPE_PROFILING_WALL_TIME_ENABLED": "true"}) == f"WARNING {told}\n"
