"""Tags of blocks and of threads: what samples carry, however blocks nest, cross threads and tasks, or are named wrongly."""

import asyncio
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import burn

import pyroscope
from pyroscope import _messages, tag_wrapper


def named(name: str):
    """A function of this name that burns, so that its samples are told from others."""
    scope = {"burn": burn}
    exec(f"def {name}(seconds=0.03): burn(seconds)", scope)
    return scope[name]


def tags_in(samples, function: str, *names: str):
    """The values of these labels in all samples of a function."""
    found = {tuple(sample.labels.get(name) for name in names) for sample in samples if function in sample.names}
    assert found, f"{function} was not sampled"
    return found


def test_a_block_that_began_before_the_profiler(recording):
    with tag_wrapper({"step": "early"}):
        recording.start_dense()
        named("inside")()
    named("outside")()
    samples = recording.samples()
    assert tags_in(samples, "inside", "step") == {("early",)}
    assert tags_in(samples, "outside", "step") == {(None,)}


def test_what_is_raised_while_a_message_is_passed_on_at_the_entry_leaves_no_tags(recording, monkeypatch):
    """A logger that takes its time, and a signal's handler that raises meanwhile: a deadline, KeyboardInterrupt."""

    class Stop(BaseException):
        pass

    def raises():
        raise Stop

    recording.start_dense()
    with monkeypatch.context() as patch:
        patch.setattr(_messages, "deliver_due", raises)
        with pytest.raises(Stop):
            tag_wrapper({"step": "never"}).__enter__()
    named("afterwards")()
    assert tags_in(recording.samples(), "afterwards", "step") == {(None,)}


def test_nested_identical_and_equal_names(recording):
    recording.start_dense()
    with tag_wrapper({"step": "a", "tenant": "x"}):
        with tag_wrapper({"step": "a"}):
            with tag_wrapper({"step": "b"}):
                named("inner")()
            named("middle")()
        named("outer")()
    named("outside")()
    samples = recording.samples()
    assert tags_in(samples, "inner", "step", "tenant") == {("b", "x")}
    assert tags_in(samples, "middle", "step", "tenant") == {("a", "x")}
    assert tags_in(samples, "outer", "step", "tenant") == {("a", "x")}
    assert tags_in(samples, "outside", "step", "tenant") == {(None, None)}


def test_one_wrapper_entered_again_and_by_several_threads(recording):
    recording.start_dense()
    shared = tag_wrapper({"step": "shared"})
    both_inside, one_left = threading.Barrier(2, timeout=20), threading.Event()

    def first():
        with shared:
            both_inside.wait()
        one_left.set()
        named("first_outside")()

    def second():
        with tag_wrapper({"step": "own"}):
            with shared, shared:
                both_inside.wait()
                assert one_left.wait(20)
                named("second_inside")()
            named("second_outside")()

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    samples = recording.samples()
    assert tags_in(samples, "second_inside", "step") == {("shared",)}
    assert tags_in(samples, "second_outside", "step") == {("own",)}
    assert tags_in(samples, "first_outside", "step") == {(None,)}


def test_tasks_keep_their_own_and_a_shared_wrapper_is_each_ones(recording):
    recording.start_dense()
    shared = tag_wrapper({"shared": "yes"})

    async def work(name: str) -> None:
        with tag_wrapper({"task": name}), shared:
            for _ in range(10):
                named(f"work_{name}")(0.005)
                await asyncio.sleep(0)
        named(f"after_{name}")()

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    samples = recording.samples()
    for name in ("a", "b"):
        assert tags_in(samples, f"work_{name}", "task", "shared") == {(name, "yes")}
        assert tags_in(samples, f"after_{name}", "task", "shared") == {(None, None)}


def test_pools_see_the_tags_of_a_copied_context_only(recording):
    recording.start_dense()
    with ThreadPoolExecutor(1) as pool, tag_wrapper({"step": "submit"}):
        pool.submit(contextvars.copy_context().run, named("copied")).result()
        pool.submit(named("bare")).result()
    samples = recording.samples()
    assert tags_in(samples, "copied", "step") == {("submit",)}
    assert tags_in(samples, "bare", "step") == {(None,)}


