"""Tests of the installed wheel, from outside: run with the interpreter that has it (ci/test does).

    python -m pytest tests/truth/python tests/stress/python          STRESS_SECONDS=15: how long the stress test runs
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support" / "python"))

from fixtures import no_profiler_is_left, only_our_environment  # noqa: E402, F401
