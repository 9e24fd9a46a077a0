"""Runs `waits_program.py` in a process of its own, with each of its waits as a sample, and compares these with what that program can do.

    python waits_soak.py --seconds 120          a row of the table of `ci/soak waits python`; ends with code 1 if anything was wrong

    waits    waits that became samples, by stats(): all of them were judged, as their nanoseconds in the profiles say
    wrong    of these, and of those of forked children: with a span, a state, a call or a stack that the program cannot have
    dropped  found a ring full, another sample of their thread being taken, or their thread not known yet
    lost     neither sampled, nor outside of spans, nor dropped
    exit     the program's exit code
"""

import argparse
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = map(str, (TESTS / "support" / "python", TESTS / "truth" / "python"))

import children  # noqa: E402
import pprof  # noqa: E402
import waits_calls  # noqa: E402
import waits_judge  # noqa: E402

HERE = Path(__file__).resolve().parent
MOST_LINES = 20
#: From here on each function must have been seen to wait, or nothing was tested.
LONG = 60.0


@dataclass
class Outcome:
    code: int
    """How the program ended; below 0: killed by this signal."""
    output: str
    stats: dict = field(default_factory=dict)
    own: waits_judge.Verdict = field(default_factory=waits_judge.Verdict)
    forked: waits_judge.Verdict = field(default_factory=waits_judge.Verdict)
    missing: frozenset[str] = frozenset()

    @property
    def wrong(self) -> collections.Counter[str]:
        return self.own.wrong + self.forked.wrong

    def waits(self, fate: str, unit: str = "samples") -> int:
        return self.stats[f"waits_{fate}"][unit] if self.stats else 0

    @property
    def dropped(self) -> int:
        return sum(self.waits(f"dropped_{why}") for why in ("ring", "busy", "thread"))

    @property
    def lost(self) -> int:
        return self.waits("taken") - self.waits("sampled") - self.waits("outside") - self.waits("pending") - self.dropped

    def mistakes(self) -> list[str]:
        """What is not as it must be, in words."""
        mistakes = [f"{count} × {what}" for what, count in self.wrong.most_common(MOST_LINES - 4)]
        if self.code != 0:
            mistakes.append(f"exit code {self.code}: {self.output[-4000:]}")
            return mistakes
        if self.lost or self.waits("pending"):
            mistakes.append(f"{self.lost} waits are lost, {self.waits('pending')} still pending")
        if (judged := self.own.weight) != (sampled := self.waits("sampled", "weight")) and not self.stats["dropped_window"]["samples"]:
            mistakes.append(f"{judged} ns in the profiles, and {sampled} ns were sampled")
        if self.missing:
            mistakes.append(f"never seen to wait: {', '.join(sorted(self.missing))}")
        return mistakes


def run(seconds: float, folder: Path, seed: int = 1) -> Outcome:
    records, profiles = folder / "records.json", folder / "profiles"
    arguments = ["--seconds", str(seconds), "--seed", str(seed), "--server", profiles.as_uri(), "--records", str(records)]
    library = compile_module(folder)
    if library:
        arguments += ["--library", str(library)]
    try:
        # More than the program's own patience: it may leave children that hang, and they have its output.
        ended = children.run(HERE / "waits_program.py", *arguments, timeout=seconds * 2 + 120)
        outcome = Outcome(ended.returncode, ended.stdout + ended.stderr)
    except subprocess.TimeoutExpired as late:
        os.killpg(int(records.with_suffix(".group").read_text()), signal.SIGKILL)
        outcome = Outcome(-signal.SIGKILL, f"hangs: {(late.stdout or b'').decode()}{(late.stderr or b'').decode()}")
    if outcome.code == 0:
        record = json.loads(records.read_text())
        outcome.stats = record["stats"]
        judge(profiles, record["pid"], outcome)
        if seconds >= LONG:
            must = {name for name, function in waits_calls.FUNCTIONS.items() if function.waits}
            outcome.missing = frozenset(must - outcome.own.seen - outcome.forked.seen - MAYBE)
    return outcome


#: Who mostly need not wait for a lock, and what only a module is for.
MAYBE = frozenset(
    "give_shared give_lock put_answer put_question wake_in_monitor fork_child wait_in_module call_back_from_module close_module".split()
)


def judge(profiles: Path, pid: int, outcome: Outcome) -> None:
    """One after the other, as all would need much memory."""
    alone = profiles / "alone"
    alone.mkdir()
    for path in sorted(profiles.glob("*-wall-*.pb.gz")):
        path = path.rename(alone / path.name)
        is_own = f"-{pid}-" in path.name
        waits_judge.judge(pprof.read_folder(alone), outcome.own if is_own else outcome.forked)
        path.unlink()


def compile_module(folder: Path) -> Path | None:
    compiler = shutil.which("cc")
    if compiler is None:
        print("no C compiler here (Debian: apt-get install gcc): no modules are opened and closed", file=sys.stderr)
        return None
    library = folder / "module.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-pthread", HERE / "waits_modules.c", "-o", library], check=True)
    return library


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(options.seconds, Path(folder), options.seed)
    print(outcome.output if outcome.code == 0 else "", end="", file=sys.stderr)
    version = ".".join(map(str, sys.version_info[:3]))
    wrong = sum(outcome.wrong.values())
    print(f"{version:<14}{outcome.waits('sampled'):>10}{wrong:>8}{outcome.dropped:>10}{outcome.lost:>8}{children.shell_code(outcome.code):>6}")
    mistakes = outcome.mistakes()
    for mistake in mistakes:
        print(f"  {mistake}")
    sys.exit(bool(mistakes))


if __name__ == "__main__":
    main()
