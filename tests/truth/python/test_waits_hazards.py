"""Programs whose calls of libc are measured do what they did before, and what they waited for is seen."""

import json
import platform
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import children
import pprof
import pytest
import waits_hazards

HERE = Path(__file__).resolve().parent


OLD_CONDITIONS = """
import ctypes, pyroscope
assert pyroscope.configure(application_name="old", server_address="none", wall_time=True)
assert ctypes.CDLL(None).waits_as_it_did() == 0
"""


def test_conditions_of_an_older_libc_are_waited_for_as_they_were(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("no C compiler for x86-64 here (Debian: apt-get install gcc)")
    library = tmp_path / "old.so"
    source = HERE / "old_conditions.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-z,lazy", source, "-o", library], check=True)
    children.succeeded(children.run("-c", OLD_CONDITIONS, environment={"LD_PRELOAD": str(library)}))


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_c_code_goes_on_as_it_did(binding: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here (Debian: apt-get install gcc)")
    library = tmp_path / "hazards.so"
    source = HERE / "waits_hazards.c"
    command = [compiler, "-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-z,{binding}", "-Wl,-z,relro", "-Wl,-z,notext", source, "-o", library]
    subprocess.run(command, check=True)
    profiles = tmp_path / "profiles"
    said = json.loads(children.succeeded(children.run(waits_hazards.__file__, library, profiles)))
    assert {name: line for name, line in said["results"].items() if line != 0} == {}

    seen: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    for profile in pprof.read_folder(profiles):
        for sample in profile.samples:
            if sample.labels.get("state") == "cpu":
                cpu[sample.labels["span_name"]] += profile.weight(sample)
            # What the thread stood in the queue for is of other tests: here a span may have another's.
            if sample.labels.get("state") not in (None, "cpu", "run_queue"):
                seen[sample.labels["span_name"]] += profile.weight(sample)
    # Left by a jump or a cancellation a wait is not seen; all others are, also of modules that came later.
    for span, least in [
        ("waits_through_a_table", 20e6),
        ("errno_is_kept", 20e6),
        ("is_interrupted", 20e6),
        ("waits_in_a_handler", 20e6),
        ("by_system_call", 20e6),
        ("opened", 3 * 20 * 20e6),
        ("waits_through_protected_tables", 2 * 20e6),
        # The jumps' many waits made few of the first ones samples.
        ("after_jumps", 0.6e9),
    ]:
        # A timer that expires late, within a wait, takes off what it stands for.
        assert seen[span] + cpu[span] > 0.95 * least, f"{span}: {seen[span]} and {cpu[span]} of {least} ns"
        # Waits within waits count once: twice would be 10 ms more. Of waits that are short beside a millisecond one that is a sample
        # stands for that, so a few may be more than all of them took.
        assert seen[span] <= said["walls"].get(span, seen[span]) + 5e6, f"{span}: {seen[span]} of {said['walls']}"
    # The exact sums of each: waits within waits count once in these too, and what a child of vfork waits for is not its parent's.
    for span, attributes in said["times"].items():
        exact = {name: ns for name, ns in attributes.items() if name.startswith("pyroscope.time.")}
        cpu_ns = exact.pop("pyroscope.time.cpu")
        assert 0 < cpu_ns <= said["walls"][span] and sum(exact.values()) <= said["walls"][span], f"{span}: {attributes}"
    assert "pyroscope.time.sleep" not in said["times"]["vforks"], said["times"]["vforks"]
    for span, state in [("waits_through_a_table", "sleep"), ("errno_is_kept", "io"), ("waits_in_a_handler", "sleep")]:
        assert said["times"][span][f"pyroscope.time.{state}"] >= 19e6, said["times"][span]


# A part of a program: a thread that lists the modules until it is told to go on.
LISTS = """
import ctypes, threading
lists, goes_on = threading.Event(), threading.Event()

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
def one(*module):
    lists.set()
    return 0 if goes_on.wait(60) else 1

lister = threading.Thread(target=lambda: ctypes.CDLL(None).dl_iterate_phdr(one, None))
lister.start()
assert lists.wait(60)
"""
LISTED = f"""
import faulthandler, os, signal
import pyroscope
# Threads that wait for each other, with the interpreter's lock held, are ended all the same.
faulthandler.dump_traceback_later(60, exit=True)
os.register_at_fork(after_in_child=lambda: signal.alarm(60))
assert pyroscope.configure(application_name="listed", server_address="none", wall_time=True)
{LISTS}
process = ctypes.CDLL(None)
for _ in range(3):
    # Looked up each time, as by item.
    assert process["getpid"]() == os.getpid()
    # The profiler's thread looks for modules too.
    assert pyroscope.flush(30)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
goes_on.set()
lister.join()
pyroscope.shutdown()
print("ended")
"""


def test_who_lists_the_modules_by_a_function_of_python_holds_up_nobody() -> None:
    """threadpoolctl does: ld.so holds its list meanwhile, and the function waits for the lock of who looks for modules."""
    assert children.succeeded(children.run("-c", LISTED)).split() == ["ended"]


FORKED = """
import ctypes, os, signal, sys, time
# A child that waits for ever is ended, also where it does so as it is forked.
os.register_at_fork(after_in_child=lambda: signal.alarm(60))
import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor
library = ctypes.CDLL(sys.argv[1])
assert library.hold_modules_at_forks() == 0
assert pyroscope.configure(application_name="forked", server_address=sys.argv[2], wall_time=True)
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(PyroscopeSpanProcessor())
child = os.fork()
if child == 0:
    with provider.get_tracer("forked").start_as_current_span("forked"):
        # A function that is looked up, as in a module that was just opened, is where modules are looked for.
        assert ctypes.CDLL(None).getpid() == os.getpid()
        time.sleep(0.2)
    os._exit(0 if pyroscope.flush(30) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_is_forked_while_a_module_is_closed_goes_on_and_is_measured(tmp_path: Path) -> None:
    """glibc leaves it a lock that nobody gives back, and who asks for the list of modules would wait for that for ever."""
    compiler = shutil.which("cc")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("no C compiler for x86-64 here (Debian: apt-get install gcc)")
    library, profiles = tmp_path / "hazards.so", tmp_path / "profiles"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-z,notext", HERE / "waits_hazards.c", "-o", library], check=True)
    assert children.succeeded(children.run("-c", FORKED, library, profiles.as_uri())).split() == ["0"]
    slept = [
        profile.weight(sample)
        for profile in pprof.read_folder(profiles)
        for sample in profile.samples
        if (sample.labels.get("span_name"), sample.labels.get("state")) == ("forked", "sleep")
    ]
    assert sum(slept) > 0.19e9, slept


OWN_SEND = "long send(int a, const void *b, unsigned long c, int d) { return 4711; }"
CALLS_SEND = """
#include <sys/socket.h>
long sends(void) { return send(-1, "", 1, 0); }
"""

DEEP = """
import ctypes, os, sys, pyroscope
def opened():
    return ctypes.CDLL(sys.argv[1], mode=os.RTLD_LAZY | os.RTLD_DEEPBIND)
library = opened() if sys.argv[2] == "before" else None
assert pyroscope.configure(application_name="deep", server_address="none", wall_time=True)
library = library or opened()
print(library.sends())
pyroscope.shutdown()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_who_finds_a_function_of_his_own_calls_it(when: str, tmp_path: Path) -> None:
    """A module that is bound lazily, and in whose own scope another one has a function with a name of libc's."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here (Debian: apt-get install gcc)")
    for name, text, options in [("own", OWN_SEND, []), ("calls", CALLS_SEND, ["-Wl,-z,lazy", "-Wl,-rpath,$ORIGIN", "-lown"])]:
        (tmp_path / f"{name}.c").write_text(text)
        command = [compiler, "-shared", "-fPIC", tmp_path / f"{name}.c", "-o", tmp_path / f"lib{name}.so", f"-L{tmp_path}"]
        subprocess.run([*command, *options], check=True)
    assert children.succeeded(children.run("-c", DEEP, tmp_path / "libcalls.so", when)).split() == ["4711"]


OWN_NAMES = """
#include <sys/stat.h>
long access(long a, long b, long c, long d) { return a + 10 * b + 100 * c + 1000 * d; }
int stat(const char *path, struct stat *found) { found->st_size = 4711; return 0; }
"""
CALLS_OWN_NAMES = """
#include <sys/stat.h>
long access(long a, long b, long c, long d);
long accesses(void) { return access(1, 2, 3, 4); }
long stats(void) { struct stat found = {0}; stat("/", &found); return found.st_size; }
"""
CALLS_THEM = """
import ctypes, pyroscope
assert pyroscope.configure(application_name="own", server_address="none", wall_time=True)
print(ctypes.CDLL(None).accesses(), ctypes.CDLL(None).stats())
"""


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_who_comes_before_libc_may_have_functions_with_names_of_libc_s(binding: str, tmp_path: Path) -> None:
    """One that is another function altogether, and one that is known by another name: the same function of libc's is `stat64`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here (Debian: apt-get install gcc)")
    libraries = []
    for name, text in [("own", OWN_NAMES), ("calls", CALLS_OWN_NAMES)]:
        source, library = tmp_path / f"{name}.c", tmp_path / f"{name}.so"
        source.write_text(text)
        subprocess.run([compiler, "-shared", "-fPIC", "-fno-builtin", f"-Wl,-z,{binding}", source, "-o", library], check=True)
        libraries.append(str(library))
    said = children.succeeded(children.run("-c", CALLS_THEM, environment={"LD_PRELOAD": ":".join(libraries)}))
    assert said.split() == ["4321", "4711"]


FIRST_IN_A_CHILD = f"""
import os, signal, sys
import pyroscope
if sys.argv[1] == "profiled":
    assert pyroscope.configure(application_name="parent", server_address="none")
{LISTS}
child = os.fork()
if child == 0:
    signal.alarm(60)
    # So often, each at once, and no thread is left behind.
    for _ in range(3):
        assert pyroscope.configure(application_name="child", server_address="none", wall_time=True) and pyroscope.flush(30)
    os._exit(0 if len(os.listdir("/proc/self/task")) == 2 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
goes_on.set()
lister.join()
"""


@pytest.mark.parametrize("parent", ["profiled", "not profiled"])
def test_a_child_that_is_the_first_to_measure_waits_and_was_forked_while_modules_were_listed(parent: str) -> None:
    assert children.succeeded(children.run("-c", FIRST_IN_A_CHILD, parent)).split() == ["0"]


OPENED_AT_FORK = """
import ctypes, os, signal, time
import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(PyroscopeSpanProcessor())
# What ld.so tells debuggers of itself, r_state of struct r_debug.
state = ctypes.c_int.from_address(ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(None), "_r_debug")) + 24)
assert state.value == 0
child = os.fork()
if child == 0:
    signal.alarm(60)
    state.value = 1  # a module is being opened, by a thread that is not here
    assert pyroscope.configure(application_name="child", server_address="none", wall_time=True)
    with provider.get_tracer("child").start_as_current_span("waits"):
        time.sleep(0.1)
    os._exit(0 if pyroscope.stats()["waits_taken"]["samples"] > 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_is_the_first_to_measure_waits_and_was_forked_while_a_module_was_opened() -> None:
    """ld.so ends a process in which it is asked for a module that is there already, while it says that it opens one."""
    assert children.succeeded(children.run("-c", OPENED_AT_FORK)).split() == ["0"]


LISTED_AT_START = f"""
import faulthandler, time
import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor
faulthandler.dump_traceback_later(60, exit=True)
{LISTS}
assert pyroscope.configure(application_name="listed", server_address="none", wall_time=True)
goes_on.set()
lister.join()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(PyroscopeSpanProcessor())
with provider.get_tracer("listed").start_as_current_span("waits"):
    while pyroscope.stats()["waits_taken"]["samples"] == 0:
        time.sleep(0.01)
pyroscope.shutdown()
print("measured")
"""


def test_a_start_while_the_modules_are_listed_measures_waits_from_later_on() -> None:
    assert children.succeeded(children.run("-c", LISTED_AT_START)).split() == ["measured"]


SLEEPS = """
#include <poll.h>
int sleeps(int milliseconds) { return poll(0, 0, milliseconds); }
"""
SLEEPING = """
import ctypes, faulthandler, os, resource, sys
import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor
faulthandler.dump_traceback_later(60, exit=True)
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(PyroscopeSpanProcessor(time_attributes=True))

def start():
    assert pyroscope.configure(application_name="sleeping", server_address="none", wall_time=True)

def is_seen(sleeps):
    with provider.get_tracer("sleeping").start_as_current_span("span") as span:
        assert sleeps(20) == 0
    return span.attributes.get("pyroscope.time.sleep", 0) > 15_000_000
"""
WITHOUT_FILES = """
library = ctypes.CDLL(sys.argv[1])
assert library.sleeps(0) == 0
start()
pyroscope.shutdown()
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
start()
first = is_seen(library.sleeps)
for file in taken:
    os.close(file)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
while not is_seen(library.sleeps):
    pass
print(first, True)
"""
IN_PLACE = """
import _ctypes

def opened(path):
    library = ctypes.CDLL(path)
    # As all of its code is in one page, this says where it is.
    return library, ctypes.cast(library.sleeps, ctypes.c_void_p).value >> 12

start()
for _ in range(1_000):
    idle, there = opened(sys.argv[1])
    _ctypes.dlclose(idle._handle)
    library, place = opened(sys.argv[2])
    if place == there:
        break
    _ctypes.dlclose(library._handle)
assert place == there, "no module came to be where another one was"
print(is_seen(library.sleeps))
"""


def library_of(text: str, path: Path, *options: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here (Debian: apt-get install gcc)")
    source = path.with_suffix(".c")
    source.write_text(text)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", path, *options], check=True)
    return path


def test_what_could_not_be_written_for_want_of_a_file_descriptor_is_written_later(tmp_path: Path) -> None:
    library = library_of(SLEEPS, tmp_path / "sleeps.so", "-Wl,-z,now,-z,relro")
    assert children.succeeded(children.run("-c", SLEEPING + WITHOUT_FILES, library)).split() == ["False", "True"]


@pytest.mark.parametrize("before", ["another", "the same"])
def test_a_module_that_comes_where_one_was_is_measured(before: str, tmp_path: Path) -> None:
    sleeps = library_of(SLEEPS, tmp_path / "sleeps.so")
    idle = sleeps if before == "the same" else library_of("int sleeps(int milliseconds) { return 0; }", tmp_path / "idle.so")
    assert children.succeeded(children.run("-c", SLEEPING + IN_PLACE, idle, sleeps)).split() == ["True"]


CONSTRUCTOR = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void constructed(void)
{
    char byte = 0;
    (void)!write(atoi(getenv("CONSTRUCTED")), &byte, 1);
    (void)!read(atoi(getenv("GOES_ON")), &byte, 1);
}
"""
LOADING = """
import ctypes, faulthandler, os, sys, threading
import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor
faulthandler.dump_traceback_later(60, exit=True)
begun, begins = os.pipe()
ends, end = os.pipe()
os.environ.update(CONSTRUCTED=str(begins), GOES_ON=str(ends))
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(PyroscopeSpanProcessor())

def span():
    with provider.get_tracer("loading").start_as_current_span("span"):
        with pyroscope.tag_wrapper({"tag": "value"}):
            pass

goes = threading.Event()
older = threading.Thread(target=lambda: goes.wait() and span())
older.start()
assert pyroscope.configure(application_name="loading", server_address="none", wall_time=sys.argv[2] == "waits")
# As a function of C, without the interpreter's lock.
loader = threading.Thread(target=lambda: ctypes.CDLL(None).dlopen(sys.argv[1].encode(), os.RTLD_NOW))
loader.start()
os.read(begun, 1)
goes.set()
older.join()
younger = threading.Thread(target=span)
younger.start()
younger.join()
assert pyroscope.flush(30)
os.write(end, b"x")
loader.join()
print("ended")
"""


@pytest.mark.parametrize("measures", ["waits", "nothing else"])
def test_threads_begin_while_a_library_is_loaded_whose_constructor_takes_its_time(measures: str, tmp_path: Path) -> None:
    """ld.so's lock is held until it is over, and may be waited for with the interpreter's."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here (Debian: apt-get install gcc)")
    source, library = tmp_path / "constructor.c", tmp_path / "constructor.so"
    source.write_text(CONSTRUCTOR)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    assert children.succeeded(children.run("-c", LOADING, library, measures)).split() == ["ended"]


COPIES = """
import json, os, sys, time, pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor
pyroscope.configure(application_name="copies", server_address=sys.argv[1], wall_time=True)
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(PyroscopeSpanProcessor())
tracer = provider.get_tracer("copies")
zero, memory = open("/dev/zero", "rb", buffering=0), memoryview(bytearray(12_000_000))
copies = {"read": lambda: zero.readinto(memory), "readv": lambda: os.readv(zero.fileno(), [memory])}
def off_cpu():
    return time.perf_counter_ns() - time.thread_time_ns()
taken = {}
for name, copy in copies.items():
    copy()
    with tracer.start_as_current_span(name):
        before, began = off_cpu(), time.thread_time_ns()
        while time.thread_time_ns() < began + 300_000_000:
            copy()
        taken[name] = off_cpu() - before
with tracer.start_as_current_span("sleeps"):
    for _ in range(500):
        time.sleep(0.0005)
pyroscope.shutdown()
print(json.dumps(taken))
"""


def test_calls_that_copy_much_do_not_wait(tmp_path: Path) -> None:
    off_cpu = json.loads(children.succeeded(children.run("-c", COPIES, tmp_path.as_uri())))
    seen: Counter[tuple[str, str]] = Counter()
    for profile in pprof.read_folder(tmp_path):
        for sample in profile.samples:
            if "state" in sample.labels:
                seen[sample.labels["span_name"], sample.labels["state"]] += profile.weight(sample)
    for name in ("read", "readv"):
        # Where others have the processor within a call, or another machine on the same host, that is time of the call's. Of expiries that
        # come together, as a busy kernel tells of them, one is taken off the next calls at most. Nothing taken off would be 0.3e9.
        assert seen[name, "io"] < 0.12e9 + off_cpu[name], f"{name}: {seen}, {off_cpu}"
    # And what they burnt is not taken off what another span waits for.
    assert seen["sleeps", "sleep"] > 0.2e9, seen


PRELOADED_CLOCK = """
    #include <fcntl.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    // As libfaketime's: it reads a file, and CPU time begins ten days before anything was burnt.
    int clock_gettime(clockid_t clock, struct timespec *time) {
        char bytes[64];
        int file = open("/proc/self/oom_score", O_RDONLY);
        if (file >= 0) (void)!read(file, bytes, sizeof bytes), close(file);
        int result = syscall(SYS_clock_gettime, clock, time);
        if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) time->tv_sec -= 10 * 24 * 3600;
        return result;
    }
