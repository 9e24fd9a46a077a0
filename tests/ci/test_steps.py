"""What the runner of ci/test's steps does: order and needs, what it makes of a failure, and which it tries again."""

import contextlib
import io
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "ci"))

import failures  # noqa: E402
import steps  # noqa: E402
from steps import Runner, Step  # noqa: E402

LATE = {"tests/test_clock.py::test_late": "the machine's clock", "ClockTest#test_late": "the same in Ruby"}
LATE_IN_PYTHON = "FAILED ../../tests/test_clock.py::test_late"
#: In place of ci/step. `once NAME TEXT` fails with the text the first time, and passes the second.
PROGRAM = r"""
note() { echo "$1" >>"$FOLDER/notes"; }
skips() { echo "no reason"; echo "nothing to do"; exit 77; }
fails() { printf '%b\n' "$1"; return 1; }
once() { [ -e "$FOLDER/$1" ] || { : >"$FOLDER/$1"; printf '%b\n' "$2"; return 1; }; }
meets() { : >"$FOLDER/$1"; until [ -e "$FOLDER/$2" ]; do :; done; }
segfaults() { cd "$STEP_FOLDER" && ulimit -c unlimited && exec python3 -c "import ctypes; ctypes.string_at(0)"; }
hangs() { timeout 0.1 sleep 10; }
waits() { sleep 600 & echo "$!" >"$FOLDER/child"; : >"$FOLDER/waits"; wait "$!"; }
"$@"
"""


class RunnerTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "program").write_text(PROGRAM)
        os.environ["FOLDER"] = folder.name
        self.addCleanup(setattr, steps, "TARGET", steps.TARGET)
        steps.TARGET = self.folder
        self.printed = io.StringIO()

    def runner(self, at_once: int = 4, again: bool = True) -> Runner:
        return Runner(["bash", str(self.folder / "program")], LATE, at_once, again)

    def run_steps(self, *some: Step, at_once: int = 4, again: bool = True) -> Runner:
        runner = self.runner(at_once, again)
        with contextlib.redirect_stdout(self.printed):
            runner.run(some)
            runner.print_failures()
            runner.print_table()
        return runner

    def table(self) -> dict[str, str]:
        """What the table says of each step, without seconds."""
        _, _, table = self.printed.getvalue().rpartition("CPU s\n")
        rows = re.findall(r"^(.{44}) (\w+) +\d+ +\d+  (.*)$", table, re.M)
        return {name.strip(): f"{how} {why}".strip() for name, how, why in rows}

    def test_steps_begin_in_their_order_as_soon_as_what_they_need_has_ended(self) -> None:
        self.run_steps(Step("b", "note b", ("a",)), Step("c", "note c"), Step("a", "note a"), Step("d", "note d", ("b", "c")), at_once=1)
        self.assertEqual((self.folder / "notes").read_text().split(), ["c", "a", "b", "d"])

    def test_as_many_run_at_a_time_as_may(self) -> None:
        self.run_steps(Step("a", "meets a b"), Step("b", "meets b a"), at_once=2)
        self.assertEqual(self.table(), {"a": "run", "b": "run"})

    def test_what_is_needed_may_fail_or_be_skipped(self) -> None:
        self.run_steps(Step("a", "fails no"), Step("b", "skips"), Step("c", "note c", ("a", "b")))
        self.assertEqual(self.table(), {"a": "FAILED", "b": "skipped nothing to do", "c": "run"})
        self.assertIn("=== a failed; where its output speaks of it", self.printed.getvalue())

    def test_a_need_that_is_no_step_is_named(self) -> None:
        with self.assertRaisesRegex(ValueError, "wait for what never ends: nobody"):
            self.run_steps(Step("a", "note a", ("nobody",)))

    def test_only_what_is_a_matter_of_time_or_of_a_download_runs_once_more(self) -> None:
        late = f"{LATE_IN_PYTHON}[10 ms] - assert 3 > 4"
        ruby = r"  1) Failure:\nClockTest#test_late [clock_test.rb:5]:\nToo late"
        texts = {
            "late": late,
            "ruby": ruby,
            "another": rf"{late}\nFAILED tests/test_b.py::test_b - x",
            "download": r"WARNING: Retrying: NewConnectionError\nstep: failed: pip install x (all of its output: y)",
            "refusal": "FAILED tests/test_c.py::test_c - NewConnectionError",
            "crash": rf"E       assert -11 == 0\n{late}",
        }
        again = [Step(name, shlex.join(["once", name, text])) for name, text in texts.items()]
        runner = self.run_steps(*again, Step("twice", shlex.join(["fails", late])))
        why = "failed at first (tests/test_clock.py::test_late: the machine's clock); see above"
        self.assertEqual(
            self.table(),
            {
                "late": f"run {why}",
                "ruby": "run failed at first (ClockTest#test_late: the same in Ruby); see above",
                "another": "FAILED",
                "download": "run failed at first (a download failed); see above",
                "refusal": "FAILED",
                "crash": "FAILED a process ended by a signal",
                "twice": f"FAILED {why}",
            },
        )
        self.assertEqual([runner.count("run"), runner.count("FAILED")], [3, 4])

    def test_nothing_runs_once_more_where_it_is_not_asked_for(self) -> None:
        self.run_steps(Step("late", shlex.join(["once", "late", f"{LATE_IN_PYTHON} - x"])), again=False)
        self.assertEqual(self.table(), {"late": "FAILED"})

    def test_a_crash_has_its_backtrace_or_why_there_is_none(self) -> None:
        self.run_steps(Step("crash", "segfaults"), Step("hang", "hangs"))
        self.assertEqual(self.table(), {"crash": "FAILED ended by signal 11", "hang": "FAILED hung"})
        self.assertRegex(self.printed.getvalue(), r"#\d+ .*string_at|#0 |no backtrace: ")

    def test_an_end_ends_all_that_a_step_has_started(self) -> None:
        runner = self.runner()

        def end() -> None:
            while not (runner._running and (self.folder / "waits").exists()):
                pass
            steps.end_tree(runner._running[0].process.pid)

        ends = threading.Thread(target=end)
        ends.start()
        with contextlib.redirect_stdout(self.printed):
            runner.run([Step("waits", "waits")])
        ends.join()
        self.assertEqual(runner.ended["waits"].sign, f"ended by signal {signal.SIGTERM:d}")
        child = Path("/proc", (self.folder / "child").read_text().strip(), "stat")
        # It was told to end; one that is not would sleep for minutes.
        with contextlib.suppress(FileNotFoundError):
            while child.read_text().rpartition(")")[2].split()[0] != "Z":
                pass


    def test_what_breaks_the_runner_ends_what_runs(self) -> None:
        runner = self.runner()
        with contextlib.redirect_stdout(self.printed):
            runner._begin(Step("waits", "waits"))
        while not (self.folder / "waits").exists():
            pass
        process = runner._running[0].process
        runner.end()
        # The shell, or what it had begun, is met first: then it says so by its own code.
        self.assertIn(process.returncode, (-signal.SIGTERM, 128 + signal.SIGTERM))
        self.assertEqual(runner._running, [])
        runner.end()