def test_decorator_of_functions_methods_and_coroutine_functions(recording):
    recording.start_dense()
    plain, method, waits, recursive = named("plain"), named("method"), named("waits"), named("recursive")

    @tag_wrapper({"kind": "function"})
    def function(depth: int) -> int:
        """Its own."""
        recursive()
        return function(depth - 1) if depth else depth

    class Own:
        @tag_wrapper({"kind": "method"})
        def run(self) -> str:
            method()
            return "done"

    @tag_wrapper({"kind": "coroutine"})
    async def coroutine() -> str:
        await asyncio.sleep(0)
        waits()
        return "done"

    assert (function.__name__, function.__doc__) == ("function", "Its own.")
    assert asyncio.iscoroutinefunction(coroutine)
    assert function(2) == 0 and Own().run() == "done" and asyncio.run(coroutine()) == "done"
    plain()
    samples = recording.samples()
    assert tags_in(samples, "recursive", "kind") == {("function",)}
    assert tags_in(samples, "method", "kind") == {("method",)}
    assert tags_in(samples, "waits", "kind") == {("coroutine",)}
    assert tags_in(samples, "plain", "kind") == {(None,)}


def test_a_block_that_raises_or_ends_in_another_context_restores_what_it_can(recording):
    recording.start_dense()
    with pytest.raises(KeyError), tag_wrapper({"step": "raises"}):
        raise KeyError
    wrapper = tag_wrapper({"step": "elsewhere"})
    contextvars.copy_context().run(wrapper.__enter__)
    wrapper.__exit__(None, None, None)
    wrapper.__exit__(None, None, None)
    with wrapper:
        named("inside")()
    named("after")()
    samples = recording.samples()
    assert tags_in(samples, "inside", "step") == {("elsewhere",)}
    assert tags_in(samples, "after", "step") == {(None,)}


def test_a_generator_that_ends_in_another_context_ends_no_block_of_another_thread(recording):
    """As a fixture of a web framework may: begun in one copy of the context, closed in another."""
    recording.start_dense()
    shared = tag_wrapper({"step": "shared"})
    inside, closed = threading.Event(), threading.Event()

    def fixture():
        with shared:
            yield

    def other() -> None:
        with shared:
            inside.set()
            assert closed.wait(20)
            named("other_inside")()
        named("other_outside")()

    generator = fixture()
    contextvars.copy_context().run(next, generator)
    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(20)
    contextvars.copy_context().run(generator.close)
    closed.set()
    thread.join()
    samples = recording.samples()
    assert tags_in(samples, "other_inside", "step") == {("shared",)}
    assert tags_in(samples, "other_outside", "step") == {(None,)}


def test_blocks_that_never_end_are_many(python):
    """Each holds the one around it, and all go together with their context; of so many no more than some are kept."""
    python(
        """
        import contextvars, threading, pyroscope
        threading.stack_size(64 * 1024)

        def opens():
            wrapper = pyroscope.tag_wrapper({"step": "open"})
            for _ in range(25_000):
                wrapper.__enter__()

        thread = threading.Thread(target=contextvars.Context().run, args=(opens,))
        thread.start()
        thread.join()
        """
    )


def test_thread_tags_nest_and_belong_to_their_thread(recording):
    recording.start_dense()
    assert pyroscope.add_thread_tag("step", "a") and pyroscope.add_thread_tag("step", "a")
    assert pyroscope.add_thread_tag("step", "b")
    named("newest")()
    other = threading.Thread(target=named("other"))
    other.start()
    other.join()
    assert pyroscope.remove_thread_tag("step", "b") and pyroscope.remove_thread_tag("step", "a")
    named("once_more")()
    with tag_wrapper({"step": "block"}):
        named("block")()
    assert pyroscope.remove_thread_tag("step", "a") and pyroscope.remove_thread_tag("step", "never there")
    named("none")()
    samples = recording.samples()
    assert tags_in(samples, "newest", "step") == {("b",)}
    assert tags_in(samples, "other", "step") == {(None,)}
    assert tags_in(samples, "once_more", "step") == {("a",)}
    assert tags_in(samples, "block", "step") == {("block",)}, "the context's tags win"
    assert tags_in(samples, "none", "step") == {(None,)}