"""

UNDER_ANOTHER_CLOCK = """
import os, sys, time, pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor

pyroscope.configure(application_name="clocks", server_address="none", wall_time=sys.argv[1] == "True")
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(PyroscopeSpanProcessor(scope="all", time_attributes=True))
began = os.times().user
with provider.get_tracer("clocks").start_as_current_span("burns") as span:
    while os.times().user - began < 0.5:
        time.sleep(0.001)
        sum(range(100_000))
pyroscope.shutdown()
stats = pyroscope.stats()
assert stats["taken"]["weight"] > 0.3e9, stats
assert stats["waits_taken"]["samples"] > 0 or sys.argv[1] == "False", stats
"""


@pytest.mark.parametrize("wall_time", [True, False])
def test_a_clock_that_waits_and_tells_another_time_is_not_asked(wall_time: bool, tmp_path: Path) -> None:
    library = library_of(PRELOADED_CLOCK, tmp_path / "clock.so")
    children.succeeded(children.run("-c", UNDER_ANOTHER_CLOCK, str(wall_time), environment={"LD_PRELOAD": str(library)}))


COMPARES_ADDRESSES = """
    #include <stdio.h>

    // As libcurl does, which sends a body again only where what reads it is still fread.
    static void *volatile kept;
    void keep(void) { kept = (void *)fread; }
    int is_the_same(void) { return kept == (void *)fread; }
"""

KEEPS_ADDRESSES = """
import ctypes, sys, pyroscope

library = ctypes.CDLL(sys.argv[1])
def start():
    assert pyroscope.configure(application_name="addresses", server_address="none", wall_time=True)

library.keep()
start()
assert library.is_the_same(), "kept before the start"
library.keep()
pyroscope.shutdown()
assert library.is_the_same(), "kept while it ran"
"""


def test_fread_is_the_same_function_before_and_after(tmp_path: Path) -> None:
    library = library_of(COMPARES_ADDRESSES, tmp_path / "addresses.so")
    children.succeeded(children.run("-c", KEEPS_ADDRESSES, str(library)))
