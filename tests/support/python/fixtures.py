"""What tests of the installed wheel begin and end with."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def only_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of whoever runs the tests are not the tests' business."""
    import os

    import children

    for name in list(os.environ):
        if children.is_ours(name):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_profiler_is_left() -> Iterator[None]:
    """Each test starts without a profiler, and ends its own even when it fails."""
    import pyroscope

    yield
    pyroscope.shutdown()
