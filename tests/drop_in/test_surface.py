"""Each public name of pyroscope-io and pyroscope-otel is here, with the same parameters and defaults in the same order."""

import json
import sys

import pytest
from conftest import HERE, run


@pytest.fixture(scope="module")
def surfaces(peers):
    """Theirs and ours."""
    return [json.loads(run(python, str(HERE / "describe.py"))) for python in (peers, sys.executable)]


@pytest.mark.parametrize("module", ["pyroscope", "pyroscope.otel"])
def test_what_theirs_has_ours_has(surfaces, module):
    theirs, ours = (surface[module] for surface in surfaces)
    assert len(theirs) > 5 or "PROFILE_ID_SPAN_ATTRIBUTE_KEY" in theirs
    differs = {}
    for name, known in theirs.items():
        found = ours.get(name)
        # Parameters of ours come after all of theirs, and each has a default.
        if isinstance(known, list) and isinstance(found, list):
            found, own = found[: len(known)], found[len(known) :]
            differs.update({f"{name}({more[0]})": more for more in own if more[2] is False})
        if found != known:
            differs[name] = (known, found)
    assert differs == {}


def test_the_old_name_of_the_package_has_them_too(surfaces):
    theirs, ours = (set(surface["pyroscope_io names"]) for surface in surfaces)
    assert theirs and theirs <= ours


def test_the_logger_has_the_same_name(surfaces):
    theirs, ours = (surface["logger"] for surface in surfaces)
    assert theirs == ours
