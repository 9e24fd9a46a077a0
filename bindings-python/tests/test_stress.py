"""Ten thousand samples a second of code that changes its stack all the time: nothing may crash or hang."""

import pytest

HOSTILE = """
import asyncio, contextvars, gc, json, random, re, sys, threading, time, zlib, os
from pyroscope import _native, _settings
from pprof import samples_of
import pyroscope

folder, kind = sys.argv[1], sys.argv[2]
assert _settings.launch({"application_name": "stress", "server_address": "file://" + folder, "wall_clock": True, "sample_rate": 10000})
end = time.monotonic() + 3
mine = contextvars.ContextVar("mine")

def numbers(n):
    for i in range(n):
        yield i

def recurse(n):
    if n == 0:
        raise ValueError
    try:
        return recurse(n - 1)
    finally:
        pass

def dynamic(i):
    made = {}
    exec(compile(f"def burn_{i}(x):\\n  return [y * y for y in range(x)]\\n", f"<dynamic {i}>", "exec"), made)
    return made[f"burn_{i}"](50)

class Hostile:
    def __init__(self): self.me = self
    def __del__(self): [i for i in range(3)]
    def __eq__(self, other): return sum(numbers(3)) == 1
    def __hash__(self): return 1

def calls(random):
    try: recurse(random.randrange(1, 200))
    except ValueError: pass
    sum(numbers(500))
    sorted([2, 1, 3], key=lambda x: dynamic(3)[0])
    re.sub("a+", lambda m: "b", "aab" * 50)

def garbage(random):
    dynamic(random.randrange(10 ** 9))
    {Hostile(): 1 for _ in range(10)}
    gc.collect(0)

def libraries(random):
    json.loads(json.dumps(list(range(300))))
    zlib.compress(os.urandom(20000))

def contexts(random):
    async def task(i):
        mine.set(i)
        await asyncio.sleep(0)
        with pyroscope.tag_wrapper({"task": str(i)}):
            await asyncio.sleep(0)
    async def main():
        await asyncio.gather(*[task(i) for i in range(20)])
    asyncio.run(main())
    variables = [contextvars.ContextVar(str(i)) for i in range(30)]
    contextvars.copy_context().run(lambda: [v.set(i) for i, v in enumerate(variables)])

def greenlets(random):
    import greenlet
    def work(i):
        def deep(n):
            if n == 0:
                mine.set(i)
                for _ in range(30):
                    greenlet.getcurrent().parent.switch()
                return
            deep(n - 1)
        deep(random.randrange(1, 40))
        sorted([2, 1], key=lambda x: greenlet.getcurrent().parent.switch() or x)
    alive = [greenlet.greenlet(work) for _ in range(15)]
    for i, one in enumerate(alive):
        one.switch(i)
    while alive := [one for one in alive if not one.dead]:
        for one in alive:
            one.switch()

def threads(random):
    started = [threading.Thread(target=lambda: (sum(numbers(2000)), dynamic(1))) for _ in range(8)]
    for one in started: one.start()
    for one in started: one.join()

work = globals()[kind]
def body(seed):
    r = random.Random(seed)
    while time.monotonic() < end:
        work(r)

bodies = [threading.Thread(target=body, args=(seed,)) for seed in range(3)]
for one in bodies: one.start()
for one in bodies: one.join()
stats = _native.stats()
assert pyroscope.stop()
samples = samples_of(folder)
unreadable = sum(sample.values[0] for sample in samples if "(unreadable stack)" in sample.names)
total = sum(sample.values[0] for sample in samples)
print(stats["taken"]["samples"], unreadable / total, stats["dropped_ring"]["samples"], stats["frames_unresolved"])
"""


@pytest.mark.parametrize("kind", ["calls", "garbage", "libraries", "contexts", "greenlets", "threads"])
def test_hostile_code_is_survived(python, tmp_path, kind):
    if kind == "greenlets":
        pytest.importorskip("greenlet")
    folder = tmp_path / "profiles"
    folder.mkdir()
    taken, unreadable, _dropped, _unresolved = python(HOSTILE, args=(folder, kind)).split()
    assert int(taken) > 1_000
    assert float(unreadable) < 0.02
