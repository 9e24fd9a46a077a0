"""Children that are forked while another thread starts the profiler: they do what that thread cannot do in them."""

import pytest

PRELUDE = """
import os, pty, signal, socket, sys, threading, traceback, warnings
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
import pyroscope
from pyroscope import _arguments, _native
from pyroscope.otel import PyroscopeSpanProcessor
from conftest import burn
from pprof import samples_of

warnings.simplefilter("ignore")
# What the SDK does with resources in a child takes long, starts threads and may hang by itself in the child of a child.
TracerProvider._handle_fork = lambda self: None
folder = sys.argv[1]
parent = os.getpid()
reached, go_on = threading.Event(), threading.Event()

def block():
    '''Here another thread stays, while the main one forks.'''
    if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
        reached.set()
        assert go_on.wait(90)

def provider_of(processor=None):
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(processor or PyroscopeSpanProcessor())
    return provider

def span_of(provider):
    return provider.get_tracer("test").start_as_current_span("in the child")

def in_child(deed, fork=os.fork):
    '''Does it in a child, which ends well or prints why not.'''
    child = fork()
    child = child[0] if isinstance(child, tuple) else child
    if child == 0:
        signal.alarm(60)
        try:
            deed()
        except BaseException:
            os.write(errors, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
errors = os.dup(2)

def sampled(span, name="shop"):
    '''Ends the profiler: it has samples of the child, with the span or without one, under this name.'''
    assert pyroscope.shutdown()
    for file in os.listdir(folder):
        assert file.startswith(name + "-"), file
    found = [sample.labels for sample in samples_of(folder) if "burn" in sample.names]
    assert found
    for labels in found:
        assert labels.get("span_name") == ("in the child" if span else None), labels

def burns():
    assert _native.is_running()
    burn(0.1)
    sampled(False)

def starts_a_thread():
    assert not _native.is_running() and len(os.listdir("/proc/self/task")) == 1
    thread = threading.Thread(target=burn, args=(0.1,))
    thread.start()
    thread.join()
    sampled(False)

def starts_a_span():
    with span_of(provider):
        burn(0.1)
    sampled(True)

def starts_a_span_at_last():
    assert not _native.is_running() and len(os.listdir("/proc/self/task")) == 1
    starts_a_span()

def while_blocked(start, *arguments):
    thread = threading.Thread(target=start)
    thread.start()
    assert reached.wait(60)
    in_child(*arguments)
    go_on.set()
    thread.join()

settings = {"application_name": "shop", "server_address": "file://" + folder, "sample_rate": 1000}
"""

DEEDS = pytest.mark.parametrize("deed", ["burns", "starts_a_span", "starts_a_thread, pty.fork", "starts_a_span_at_last, pty.fork"])


def environment_of(folder):
    return {"PYROSCOPE_SERVER_ADDRESS": f"file://{folder}", "PYROSCOPE_SAMPLE_RATE": "1000"}


