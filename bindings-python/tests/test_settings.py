"""Every setting of configure() by argument and by environment variable: what it does to what is uploaded.

One table says it all: a setting's argument, its variable, and what either changes. The environment's values are those that
users of any language's profiler may write.
"""

import base64
import http.server
import json
import re
import threading

import pytest
from conftest import burn
from receiver import PUSH, Receiver

import pyroscope
from pyroscope import LineNo, _native, _thread_labels


class Sent:
    """One upload: its request's path and headers, its series' labels, its samples' labels."""

    def __init__(self, path, headers, series):
        self.path = path
        self.headers = headers
        self.series = series
        self.labels = series.labels
        self.frames = [frame for sample in series.profile.samples for frame in sample.stack]


@pytest.fixture
def upload(monkeypatch):
    """Configures a profiler with arguments and variables, burns in a span of its own, and returns what was sent."""

    def run(arguments, variables):
        with Receiver() as receiver:
            place = receiver.url.removeprefix("http://")
            given = {"application_name": "app", "server_address": f"http://{place}", "sample_rate": 1000}
            given.update({name: fill(value, place) for name, value in arguments.items()})
            for name, value in variables.items():
                monkeypatch.setenv(name, fill(value, place))
                # A variable counts where no argument is given.
                given.pop({v: k for k, v in VARIABLES.items()}.get(name, ""), None)
            assert pyroscope.configure(**given)
            burn(0.05)
            assert pyroscope.shutdown()
            assert receiver.errors == []
            return Sent(*receiver.requests[0], receiver.series[0])

    return run


def fill(value, place):
    return value.replace("PLACE", place) if isinstance(value, str) else value


VARIABLES = {
    "application_name": "PYROSCOPE_APPLICATION_NAME",
    "server_address": "PYROSCOPE_SERVER_ADDRESS",
    "sample_rate": "PYROSCOPE_SAMPLE_RATE",
}


def basic(text):
    return "Basic " + base64.b64encode(text.encode()).decode()


