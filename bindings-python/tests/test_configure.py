"""configure() and what belongs to it: names, defaults, environment, errors, and what never happens to the host."""

import inspect
import logging
import math
import select
import socket
import sys
import threading
import time
import types
import warnings

import pytest
from conftest import burn
from pprof import read_folder, samples_of
from receiver import Receiver

import pyroscope
from pyroscope import LineNo, ProfilerImplementation, _native
from pyroscope.otel import PyroscopeSpanProcessor

#: inspect.signature of pyroscope-io 1.4.0.
GRAFANAS = {
    "app_name": None,
    "application_name": None,
    "server_address": "http://localhost:4040",
    "basic_auth_username": "",
    "basic_auth_password": "",
    "enable_logging": False,
    "sample_rate": 100,
    "oncpu": True,
    "native": None,
    "gil_only": True,
    "report_pid": False,
    "report_thread_id": False,
    "report_thread_name": False,
    "tags": None,
    "tenant_id": "",
    "http_headers": None,
    "line_no": LineNo.LastInstruction,
    "upload_interval": 10,
    "mem_enabled": False,
    "mem_max_nframe": 128,
    "mem_heap_sample_size": 524288,
    "mem_enable_mem_domain": True,
    "cpu_enabled": True,
    "cpu_implementation": ProfilerImplementation.PySpy,
}


def test_the_signature_begins_as_grafanas():
    parameters = inspect.signature(pyroscope.configure).parameters
    ours = {name: parameter.default for name, parameter in parameters.items()}
    assert list(ours.items())[: len(GRAFANAS)] == list(GRAFANAS.items())
    assert all(ours[name] is None for name in list(ours)[len(GRAFANAS) :])


