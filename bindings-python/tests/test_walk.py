"""The walker sees what sys._getframe sees: the same functions, lines and order, whatever kind of frame it is."""

import asyncio
import gc
import pathlib
import random
import sys
import sysconfig
import threading
import traceback
import types
import warnings

import pytest

from pyroscope import _native


def name_of(code):
    # 3.10 has no qualified names.
    return getattr(code, "co_qualname", code.co_name)


def truth(frame):
    stack = traceback.walk_stack(frame)
    return [(name_of(one.f_code), one.f_code.co_filename, line, one.f_code.co_firstlineno) for one, line in stack]


@pytest.mark.parametrize("before", [0, 60])
def test_code_that_is_loaded_again_has_its_own_lines(before, request):
    """A module that is reloaded has the names, the file and often the addresses of the one that is gone."""
    # What the tests loaded is none of it, and takes long to look through.
    gc.freeze()
    request.addfinalizer(gc.unfreeze)
    for number in range(60):
        blank = number % 7
        source = "def handler(walk):\n" + "    x = 1\n" * before + "\n" * blank + "    return walk()\n" + "    x = 2\n" * before
        namespace = {}
        exec(compile(source, "plugin.py", "exec"), namespace)
        walked = namespace["handler"](_native.walk)
        lines = [line for name, _, line, _ in walked if name == "handler"]
        assert lines == [before + blank + 2], walked
        del namespace
        gc.collect()


class Checker:
    def __init__(self):
        self.checks = 0
        self.wrong = []

    def __call__(self):
        # Sixteen functions are told a walk, so a deep new stack takes some.
        for _ in range(20):
            walked, true = _native.walk(), truth(sys._getframe())
            if all(name for name, *_ in walked):
                break
        walked, true = walked[1:], true[1:]
        self.checks += 1
        if walked != true[: len(walked)] or (len(walked) < len(true) and len(walked) < 500):
            self.wrong.append((walked, true))


@pytest.fixture
def check():
    checker = Checker()
    yield checker
    assert checker.checks > 0
    assert not checker.wrong, checker.wrong[0]


def test_calls_and_recursion(check):
    def deep(n):
        return check() if n == 0 else deep(n - 1)

    for n in range(60):
        deep(n)
    (lambda: check())()
    exec("check()", {"check": check})
    eval("check()", {"check": check})
    max([1, 2], key=lambda x: check() or x)
    [check() for _ in range(2)]


def test_a_function_is_seen_wherever_its_frame_lies():
    """Frames of many sizes at each depth: from 3.13 on one at the place in a page where a chunk of the stack has its first was not."""

    def leaf():
        return _native.walk()[0][0]

    seen = []
    for size in range(1, 25):
        made = {}
        variables = "; ".join(f"v{n} = {n}" for n in range(size))
        exec(f"def of_its_size(depth, leaf):\n    {variables}\n    return of_its_size(depth - 1, leaf) if depth else leaf()", made)
        seen += [made["of_its_size"](depth, leaf) for depth in range(200)]
    assert set(seen) == {name_of(leaf.__code__)}


def test_a_stack_deeper_than_what_is_kept_loses_its_root(check):
    def deep(n):
        return check() if n == 0 else deep(n - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3000)
    try:
        deep(800)
    finally:
        sys.setrecursionlimit(limit)


def test_generators(check):
    def inner(n):
        for i in range(n):
            check()
            yield i

    def outer(n):
        check()
        yield from inner(n)

    assert list(outer(3)) == [0, 1, 2]
    assert sum(x for x in outer(2)) == 1


def test_coroutines(check):
    async def co(n):
        check()
        if n:
            await co(n - 1)
        await asyncio.sleep(0)
        check()

    async def numbers():
        for i in range(2):
            check()
            yield i

    async def main():
        await asyncio.gather(co(3), co(2))
        async for _ in numbers():
            check()

    asyncio.run(main())


def test_exceptions(check):
    def exc(n):
        try:
            if n:
                exc(n - 1)
            else:
                1 / 0
        except ZeroDivisionError:
            check()
            raise
        finally:
            check()

    for n in range(6):
        with pytest.raises(ZeroDivisionError):
            exc(n)


def test_descriptors_and_special_methods(check):
    class D:
        def __get__(self, instance, owner):
            check()
            return 1

        def __del__(self):
            check()

        def __lt__(self, other):
            check()
            return id(self) < id(other)

        def __init__(self):
            check()

        def __call__(self):
            check()

        def __getattr__(self, name):
            check()
            raise AttributeError(name)

    class E:
        d = D()

    # Often enough that the interpreter specialises the calls, with frames of its own below __init__.
    for _ in range(200):
        assert E().d == 1
        D()()
        sorted([D(), D(), D()])
        hasattr(D(), "missing")


def test_threads(check):
    def deep(n):
        return check() if n == 0 else deep(n - 1)

    for _ in range(5):
        thread = threading.Thread(target=deep, args=(5,))
        thread.start()
        thread.join()


def test_greenlets(check):
    greenlet = pytest.importorskip("greenlet")

    def deep(n):
        if n:
            return deep(n - 1)
        check()
        greenlet.getcurrent().parent.switch()
        check()

    for n in range(5):
        one = greenlet.greenlet(deep)
        one.switch(n)
        check()
        one.switch()


def test_names_that_are_not_ascii(check):
    made = {"check": check}
    exec(compile("def größe():\n    check()\ndef 関数():\n    größe()\n", "dätei.py", "exec"), made)
    made["関数"]()


def test_code_objects_made_in_rows_are_told_apart():
    """Their addresses and versions grow in steps, which a weak key confuses."""
    source = "\n".join(f"def row_{n}():\n    return walk()[0]" for n in range(8_000))
    made = {"walk": _native.walk}
    exec(compile(source, "<rows>", "exec"), made)
    wrong = [n for n in range(8_000) if made[f"row_{n}"]()[0] != f"row_{n}"]
    assert not wrong


def test_code_objects_at_the_address_of_dead_ones_are_told_apart():
    wrong = []
    for n in range(3_000):
        made = {"walk": _native.walk}
        exec(compile(f"def dead_{n}():\n    return walk()[0]", "<dead>", "exec"), made)
        found = made[f"dead_{n}"]()[0]
        if found != f"dead_{n}":
            wrong.append((n, found))
        del made
    assert not wrong


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def test_lines_are_those_of_co_lines():
    """The decoder of location tables against Python's own, over a sample of the standard library."""
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    random.Random(1).shuffle(files)
    instructions = 0
    for file in files:
        if instructions > 60_000:
            break
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                top = compile(file.read_bytes(), str(file), "exec")
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for code in code_objects(top):
            for start, end, line in code.co_lines():
                for index in range(start // 2, end // 2):
                    instructions += 1
                    assert _native.line_of(code.co_linetable, code.co_firstlineno, index) == line, (code, index)
    assert instructions > 60_000