#: (argument and its value), (variable and its value), what both lead to.
SAME = [
    ({"application_name": "shop"}, {"PYROSCOPE_APPLICATION_NAME": "shop"}, lambda s: s.labels["service_name"] == "shop"),
    (
        {"app_name": "shop"},
        {"OTEL_SERVICE_NAME": "shop", "PYROSCOPE_APPLICATION_NAME": ""},
        lambda s: s.labels["service_name"] == "shop",
    ),
    (
        {"server_address": "http://PLACE/base/"},
        {"PYROSCOPE_SERVER_ADDRESS": "PLACE/base"},
        lambda s: s.path == f"/base{PUSH}",
    ),
    (
        {"basic_auth_username": "user", "basic_auth_password": "pass"},
        {"PYROSCOPE_BASIC_AUTH_USER": "user", "PYROSCOPE_BASIC_AUTH_PASSWORD": "pass"},
        lambda s: s.headers["Authorization"] == basic("user:pass"),
    ),
    ({"tenant_id": "team"}, {"PYROSCOPE_TENANT_ID": "team"}, lambda s: s.headers["X-Scope-OrgID"] == "team"),
    (
        {"http_headers": {"X-Own": "1"}},
        {"PYROSCOPE_HTTP_HEADERS": '{"X-Own": "1"}'},
        lambda s: s.headers["X-Own"] == "1",
    ),
    (
        {"tags": {"region": "eu", "zone": 7}},
        {"PYROSCOPE_LABELS": "region:eu, zone=7"},
        lambda s: s.labels["region"] == "eu" and s.labels["zone"] == "7",
    ),
    ({"sample_rate": 250}, {"PYROSCOPE_SAMPLE_RATE": "250"}, lambda s: s.series.profile.period == 4_000_000),
    (
        {"sample_rate": 200},
        {"PYROSCOPE_PROFILING_INTERVAL": "5ms", "PYROSCOPE_SAMPLE_RATE": ""},
        lambda s: s.series.profile.period == 5_000_000,
    ),
    (
        {"resource_labels": True},
        {"OTEL_PYROSCOPE_RESOURCE_LABELS": "Yes"},
        lambda s: (s.labels["service_version"], s.labels["host_name"]) == ("1.2", "h"),
    ),
    (
        {"auth_token": "secret"},
        {"PYROSCOPE_HTTP_HEADERS": '{"Authorization": "Bearer secret"}'},
        lambda s: s.headers["Authorization"] == "Bearer secret",
    ),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("number", range(len(SAME)), ids=[" ".join(variables) for _, variables, _ in SAME])
@pytest.mark.parametrize("how", ["argument", "variable"])
def test_by_argument_and_by_variable(upload, monkeypatch, how, number):
    arguments, variables, holds = SAME[number]
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=1.2,host.name=h")
    sent = upload(arguments, {}) if how == "argument" else upload({}, variables)
    assert holds(sent), (sent.path, dict(sent.headers), sent.labels)


@pytest.mark.parametrize("no", [False, "no", " False "])
def test_resource_labels_are_asked_for_and_an_argument_wins(upload, monkeypatch, no):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=1.2,service.namespace=team")
    monkeypatch.setenv("OTEL_PYROSCOPE_RESOURCE_LABELS", "true")
    labels = upload({"resource_labels": no}, {}).labels
    assert "service_version" not in labels and labels["service_namespace"] == "team"
    assert upload({"tags": {"service_version": "own"}}, {}).labels["service_version"] == "own"


@pytest.mark.parametrize(
    "name, value, seconds",
    [("upload_interval", 15, 15), ("upload_interval", 1.5, 1.5)]
    + [("PYROSCOPE_UPLOAD_INTERVAL", text, s) for text, s in [("15", 15), ("15s", 15), ("1500ms", 1.5), ("1m", 60)]],
)
def test_durations_are_taken(monkeypatch, name, value, seconds):
    given = {"application_name": "x", "server_address": "none"}
    if name.isupper():
        monkeypatch.setenv(name, value)
    else:
        given[name] = value
    assert pyroscope.configure(**given)


BOOLEANS = {"true": True, "1": True, "YES": True, "False": False, "0": False, "no": False}


@pytest.mark.parametrize("name", ["PYROSCOPE_PROFILING_ENABLED", "PYROSCOPE_PROFILING_CPU_ENABLED"])
@pytest.mark.parametrize("value", BOOLEANS)
def test_booleans_in_any_case(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert pyroscope.configure(application_name="x", server_address="none") is BOOLEANS[value]
    # An argument of that name wins, where there is one.
    if name == "PYROSCOPE_PROFILING_CPU_ENABLED":
        assert pyroscope.configure(application_name="x", server_address="none", cpu_enabled=True)


@pytest.mark.parametrize(
    "name, value, allowed",
    [
        ("PYROSCOPE_PROFILING_ENABLED", "on", "true, false, 1, 0, yes, no"),
        ("PYROSCOPE_PROFILING_CPU_ENABLED", "2", "true, false, 1, 0, yes, no"),
        ("PYROSCOPE_PROFILING_ALLOCATION_ENABLED", "maybe", "true, false, 1, 0, yes, no"),
        ("OTEL_PYROSCOPE_ADD_SPAN_NAME", "never", "true, false, 1, 0, yes, no"),
        ("OTEL_PYROSCOPE_ADD_TRACE_ID", "never", "auto, true, false"),
        ("OTEL_PYROSCOPE_RESOURCE_LABELS", "all", "true, false, 1, 0, yes, no"),
        ("PYROSCOPE_UPLOAD_INTERVAL", "1h", "15, 15s, 500ms, 1m"),
        ("PYROSCOPE_UPLOAD_INTERVAL", "500ms", "1 s to 10 min"),
        ("PYROSCOPE_PROFILING_INTERVAL", "2m", "1ms to 1s"),
        ("PYROSCOPE_SAMPLE_RATE", "1e3", "1 to 1000"),
        ("PYROSCOPE_SAMPLE_RATE", "0", "1 to 1000"),
        ("PYROSCOPE_LABELS", "novalue", "name:value"),
        ("PYROSCOPE_LABELS", "a b=c", "A-Za-z_"),
        ("PYROSCOPE_LOG_LEVEL", "loud", "trace, debug, info, warn, error"),
        ("PYROSCOPE_SERVER_ADDRESS", "ftp://x", "file:///absolute/folder"),
    ],
)
def test_a_variable_with_a_value_that_is_not_allowed(monkeypatch, name, value, allowed):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="is not allowed; allowed: ") as raised:
        pyroscope.configure(application_name="x", **({} if "ADDRESS" in name else {"server_address": "none"}))
    assert allowed in str(raised.value)
    assert not _native.is_running()


def test_headers_are_never_shown(monkeypatch):
    monkeypatch.setenv("PYROSCOPE_HTTP_HEADERS", "hunter2")
    with pytest.raises(ValueError, match="PYROSCOPE_HTTP_HEADERS") as raised:
        pyroscope.configure(application_name="x", server_address="none")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "name, value",
    [
        ("PYROSCOPE_FORMAT", "jfr"),
        ("PYROSCOPE_PROFILER_EVENT", "itimer"),
        ("PYROSCOPE_PROFILER_ALLOC", "512k"),
        ("PYROSCOPE_PROFILER_LOCK", "10ms"),
        ("OTEL_PYROSCOPE_ADD_PROFILE_URL", "true"),
        ("OTEL_PYROSCOPE_ADD_PROFILE_BASELINE_URL", "whatever"),
        ("PYROSCOPE_PROFILING_HEAP_ENABLED", "true"),
    ],
)
def test_what_other_languages_read_is_left_alone(monkeypatch, caplog, name, value):
    monkeypatch.setenv(name, value)
    assert pyroscope.configure(application_name="x", server_address="none")
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize(
    "arguments, variables, names, traces",
    [
        ({}, {}, True, True),
        ({"span_names": False}, {}, False, True),
        ({}, {"OTEL_PYROSCOPE_ADD_SPAN_NAME": "false"}, False, True),
        ({"span_names": True}, {"OTEL_PYROSCOPE_ADD_SPAN_NAME": "false"}, True, True),
        ({"trace_id": False}, {}, True, False),
        ({"trace_id": "false"}, {}, True, False),
        ({}, {"OTEL_PYROSCOPE_ADD_TRACE_ID": "0"}, True, False),
        ({"trace_id": True}, {"OTEL_PYROSCOPE_ADD_TRACE_ID": "no"}, True, True),
        ({"trace_id": "auto"}, {}, True, True),
    ],
)
def test_what_samples_say_of_spans(tmp_path, monkeypatch, arguments, variables, names, traces):
    from opentelemetry.sdk.trace import TracerProvider
    from pprof import samples_of

    from pyroscope.otel import PyroscopeSpanProcessor

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert pyroscope.configure(application_name="x", server_address=f"file://{tmp_path}", sample_rate=1000, **arguments)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor())
    with provider.get_tracer("test").start_as_current_span("private") as span:
        burn(0.1)
        # On a machine that others use too the kernel may tell of a thread's time late: what it never told is in no span.
        while pyroscope.stats()["taken"]["samples"] == 0:
            burn(0.01)
    provider.shutdown()
    pyroscope.shutdown()
    labels = [sample.labels for sample in samples_of(tmp_path) if "burn" in sample.names]
    context = span.get_span_context()
    expected = {"span_id": format(context.span_id, "016x")}
    expected.update({"span_name": "private"} if names else {})
    expected.update({"trace_id": format(context.trace_id, "032x")} if traces else {})
    assert labels and all(found == expected for found in labels), (labels[0], expected)