def test_every_argument_is_taken(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert pyroscope.configure(
            **{**GRAFANAS, "application_name": "all", "server_address": "none"},
        )


@pytest.mark.parametrize(
    "settings, field",
    [
        ({"server_address": "ftp://x"}, "server_address"),
        ({"server_address": "localhost:99999"}, "server_address"),
        ({"sample_rate": 0}, "sample_rate"),
        ({"sample_rate": 100_000}, "sample_rate"),
        ({"sample_rate": -1}, "sample_rate"),
        ({"upload_interval": 0}, "upload_interval"),
        ({"upload_interval": -1}, "upload_interval"),
        ({"tags": {"two words": "x"}}, "tags"),
        ({"tags": {"span_id": "x"}}, "tags"),
        ({"tags": {f"tag{n}": "x" for n in range(21)}}, "tags"),
        ({"application_name": ""}, "application_name"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(settings, field):
    with pytest.raises(ValueError, match="allowed") as raised:
        pyroscope.configure(**{"application_name": "x", "server_address": "none", **settings})
    assert field in str(raised.value)
    assert not _native.is_running()


def test_a_bad_value_leaves_the_running_profiler_alone():
    assert pyroscope.configure(application_name="x", server_address="none")
    with pytest.raises(ValueError):
        pyroscope.configure(application_name="x", sample_rate=0)
    assert _native.is_running()


@pytest.mark.parametrize(
    "settings",
    [{"sample_rate": "fast"}, {"tags": ["a"]}, {"server_address": 7}, {"upload_interval": "soon"}, {"unknown": 1}],
)
def test_a_wrong_type_is_a_type_error(settings):
    with pytest.raises(TypeError):
        pyroscope.configure(application_name="x", **settings)
    assert not _native.is_running()


@pytest.mark.parametrize(
    "name, value",
    [("PYROSCOPE_SAMPLE_RATE", "fast"), ("PYROSCOPE_PROFILING_ENABLED", "on"), ("PYROSCOPE_LABELS", "novalue")],
)
def test_a_variable_that_does_not_parse_is_named(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name):
        pyroscope.configure(application_name="x", server_address="none")


def test_a_default_is_no_argument(tmp_path, monkeypatch):
    monkeypatch.setenv("PYROSCOPE_SERVER_ADDRESS", f"file://{tmp_path}")
    monkeypatch.setenv("PYROSCOPE_APPLICATION_NAME", "environment")
    monkeypatch.setenv("PYROSCOPE_SAMPLE_RATE", "200")
    assert pyroscope.configure()
    burn(0.1)
    assert pyroscope.shutdown()
    profile = read_folder(tmp_path)[0]
    assert profile.file.startswith("environment-") and profile.period == 5_000_000
    # Named in code, even as the default is: code wins.
    assert pyroscope.configure(None, "code", sample_rate=100)
    burn(0.1)
    assert pyroscope.shutdown()
    profile = next(profile for profile in read_folder(tmp_path) if profile.file.startswith("code-"))
    assert profile.period == 10_000_000


def test_a_profile_as_go_tools_expect_it(tmp_path):
    pyroscope.configure(application_name="x", server_address=f"file://{tmp_path}", sample_rate=250)
    began = time.thread_time_ns()
    burn(0.2)
    burnt = time.thread_time_ns() - began
    pyroscope.shutdown()
    profiles = read_folder(tmp_path)
    assert profiles[0].sample_types == [("cpu", "nanoseconds")] and profiles[0].period_type == ("cpu", "nanoseconds")
    # In nanoseconds, not in samples or microseconds; how exact it is, tests/truth asks with more to see.
    cpu = sum(sample.values[0] for sample in samples_of(tmp_path) if "burn" in sample.names)
    assert 4_000_000 <= cpu < 1.5 * burnt


@pytest.mark.parametrize("name", ["PYROSCOPE_PROFILING_ENABLED", "PYROSCOPE_PROFILING_CPU_ENABLED"])
def test_switched_off_by_the_environment(monkeypatch, name, caplog):
    monkeypatch.setenv(name, "false")
    assert pyroscope.configure(application_name="x", server_address="none") is False
    assert not _native.is_running() and not caplog.records


def test_configure_twice_starts_anew(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        assert pyroscope.configure(application_name="x", server_address=f"file://{folder}", sample_rate=250)
        burn(0.1)
    assert pyroscope.shutdown()
    assert samples_of(first) and samples_of(second)
    assert pyroscope.shutdown() is False, "nothing ran"


def test_shutdown_is_false_where_the_last_profiles_were_not_delivered():
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        address = "http://127.0.0.1:%d" % nobody_listens.getsockname()[1]
        assert pyroscope.configure(application_name="x", server_address=address, sample_rate=250, upload_interval=600)
        burn(0.1)
        assert pyroscope.shutdown() is False
    stats = pyroscope.stats()
    assert stats["dropped_queue"] == stats["taken"] and stats["taken"]["samples"] > 0


def test_two_threads_that_configure_at_once_both_get_a_profiler(caplog):
    """As if one had come after the other, and so that it is the name of the one that runs which is remembered."""
    for _ in range(10):
        together = threading.Barrier(2, timeout=20)
        answers = []

        def configure() -> None:
            together.wait()
            answers.append(pyroscope.configure(application_name="x", server_address="none"))

        threads = [threading.Thread(target=configure) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [True, True] and _native.is_running()
        assert pyroscope.shutdown()
    assert not caplog.records


def test_a_forked_child_configures_although_another_thread_was_just_at_it(python):
    python(
        """
        import os, threading
        import pyroscope
        from pyroscope import _lifecycle
        held, end = threading.Event(), threading.Event()

        def hold():
            with _lifecycle.starting:
                held.set()
                end.wait()

        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if child == 0:
            assert _lifecycle.starting.acquire(timeout=0)
            os._exit(0 if pyroscope.configure(application_name="x", server_address="none") else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_stop_and_configure_any_number_of_times():
    threads = threading.active_count()
    for _ in range(20):
        assert pyroscope.configure(application_name="x", server_address="none")
        assert pyroscope.stop()
    assert threading.active_count() == threads


def line_at():
    burn(0.05)


@pytest.mark.parametrize("mode", list(LineNo))
def test_line_no(recording, mode):
    recording.start(line_no=int(mode))
    line_at()
    first = line_at.__code__.co_firstlineno
    lines = {frame.line for sample in recording.samples() for frame in sample.stack if frame.function == "line_at"}
    assert lines == {{LineNo.LastInstruction: first + 1, LineNo.First: first, LineNo.NoLine: 0}[mode]}


@pytest.mark.parametrize("argument", ["detect_subprocesses", "log_level"])
def test_what_was_removed_is_deprecated(argument):
    with pytest.warns(DeprecationWarning, match=argument):
        assert pyroscope.configure(application_name="x", server_address="none", **{argument: "x"})


def test_old_names_work():
    with pytest.warns(DeprecationWarning, match="app_name"):
        assert pyroscope.configure("x", server_address="none")
    with pytest.warns(DeprecationWarning, match="auth_token"):
        assert pyroscope.configure(application_name="x", server_address="none", auth_token="secret")
    for call in (
        lambda: pyroscope.tag({}),
        lambda: pyroscope.remove_tags("a"),
        lambda: pyroscope.change_name("b"),
        pyroscope.build_summary,
        pyroscope.test_logger,
    ):
        with pytest.warns(DeprecationWarning):
            call()


def test_what_is_not_there_yet_is_told_once(caplog):
    for _ in range(2):
        assert pyroscope.configure(application_name="x", server_address="none", mem_enabled=True, oncpu=False)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and any("mem_enabled=True" in text for text in told), told


def test_stats_add_up(recording):
    assert set(pyroscope.stats()) == set(pyroscope.stats())
    recording.start()
    burn(0.1)
    stats = pyroscope.stats()
    assert stats["taken"]["samples"] > 0
    for unit in ("samples", "weight"):
        sides = [stats[name][unit] for name in ("taken", "dropped_ring", "dropped_window", "pending", "encoded")]
        assert sides[0] == sum(sides[1:])
    assert pyroscope.flush() and pyroscope.stats()["uploaded"]["samples"] > 0


def test_who_asks_while_another_thread_shuts_down_is_answered_of_that_profiler():
    answers = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert pyroscope.configure(application_name="x", server_address=address, sample_rate=250, trace_id=True)
        burn(0.1)
        processor = PyroscopeSpanProcessor()

        def shut_down(name: str) -> threading.Thread:
            thread = threading.Thread(target=lambda: answers.update({name: pyroscope.shutdown()}))
            thread.start()
            return thread

        first = shut_down("first")
        assert select.select([listener], [], [], 20)[0], "its last upload"
        stats = pyroscope.stats()
        assert 0 < stats["taken"]["samples"] == sum(
            stats[name]["samples"] for name in ("dropped_ring", "dropped_window", "pending", "encoded")
        )
        assert pyroscope.flush(0.01) is False and processor.force_flush(10) is False
        second = shut_down("second")
        second.join(0.3)
        assert not answers, "both wait for the server"
        with Receiver(listener) as receiver:
            first.join()
            second.join()
            assert answers == {"first": True, "second": True} and receiver.series
    after = pyroscope.stats()
    assert after["uploaded"] == after["taken"] == stats["taken"]
    assert pyroscope.shutdown() is False and processor.force_flush(10) is True, "none is left"
    processor.shutdown()


@pytest.mark.parametrize("timeout", [1e19, math.inf, sys.float_info.max])
def test_a_flush_may_have_any_timeout(timeout):
    assert pyroscope.configure(application_name="x", server_address="none")
    assert pyroscope.flush(timeout)


def test_the_logger_is_left_alone():
    logger = logging.getLogger("pyroscope")
    before = (logger.level, logger.disabled, list(logger.handlers), logger.propagate)
    pyroscope.configure(application_name="x", server_address="none", enable_logging=True)
    pyroscope.shutdown()
    assert (logger.level, logger.disabled, list(logger.handlers), logger.propagate) == before


def test_a_server_that_is_not_there_is_told_and_nothing_is_printed(python):
    python(
        """
        import logging, pyroscope
        from conftest import burn
        records = []
        class Keep(logging.Handler):
            def emit(self, record): records.append(record.getMessage())
        logging.getLogger("pyroscope").addHandler(Keep())
        assert pyroscope.configure(application_name="x", server_address="http://127.0.0.1:9", sample_rate=250)
        burn(0.1)
        pyroscope.flush(2)
        pyroscope.shutdown()
        assert any("127.0.0.1:9" in text for text in records), records
        """
    )
    assert python.stderr == ""


@pytest.mark.parametrize(
    "change",
    [
        "sys.implementation = types.SimpleNamespace(**{**vars(sys.implementation), 'name': 'pypy'})",
        "sys.abiflags = 't'",
        "sys.gettotalrefcount = lambda: 0",
    ],
)
def test_an_interpreter_that_is_not_known_is_not_sampled(python, change):
    """Spans go on, and one warning says why."""
    out = python(
        f"""
        import logging, sys, types
        import pyroscope
        from pyroscope.otel import PyroscopeSpanProcessor
        from opentelemetry.sdk.trace import TracerProvider
        records = []
        class Keep(logging.Handler):
            def emit(self, record): records.append(record.getMessage())
        logging.getLogger("pyroscope").addHandler(Keep())
        {change}
        assert pyroscope.configure(application_name="x", server_address="none") is False
        provider = TracerProvider()
        provider.add_span_processor(PyroscopeSpanProcessor())
        with provider.get_tracer("t").start_as_current_span("a") as span:
            assert span.is_recording()
        print(len(records), records[0])
        """
    )
    assert out.startswith("1 no profiles are taken, spans go on working: ")


def test_the_native_modules_types_are_known():
    assert isinstance(_native, types.ModuleType) and "pyroscope._native" in sys.modules
