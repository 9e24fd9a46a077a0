"""Others in the process that use signals and timers: both sides have all they would have alone."""

import signal

import pytest
from pprof import samples_of

PRELUDE = """
import asyncio, faulthandler, os, select, signal, socket, sys, threading, time
import pyroscope
from pyroscope import _arguments
from truth_program import burn
folder = sys.argv[1]
def configure(rate=250):
    assert _arguments.launch({"application_name": "x", "server_address": "file://" + folder, "sample_rate": rate})
burnt = 0
def here(seconds):
    global burnt
    began = time.thread_time()
    burn(int(seconds * 1e9))
    burnt += time.thread_time() - began
"""


def assert_seen(folder, burnt, function="here"):
    """So many CPU seconds were in a function: a kernel that has much to do owes up to 100 ms of ticks, at last to nobody."""
    seen = sum(sample.values[-1] for sample in samples_of(folder) if function in sample.names) / 1e9
    assert burnt - 0.15 <= seen <= burnt + 0.1, f"{seen} of {burnt} s"


def test_a_profiler_by_sigprof_goes_on_beside_us(python, tmp_path):
    """Its handler is Python and its timer the process's. It is there before us, stays beside us, and after us."""
    out = python(
        PRELUDE
        + """
ticks = 0
def tick(*_):
    global ticks
    ticks += 1
def some_ticks():
    # Of a second, and on a busy machine, whose kernel merges them, of more.
    before = ticks
    for part in range(200):
        here(0.1)
        if part >= 10 and ticks - before >= 3:
            break
    return ticks - before
signal.signal(signal.SIGPROF, tick)
signal.setitimer(signal.ITIMER_PROF, 0.012, 0.012)
alone, burnt = some_ticks(), 0
configure()
beside = some_ticks()
# Made anew, as by a profiler that starts after us.
signal.setitimer(signal.ITIMER_PROF, 0.012, 0.012)
after = some_ticks()
assert signal.getsignal(signal.SIGPROF) is tick
assert pyroscope.shutdown()
signal.setitimer(signal.ITIMER_PROF, 0)
print(alone, beside, after, burnt)
""",
        args=(tmp_path,),
    )
    alone, beside, after, burnt = map(float, out.split())
    assert min(alone, beside, after) >= 3, out
    # Ours are not merged but weighted.
    assert_seen(tmp_path, burnt)


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_faulthandler_dumps_where_it_would(python, tmp_path, first):
    """Later, on demand by a signal, and at a crash, which still is one."""
    theirs = "faulthandler.enable(); faulthandler.register(signal.SIGUSR1)"
    ours = "configure()"
    starts = (theirs, ours) if first == "theirs" else (ours, theirs)
    burnt = python(
        PRELUDE
        + f"""
{starts[0]}
{starts[1]}
later = open(folder + "/later", "w+")
faulthandler.dump_traceback_later(0.2, repeat=True, file=later)
here(0.5)
while "in here" not in open(later.name).read() and burnt < 20:
    here(0.1)
faulthandler.cancel_dump_traceback_later()
os.kill(os.getpid(), signal.SIGUSR1)
assert pyroscope.flush()
print(burnt, flush=True)
faulthandler._sigsegv()
""",
        args=(tmp_path,),
        code=-signal.SIGSEGV,
    )
    later, dumped = (tmp_path / "later").read_text(), python.stderr
    assert "Timeout (0:00:00.200000)!" in later and "in here" in later
    assert "in <module>" in dumped.partition("Fatal Python error")[0]
    assert "Fatal Python error: Segmentation fault" in dumped
    # What was flushed before the crash.
    assert_seen(tmp_path, float(burnt))


def test_a_wakeup_fd_hears_of_the_programs_signals_alone(python, tmp_path):
    burnt = python(
        PRELUDE
        + """
receiver, sender = socket.socketpair()
receiver.setblocking(False)
sender.setblocking(False)
signal.set_wakeup_fd(sender.fileno())
signal.signal(signal.SIGUSR1, lambda *_: None)
configure()
here(0.5)
os.kill(os.getpid(), signal.SIGUSR1)
here(0.1)
assert receiver.recv(100) == bytes([signal.SIGUSR1])
assert signal.set_wakeup_fd(-1) == sender.fileno()
assert pyroscope.shutdown()
print(burnt)
""",
        args=(tmp_path,),
    )
    assert_seen(tmp_path, float(burnt))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_loops_signal_handlers_are_called(python, tmp_path, loop):
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    burnt = python(
        PRELUDE
        + f"""
import {loop}
heard = 0
async def main():
    global heard, began
    def hear():
        global heard
        heard += 1
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, hear)
    configure()
    began = time.thread_time()
    for number in range(10):
        os.kill(os.getpid(), signal.SIGUSR1)
        here(0.05)
        while heard <= number:
            await asyncio.sleep(0.001)
{loop}.run(main())
assert heard == 10
print(time.thread_time() - began)
assert pyroscope.shutdown()
""",
        args=(tmp_path,),
    )
    # Ten bursts: what a busy kernel tells late of one may be seen where the loop goes on.
    assert_seen(tmp_path, float(burnt), "<module>")


def test_gevents_signals_are_heard(python, tmp_path):
    pytest.importorskip("gevent")
    burnt = python(
        """
from gevent import monkey
monkey.patch_all()
"""
        + PRELUDE
        + """
import gevent
heard = []
gevent.signal_handler(signal.SIGUSR1, lambda: heard.append("gevent"))
configure()
busy = gevent.spawn(here, 0.5)
os.kill(os.getpid(), signal.SIGUSR1)
busy.join()
while not heard:
    gevent.sleep(0.001)
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert pyroscope.shutdown()
print(burnt)
""",
        args=(tmp_path,),
    )
    assert_seen(tmp_path, float(burnt))


def test_waiting_calls_are_not_cut_short(python, tmp_path):
    """Timers by CPU time leave those alone that wait; by wall time they interrupt, and the kernel or Python goes on."""
    python(
        PRELUDE
        + """
assert _arguments.launch({"application_name": "x", "server_address": "none", "wall_clock": True, "sample_rate": 1000})
signal.siginterrupt(signal.SIGUSR1, True)
began = time.monotonic()
time.sleep(0.2)
assert time.monotonic() - began >= 0.2
read, write = os.pipe()
began = time.monotonic()
assert select.select([read], [], [], 0.2)[0] == []
poll = select.poll()
poll.register(read, select.POLLIN)
assert poll.poll(200) == []
epoll = select.epoll()
epoll.register(read, select.EPOLLIN)
assert epoll.poll(0.2) == []
assert not threading.Event().wait(0.2)
assert time.monotonic() - began >= 0.79
late = threading.Timer(0.2, os.write, (write, b"x"))
late.start()
assert os.read(read, 1) == b"x"
lock = threading.Lock()
with lock:
    assert not lock.acquire(timeout=0.2)
# A machine that has much to do merges them.
assert pyroscope.stats()["taken"]["weight"] > 0.5e9
assert pyroscope.shutdown()
""",
        args=(tmp_path,),
    )
