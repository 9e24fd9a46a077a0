"""Programs whose calls of libc are measured do what they did before, and what they waited for is seen."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import children
import pprof
import pytest
import waits_hazards

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_c_code_goes_on_as_it_did(binding: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here (Debian: apt-get install gcc)")
    library = tmp_path / "hazards.so"
    source = HERE / "waits_hazards.c"
    command = [compiler, "-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-z,{binding}", "-Wl,-z,relro", source, "-o", library]
    subprocess.run(command, check=True)
    profiles = tmp_path / "profiles"
    said = json.loads(children.succeeded(children.run(waits_hazards.__file__, library, profiles)))
    assert {name: line for name, line in said["results"].items() if line != 0} == {}

    seen: Counter[str] = Counter()
    for profile in pprof.read_folder(profiles):
        for sample in profile.samples:
            if sample.labels.get("state") not in (None, "cpu"):
                seen[sample.labels["span_name"]] += profile.weight(sample)
    # Left by a jump or a cancellation a wait is not seen; all others are, also of modules that came later.
    for span, least in [
        ("waits_through_a_table", 20e6),
        ("errno_is_kept", 20e6),
        ("is_interrupted", 20e6),
        ("waits_in_a_handler", 20e6),
        ("by_system_call", 20e6),
        ("opened", 3 * 20 * 20e6),
    ]:
        assert seen[span] > 0.95 * least, f"{span}: {seen[span]} of {least} ns"
        # Waits within waits count once. (Of waits that are short beside a millisecond some stand for others, so their sums vary.)
        assert seen[span] <= said["walls"].get(span, seen[span]), f"{span}: {seen[span]} of {said['walls']}"
