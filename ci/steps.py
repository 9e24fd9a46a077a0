"""The steps of ci/test: in which order, which need which, and the table of what became of each.

A step is a function of ci/{core,python,ruby,dotnet,viewer}.sh, which ci/step runs.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import failures

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
#: What ci/step ends with where a step cannot run.
SKIPPED = 77


@dataclass(frozen=True)
class Step:
    """A part of all tests, with a process of its own."""

    name: str
    run: str
    """A function of ci/*.sh and its arguments, as a shell has them."""
    needs: tuple[str, ...] = ()
    """Names of the steps that must have ended before; what they could not make it leaves out or skips."""


@dataclass
class Ended:
    """What became of a step."""

    how: str
    why: str = ""
    seconds: float = 0
    cpu_seconds: float = 0
    output: str = ""
    sign: str = ""
    first: str = ""
    """Why it failed at first, if it was tried again."""


@dataclass
class Running:
    step: Step
    process: subprocess.Popen
    log: Path
    began: float
    """Of the file system's clock."""
    since: float = field(default_factory=time.monotonic)


def all_steps(pythons: Sequence[str], rubies: Sequence[str], quick: bool) -> list[Step]:
    """In the order in which they begin. What takes long is first, and what compiles meets what does not, or compiles into another
    folder: two in one wait for each other."""
    wheel, lints, gem, environments = "wheel (maturin)", "lints (clippy)", "gem (cargo)", "environments (pip)"
    programs = "programs for tests (cargo)"
    #: All that follows needs these, and most need the network.
    built = (wheel, lints, gem, programs, environments)
    clients = (*built, ".NET: build")
    steps = [
        Step(wheel, "wheel"),
        Step(lints, "lints"),
        Step(gem, "ruby_build"),
        Step(programs, "build_fault_server"),
        Step(environments, "environments"),
        Step("scripts", "scripts"),
        Step("floors and circles", "house"),
        Step("formatting (cargo fmt)", "formatting"),
        Step("Rust tests (cargo test)", "rust_tests"),
        Step(".NET: build", "dotnet_package", built),
    ]
    for version in pythons:
        steps.append(Step(f"Python {version}: binding", f"binding_tests {version}", built))
        steps.append(Step(f"Python {version}: spans, CPU time, stress", f"python_tests {version} tests/truth/python tests/stress/python tests/interpreters", built))
    steps += [Step(f"Ruby {version}: binding", f"ruby_tests {version}", built) for version in rubies]
    steps += [
        Step(".NET: native half", "dotnet_native", clients),
        Step(".NET 8: tests", "dotnet_tests 8", clients),
        Step(".NET 10: tests", "dotnet_tests 10", clients),
        Step("in place of Grafana's packages", "drop_in", clients),
        Step("servers that misbehave, each language", "fault_servers", clients),
        Step("what programs do to their process", "hazards", clients),
    ]
    if not quick:
        steps += [
            Step("demo", "demo", built),
            Step(".NET: package", "dotnet_packages", clients),
            Step("packages", "packages", built),
            Step("browser on the demo's data", "browser", ("demo",)),
            Step("examples", "examples", clients),
            Step(".NET: demo", "dotnet_demo", (".NET: package",)),
            Step("gems", "ruby_packages", built),
            Step("demo in Ruby", "ruby_demo", built),
        ]
    return steps + [
        Step("OpenTelemetry SDK to 4317 and 4318", "otlp_sdk", built),
        Step("Grafana's generated client (Go)", "querier", built),
        Step("Grafana's profiler for Go", "client_go", built),
        Step("Grafana's profiler for Node", "client_node", built),
        Step("Grafana's Java client", "java_client", built),
        Step("how programs end: Python", "exits python", clients),
        Step("how programs end: Ruby", "exits ruby", clients),
        Step("how programs end: .NET", "exits dotnet", clients),
        Step("the viewer under attack", "viewer_soak", built),
        Step("Rust tests of the Python binding", "binding_rust_tests", built),
        # The short ones are last, so that no long one is left to run alone.
        Step("documentation", "documentation", built),
        Step("interleavings (loom)", "interleavings", built),
        Step("memory errors (valgrind)", "memory_errors", built),
        Step("types (stubtest, mypy)", "types", built),
        Step("types (steep)", "ruby_types", built),
        Step("in place of Grafana's gems", "ruby_drop_in", built),
        Step("go tool pprof", "go_pprof", built),
    ]


class Runner:
    """Runs steps, as many at a time as it is told."""

    def __init__(self, command: Sequence[str], late: dict[str, str], at_once: int = 2, again: bool = False) -> None:
        """`again`: whether what failed because of a download or of `late` tests alone runs once more."""
        self.command, self.late, self.at_once, self.again = list(command), late, at_once, again
        self.ended: dict[str, Ended] = {}
        self._running: list[Running] = []
        self._began = time.monotonic()

    def run(self, steps: Sequence[Step]) -> None:
        """All of them; each as soon as there is room and what it needs has ended."""
        waiting = list(steps)
        once_more: list[Step] = []
        while waiting or once_more or self._running:
            if once_more:
                # By itself, and before more begins that may need it.
                ready = None if self._running else once_more.pop(0)
            elif len(self._running) < self.at_once:
                ready = next((step for step in waiting if self.ended.keys() >= set(step.needs)), None)
            else:
                ready = None
            if ready:
                if ready in waiting:
                    waiting.remove(ready)
                self._begin(ready)
                continue
            if not self._running:
                missing = {need for step in waiting for need in step.needs} - self.ended.keys()
                raise ValueError(f"steps wait for what never ends: {', '.join(sorted(missing))}")
            step = self._settle()
            why = self._why_again(step)
            if why:
                self.say(f"once more: {step.name} ({why})")
                self.ended[step.name].first = why
                once_more.append(step)

    def end(self) -> None:
        """Ends what runs, and all that it has started."""
        ending, self._running = self._running, []
        for running in ending:
            end_tree(running.process.pid)
        for running in ending:
            running.process.wait()

    def say(self, text: str) -> None:
        print(f"[{self.seconds:3.0f} s] {text}", flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def count(self, how: str) -> int:
        return sum(ended.how == how for ended in self.ended.values())

    def _begin(self, step: Step) -> None:
        self.say(f"... {step.name}")
        log = TARGET / "logs/steps" / (re.sub(r"[^a-zA-Z0-9.]", "-", step.name) + ".log")
        folder = log.with_suffix("")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        environment = {**os.environ, "SECONDS_BEFORE": f"{self.seconds:.0f}", "STEP_FOLDER": str(folder)}
        with log.open("w") as output:
            command = [*self.command, *shlex.split(step.run)]
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._running.append(Running(step, process, log, log.stat().st_mtime))

    def _settle(self) -> Step:
        """Waits until one has ended, shows what it printed and remembers how it ended."""
        known = {running.process.pid: running for running in self._running}
        pid = 0
        while pid not in known:
            pid, status, used = os.wait3(0)
        running = known[pid]
        self._running.remove(running)
        code = running.process.returncode = os.waitstatus_to_exitcode(status)
        output = running.log.read_text(errors="replace")
        ended = Ended("run", "", time.monotonic() - running.since, used.ru_utime + used.ru_stime, output)
        if code == SKIPPED:
            ended.how, ended.why = "skipped", (output.splitlines() or [""])[-1]
        elif code != 0:
            ended.how, ended.sign = "FAILED", failures.sign_of(code, output)
            ended.why = ended.sign
            if re.search("signal|memory|hung", ended.sign):
                ended.output += failures.backtraces(running.began, running.log.with_suffix(""), ROOT) + "\n"
                running.log.write_text(ended.output)
        if before := self.ended.get(running.step.name):
            ended.first = before.first
            ended.why = "; ".join(filter(None, [ended.why, f"failed at first ({ended.first}); see above"]))
        self.ended[running.step.name] = ended
        print()
        self.say(f"=== {running.step.name}: {ended.how}{': ' + ended.why if ended.why else ''}")
        print(ended.output, end="", flush=True)
        return running.step

    def _why_again(self, step: Step) -> str:
        ended = self.ended[step.name]
        if not self.again or ended.how != "FAILED" or ended.sign or ended.first:
            return ""
        return failures.why_again(ended.output, self.late)

    def print_failures(self) -> None:
        """Once more, and shorter, what failed steps printed: the rest of a long output may not be kept."""
        for name, ended in self.ended.items():
            if ended.how == "FAILED":
                print()
                self.say(f"=== {name} failed; where its output speaks of it, and the end:")
                print(failures.where_it_speaks(ended.output))

    def print_table(self) -> None:
        """All steps that ended."""
        print(f"\n{'what':44} {'how':8} {'s':>6} {'CPU s':>6}")
        for name, ended in self.ended.items():
            print(f"{name:44} {ended.how:8} {ended.seconds:6.0f} {ended.cpu_seconds:6.0f}  {ended.why}")


def end_tree(pid: int) -> None:
    """TERM to a process and to all below it. A shell alone would first wait for the command that it runs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    for child in children:
        end_tree(int(child))
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError:
        pass  # gone, or another user's


def arguments() -> argparse.Namespace:
    def versions(text: str) -> list[str]:
        return [version for version in text.split(",") if version]

    parser = argparse.ArgumentParser(
        prog="ci/test",
        allow_abbrev=False,
        description="""Formatting, lints, Rust tests, the wheel, its tests on each Python from 3.10 to 3.15 that is found, the gem and
        its tests on Ruby 3.1, 3.3 and 3.4 likewise, the NuGet package and its tests on .NET 8 and 10, type checks, the documents
        against the program, the packages, the examples, the demo with its assertions, and the pages in a headless browser. Two steps
        run at a time ($STEPS_AT_ONCE); each shows its output when it ends, and leaves it under target/logs/steps/. Where CI is set,
        what failed because of a download, or of tests of ci/late-tests alone, runs once more, and the table and the last line say so;
        what crashed, hung or was wrong never does. Ends with a table and with code 1 if a step failed.""",
    )
    parser.add_argument("--quick", action="store_true", help="without the packages, the examples, the demo and the browser")
    parser.add_argument("--require", type=versions, default=[], metavar="3.N,3.N", help="fail if the tests of these Pythons did not run")
    parser.add_argument("--rubies", type=int, default=0, metavar="N", help="fail if the tests of fewer Rubies than that ran")
    parser.add_argument("--require-dotnet", type=versions, default=[], metavar="8,10", help="fail if the tests of these .NETs did not run")
    return parser.parse_args()


def missing(runner: Runner, options: argparse.Namespace) -> list[str]:
    """What was required and did not run, a sentence each."""
    required = [name for version in options.require for name in (f"Python {version}: binding", f"Python {version}: spans, CPU time, stress")]
    required += [f".NET {version}: tests" for version in options.require_dotnet]
    ran = {name for name, ended in runner.ended.items() if ended.how == "run"}
    sentences = [f"required, and did not run: {name}" for name in required if name not in ran]
    if sum(bool(re.fullmatch(r"Ruby [0-9.]+: binding", name)) for name in ran) < options.rubies:
        sentences.append(f"required, and did not run: the tests of {options.rubies} Rubies")
    return sentences


def main() -> int:
    options = arguments()
    os.environ["QUICK"] = "1" if options.quick else ""
    late = failures.late_tests(ROOT / "ci/late-tests")
    runner = Runner([str(ROOT / "ci/step")], late, int(os.environ.get("STEPS_AT_ONCE", "2")), bool(os.environ.get("CI")))

    def stop(number: int, _frame: object) -> NoReturn:
        runner.end()
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        runner.run(all_steps(os.environ["PYTHONS"].split(), os.environ["RUBIES"].split(), options.quick))
    finally:
        runner.end()
    runner.print_failures()
    runner.print_table()
    sentences = missing(runner, options)
    print(*sentences, sep="\n", end="\n" if sentences else "")
    counts = [runner.count("run"), runner.count("FAILED") + len(sentences), runner.count("skipped")]
    again = sum(bool(ended.first) for ended in runner.ended.values())
    minutes, seconds = divmod(round(runner.seconds), 60)
    print("\n{} passed, {} failed, {} skipped, {} tried again, in {} min {} s".format(*counts, again, minutes, seconds))
    return 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