def test_thread_tags_need_a_profiler_and_outlive_a_restart(recording):
    assert pyroscope.add_thread_tag("step", "x") is False and pyroscope.remove_thread_tag("step", "x") is False
    recording.start_dense()
    assert pyroscope.add_thread_tag("kept", "x")
    recording.start_dense()
    named("restarted")()
    assert pyroscope.remove_thread_tag("kept", "x")
    assert tags_in(recording.samples(), "restarted", "kept", "step") == {("x", None)}


def test_a_forked_child_keeps_its_threads_tags(recording):
    recording.start_dense()
    assert pyroscope.add_thread_tag("step", "before")
    child = os.fork()
    if child == 0:
        try:
            named("in_child")(0.1)
            pyroscope.stop()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pyroscope.remove_thread_tag("step", "before")
    assert tags_in(recording.samples(), "in_child", "step") == {("before",)}


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize("value, shown", [(7, "7"), (None, "None"), (True, "True"), (Odd(), "odd"), ("é", "é")])
def test_values_of_any_type_become_str(recording, value, shown):
    recording.start_dense()
    with tag_wrapper({"of_block": value}):
        assert pyroscope.add_thread_tag("of_thread", value)
        named("tagged")()
        assert pyroscope.remove_thread_tag("of_thread", value)
    assert tags_in(recording.samples(), "tagged", "of_block", "of_thread") == {(shown, shown)}


@pytest.mark.parametrize("name", ["two words", "1st", "é", "", "a-b", "span_id", "trace_id", "service_name", "__name__"])
def test_a_name_that_no_server_takes_is_left_out_and_told_once(recording, caplog, name):
    """Grafana's package runs the block, so must ours: the profile, not the program, does without the tag."""
    recording.start_dense()
    from pyroscope import _native

    _native.take_messages()
    for _ in range(2):
        with tag_wrapper({name: "x", "good": "y"}):
            assert pyroscope.add_thread_tag(name, "x") is False
            named("tagged")()
    samples = recording.samples()
    assert tags_in(samples, "tagged", "good") == {("y",)}
    assert not any(name in sample.labels for sample in samples if "tagged" in sample.names)
    told = [record.getMessage() for record in caplog.records if "the tag is left out" in record.getMessage()]
    shown = name if name.startswith("__") or name in ("span_id", "trace_id", "service_name") else f'"{name}"'
    assert len(told) == 1, told
    assert told[0].startswith(f"tag_wrapper: {shown} is not allowed; allowed: "), told


@pytest.mark.parametrize("call", [lambda: pyroscope.add_thread_tag(1, "x"), tag_wrapper({1: "x"}).__enter__])
def test_a_name_that_is_no_str_is_a_type_error(call):
    with pytest.raises(TypeError, match="the name 1 is not a str"):
        call()


@pytest.mark.parametrize("tags", ["x", 5, None])
def test_tags_that_are_no_dict_are_a_type_error_that_says_so(tags):
    with pytest.raises(TypeError) as raised:
        tag_wrapper(tags)
    assert str(raised.value) == f"tag_wrapper: {tags!r} is not allowed; allowed: a dict of names and values"


def test_more_sets_than_the_engine_keeps_are_counted(python):
    """In a process of its own: the table's places are free again two uploads later."""
    out = python(
        """
        import contextvars, pyroscope
        pyroscope.configure(application_name="x", server_address="none")
        wrappers = [pyroscope.tag_wrapper({f"set{n}": n}) for n in range(1100)]
        for wrapper in wrappers:
            contextvars.copy_context().run(wrapper.__enter__)
        print(pyroscope.stats()["tag_sets_lost"])
        """
    )
    assert int(out) == 1100 - 1024