@pytest.mark.parametrize(
    "trace_id, shown",
    [("sometimes", "trace_id: sometimes is not allowed; allowed: auto, true, false"), (7, "trace_id: 7 is not allowed; allowed: \"auto\", True, False")],
)
def test_a_trace_id_that_is_none(trace_id, shown):
    with pytest.raises((ValueError, TypeError), match=shown):
        pyroscope.configure(application_name="x", server_address="none", trace_id=trace_id)


@pytest.mark.parametrize(
    "name, value, shown",
    [
        ("sample_rate", True, "True is not allowed; allowed: an int, 1 to 1000 samples a second"),
        ("sample_rate", "100", "'100' is not allowed; allowed: an int, 1 to 1000 samples a second"),
        ("upload_interval", True, "True is not allowed; allowed: a number of seconds, 1 to 600"),
        ("upload_interval", "10", "'10' is not allowed; allowed: a number of seconds, 1 to 600"),
        ("tags", ["a"], "['a'] is not allowed; allowed: a dict of names and values"),
        ("application_name", 7, "7 is not allowed; allowed: a str"),
        ("basic_auth_password", b"hunter2", "the value (not shown) is not allowed; allowed: a str"),
        ("http_headers", "hunter2", "the value (not shown) is not allowed; allowed: a dict of names and values"),
    ],
)
def test_a_wrong_type_is_told_with_the_value_and_what_is_allowed(name, value, shown):
    with pytest.raises(TypeError) as raised:
        pyroscope.configure(**{"application_name": "x", "server_address": "none", name: value})
    assert str(raised.value) == f"{name}: {shown}"