class SignsTest(unittest.TestCase):
    def test_what_is_never_a_matter_of_time_in_the_words_of_each_tool(self) -> None:
        said = {
            "E       assert -11 == 0": "a process ended by a signal",
            "E  CalledProcessError: died with <Signals.SIGSEGV: 11>.": "a process ended by a signal",
            "#<Process::Status: pid 28056 SIGSEGV (signal 11)>": "a process ended by a signal",
            "x.rb:1: [BUG] Segmentation fault at 0x0": "a process ended by a signal",
            "process didn't exit successfully: x (signal: 11, SIGSEGV: invalid memory reference)": "a process ended by a signal",
            "      Actual:   139": "a process ended by a signal",
            "FAILED tests/a.py::b - subprocess.TimeoutExpired: Command 'x'": "a process hung",
            "Timeout::Error: execution expired": "a process hung",
            "E  1 x swim in the span wash": "something was wrong",
            "E  assert_adds_up(stats)": "an equation is broken",
            "==77== Invalid read of size 8": "a memory error",
            "Actual: 100": "",
            "ClockTest#test_wrong_signal in the span = 0.00 s = .": "",
            "test adds_up ... ok": "",
        }
        for text, sign in said.items():
            with self.subTest(text):
                self.assertEqual(failures.sign_of(1, f"before\n{text}\nafter"), sign)

    def test_failed_tests_are_named_as_each_tool_does(self) -> None:
        said = """FAILED ../../tests/test_a.py::Class::test_sum[a b] - assert 3 == 4
ERROR tests/test_b.py::test_b
  1) Failure:
SamplingTest#test_a_b [test/native/sampling_test.rb:34]:
  2) Error:
OtherTest#test_c:
    Pyroscope.Tests.SpanTests.Names(name: "a") [FAIL]
test upload::tests::halves ... FAILED
---- upload::tests::halves stdout ----
    --- FAIL: TestQuery (0.01s)
"""
        names = "tests/test_a.py::Class::test_sum tests/test_b.py::test_b SamplingTest#test_a_b OtherTest#test_c"
        names += " Pyroscope.Tests.SpanTests.Names upload::tests::halves TestQuery"
        self.assertEqual(failures.failed_tests(said), sorted(names.split()))

    def test_the_list_of_late_tests_is_read(self) -> None:
        for test, why in failures.late_tests(ROOT / "ci/late-tests").items():
            self.assertTrue(test and why)


class ListTest(unittest.TestCase):
    def test_each_step_is_a_function_and_needs_steps(self) -> None:
        some = steps.all_steps(["3.14"], ["3.4"], quick=False)
        shell = "".join(file.read_text() for file in (ROOT / "ci").glob("*.sh"))
        names = {step.name for step in some}
        self.assertEqual(len(names), len(some))
        for step in some:
            with self.subTest(step.name):
                self.assertRegex(shell, rf"(?m)^{step.run.split()[0]}\(\) \{{")
                self.assertLessEqual(set(step.needs), names)
        quick = steps.all_steps(["3.14"], ["3.4"], quick=True)
        self.assertLessEqual({need for step in quick for need in step.needs}, {step.name for step in quick})


if __name__ == "__main__":
    unittest.main()
