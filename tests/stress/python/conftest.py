"""The same as for ../../truth/python, whose programs and judgement the stress is held to as well."""

import sys
from pathlib import Path

TRUTH = Path(__file__).resolve().parents[2] / "truth" / "python"
sys.path[:0] = [str(TRUTH.parents[1] / "support" / "python"), str(TRUTH)]

from fixtures import no_profiler_is_left, only_our_environment  # noqa: E402, F401