class OldServer(http.server.BaseHTTPRequestHandler):
    """Says that it is Pyroscope 2.0.0, and takes anything."""

    def do_GET(self):
        body = json.dumps({"status": "success", "data": {"version": "2.0.0"}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format, *args):
        """Nothing: the output belongs to the tests."""


@pytest.mark.parametrize("arguments, told", [({}, True), ({"trace_id": True}, False), ({"trace_id": False}, False)])
def test_an_old_server_is_told_of_where_that_matters(caplog, arguments, told):
    caplog.set_level("INFO", "pyroscope")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OldServer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        assert pyroscope.configure(application_name="x", server_address=address, enable_logging=True, **arguments)
        burn(0.05)
        assert pyroscope.flush(20)
        pyroscope.shutdown()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert any("2.0.0" in record.getMessage() for record in caplog.records) is told


@pytest.mark.parametrize(
    "arguments",
    [
        {"gil_only": False},
        {"cpu_implementation": pyroscope.ProfilerImplementation.Stack},
        {"mem_max_nframe": 7},
        {"mem_heap_sample_size": 1},
        {"mem_enable_mem_domain": False},
        {"native": False},
        {"tenant_id": None, "tags": None, "http_headers": None},
        {"line_no": LineNo.First},
    ],
)
def test_accepted_without_a_word(caplog, recwarn, arguments):
    assert pyroscope.configure(application_name="x", server_address="none", **arguments)
    assert not caplog.records and not list(recwarn)


@pytest.mark.parametrize("level, told", [("info", 2), ("DEBUG", 2), ("warn", 1), ("Warning", 1), ("error", 0), ("off", 0)])
def test_the_log_level(monkeypatch, caplog, level, told):
    caplog.set_level("DEBUG", "pyroscope")
    monkeypatch.setenv("PYROSCOPE_LOG_LEVEL", level)
    assert pyroscope.configure(application_name="x", server_address="none", oncpu=False)
    monkeypatch.setenv("PYROSCOPE_PROFILING_ENABLED", "false")
    assert pyroscope.configure(application_name="x", server_address="none") is False
    assert len(caplog.records) == told, caplog.text


@pytest.mark.parametrize("logs, told", [("no", 1), (False, 1), ("", 1), ("yes", 2), (True, 2)])
def test_text_turns_logging_on_and_off_too(monkeypatch, caplog, logs, told):
    """What is blank is as if it was not given: warnings alone."""
    caplog.set_level("DEBUG", "pyroscope")
    assert pyroscope.configure(application_name="x", server_address="none", oncpu=False)
    before = len(caplog.records)
    monkeypatch.setenv("PYROSCOPE_PROFILING_ENABLED", "false")
    assert pyroscope.configure(application_name="x", server_address="none", enable_logging=logs) is False
    assert 1 + len(caplog.records) - before == told, caplog.text


def test_the_experimental_profiler_of_theirs_is_accepted():
    assert pyroscope.configure_experimental_stack_profiler(max_nframe=64, cpu_timer_interval_ms=5) is True


def test_an_unknown_argument_is_named():
    with pytest.raises(TypeError, match="aplication_name"):
        pyroscope.configure(aplication_name="x", server_address="none")
    assert not _native.is_running()


def test_the_old_packages_name():
    import pyroscope_io

    assert pyroscope_io.configure is pyroscope.configure and set(pyroscope.__all__) <= set(dir(pyroscope_io))


def test_the_help_names_every_argument():
    import inspect
    import re

    words = set(re.findall(r"\w+", pyroscope.configure.__doc__ or ""))
    assert set(inspect.signature(pyroscope.configure).parameters) - words == set()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"line_no": "last"}, "line_no: 'last' is not allowed; allowed: LineNo.LastInstruction, LineNo.First, LineNo.NoLine"),
        ({"line_no": 7}, "line_no: 7 is not allowed; allowed: LineNo.LastInstruction, LineNo.First, LineNo.NoLine"),
        ({"cpu_enabled": "sometimes"}, "cpu_enabled: sometimes is not allowed; allowed: true, false, 1, 0, yes, no"),
        ({"wall_time": 2}, "wall_time: 2 is not allowed; allowed: true, false, 1, 0, yes, no"),
        ({"report_thread_name": []}, "report_thread_name: [] is not allowed; allowed: true, false, 1, 0, yes, no"),
        ({"resource_labels": 0.5}, "resource_labels: 0.5 is not allowed; allowed: true, false, 1, 0, yes, no"),
    ],
)
def test_arguments_of_a_choice_name_what_is_allowed(argument, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        pyroscope.configure(application_name="x", server_address="none", **argument)


def test_text_is_yes_or_no_as_in_the_environment():
    assert pyroscope.configure(application_name="x", server_address="none", cpu_enabled="no") is False
    assert pyroscope.configure(application_name="x", server_address="none", cpu_enabled="yes") is True


@pytest.mark.parametrize("value, told", [(True, True), (1, True), ("yes", True), (False, False), (0, False), ("no", False), (None, False), ("", False)])
def test_what_is_a_bool_in_other_words_is_taken_at_its_word(value, told):
    told_by_threads = {"report_thread_id": value, "report_thread_name": value}
    assert pyroscope.configure(application_name="x", server_address="none", wall_time=value, enable_logging=value, **told_by_threads)
    assert _native.has_wall_time() is told
    assert (_thread_labels._id, _thread_labels._name) == (told, told)


def test_logging_takes_whatever_is_true_as_grafanas_package_does():
    assert pyroscope.configure(application_name="x", server_address="none", enable_logging=[])
    assert pyroscope.configure(application_name="x", server_address="none", enable_logging=20)