@pytest.fixture
def profiles(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    return folder


# What the first start runs of Python's: within the native function.
BLOCKED_IN_THE_FIRST_START = """
import contextvars
Context = contextvars.Context

def context():
    contextvars.Context = Context
    block()
    return Context()

contextvars.Context = context
"""


@DEEDS
def test_a_child_that_is_forked_during_the_first_configure(python, profiles, deed):
    python(
        PRELUDE
        + BLOCKED_IN_THE_FIRST_START
        + f"""
provider = provider_of()
while_blocked(lambda: _arguments.launch(settings, True), {deed})
""",
        args=(profiles,),
    )


@DEEDS
@pytest.mark.parametrize("whose", ["the same processor's", "another's"])
def test_a_child_that_is_forked_during_the_start_by_a_first_span(python, profiles, deed, whose):
    python(
        PRELUDE
        + BLOCKED_IN_THE_FIRST_START
        + f"""
first = provider_of()
provider = first if {whose!r} == "the same processor's" else provider_of()
def first_span():
    first.get_tracer("x").start_span("first").end()
while_blocked(first_span, {deed})
""",
        env=environment_of(profiles),
        args=(profiles,),
    )


@DEEDS
def test_a_child_that_is_forked_while_a_configure_stops_a_profiler_whose_server_never_answers(python, profiles, deed):
    python(
        PRELUDE
        + f"""
server = socket.create_server(("localhost", 0))
provider = provider_of()
old = dict(settings, application_name="old", server_address="http://localhost:%d" % server.getsockname()[1])
assert _arguments.launch(old, True)
provider.get_tracer("x").start_span("before").end()
burn(0.05)
thread = threading.Thread(target=lambda: _arguments.launch(settings, True))
thread.start()
server.accept()  # the old one sends, so it is being stopped
in_child({deed})
os._exit(0)  # the thread may wait for 5 s
""",
        args=(profiles,),
    )


def test_a_child_restarts_nothing_that_it_has_stopped_itself(python, profiles):
    python(
        PRELUDE
        + BLOCKED_IN_THE_FIRST_START
        + """
def stops():
    assert not pyroscope.shutdown()
    threading.Thread(target=int).start()
    assert not _native.is_running()
while_blocked(lambda: _arguments.launch(settings, True), stops, pty.fork)
""",
        args=(profiles,),
    )


def test_a_start_that_fails_again_in_the_child_says_so_and_the_fork_goes_on(python, profiles):
    said = python(
        PRELUDE
        + BLOCKED_IN_THE_FIRST_START
        + """
import logging
logging.basicConfig(stream=sys.stdout, format="%(message)s")

def goes_wrong(*_):
    raise OSError("no luck")

def tells():
    assert not _native.is_running()
    pyroscope.flush(0)
    sys.stdout.flush()

def fork():
    start, _native.start = _native.start, goes_wrong
    try:
        return os.fork()
    finally:
        _native.start = start

while_blocked(lambda: _arguments.launch(settings, True), tells, fork)
""",
        args=(profiles,),
    )
    assert said == "no profiles are taken in this forked process: no luck\n"


# Blocks a thread at one line after the other of what a start runs of ours, each time in a process of its own.
AT_EACH_LINE = """
def lines_below(function, deed, at_line):
    '''Does it and calls at_line(number) before each line of the functions of a start that runs below this one.'''
    ours = os.path.dirname(pyroscope.__file__)
    functions = ("_begin", "_meet", "_launch_alone", "_launch", "started")
    number = 0

    def is_below(frame):
        while frame is not None and frame.f_code.co_name != function:
            frame = frame.f_back
        return frame is not None

    def trace(frame, event, argument):
        nonlocal number
        if not frame.f_code.co_filename.startswith(ours):
            return None
        if event == "line" and frame.f_code.co_name in functions and is_below(frame):
            number += 1
            sys.settrace(None)
            at_line(number)
            sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        deed()
    finally:
        sys.settrace(None)
    return number

def at_each_line(function, deed, child):
    def trial(stop_at):
        global parent
        parent = os.getpid()
        while_blocked(lambda: lines_below(function, deed, lambda number: number == stop_at and block()), child)

    told, tells = os.pipe()
    in_child(lambda: os.write(tells, b"%d" % lines_below(function, deed, lambda number: None)))
    lines = int(os.read(told, 20))
    assert lines > 10
    for stop_at in range(1, lines + 1):
        in_child(lambda: trial(stop_at))
"""


def test_a_child_is_forked_at_any_line_of_configure(python, profiles):
    python(
        PRELUDE
        + AT_EACH_LINE
        + """
def judge():
    assert _native.is_running() and _arguments.application_name == "shop" and _arguments.configured
    assert pyroscope.shutdown()

at_each_line("_launch", lambda: _arguments.launch(settings, True), judge)
""",
        args=(profiles,),
    )


def test_a_child_is_forked_at_any_line_of_a_first_span(python, profiles):
    python(
        PRELUDE
        + AT_EACH_LINE
        + """
def judge():
    with span_of(provider):
        assert _native.is_running() and _arguments.application_name == "shop" and not _arguments.configured
    provider.shutdown()
    assert not _native.is_running(), "the processor stops what it has started"

provider = provider_of()
at_each_line("_begin", lambda: provider.get_tracer("x").start_span("first").end(), judge)
""",
        env=environment_of(profiles),
        args=(profiles,),
    )


def test_a_handler_of_a_signal_opens_a_span_at_any_line_of_a_first_span(python, profiles):
    python(
        PRELUDE
        + AT_EACH_LINE
        + """
def handles(_number, _frame):
    provider.get_tracer("x").start_span("handler").end()

def trial(stop_at):
    lines_below("_begin", first_span, lambda number: number == stop_at and signal.raise_signal(signal.SIGUSR1))
    assert _native.is_running()
    provider.shutdown()
    assert not _native.is_running()

def first_span():
    provider.get_tracer("x").start_span("first").end()

signal.signal(signal.SIGUSR1, handles)
provider = provider_of()
for stop_at in range(1, 40):
    in_child(lambda: trial(stop_at))
""",
        env=environment_of(profiles),
        args=(profiles,),
    )


def test_a_subclass_keeps_its_on_start_in_the_child(python, profiles):
    python(
        PRELUDE
        + BLOCKED_IN_THE_FIRST_START
        + """
class Own(PyroscopeSpanProcessor):
    __hash__ = None
    seen = []

    def on_start(self, span, parent_context=None):
        self.seen.append(span.name)
        super().on_start(span, parent_context)

provider = provider_of(Own())

def child():
    Own.seen.clear()
    starts_a_span()
    assert Own.seen == ["in the child"]

while_blocked(lambda: provider.get_tracer("x").start_span("first").end(), child)
""",
        env=environment_of(profiles),
        args=(profiles,),
    )
