"""Services that were written against Grafana's packages run with nothing changed but what is installed."""

import json
import sys

import pytest
from conftest import HERE, run
from receiver import Receiver


def serve(python: str, framework: str):
    """Runs a service; returns what it said of its requests' spans, and what came to the server."""
    with Receiver() as receiver:
        out = run(python, str(HERE / "services" / f"{framework}_service.py"), receiver.url)
        assert receiver.wait_for(lambda: bool(receiver.profiles())), "no profile came"
    assert receiver.errors == []
    return json.loads(out), receiver.series


@pytest.mark.parametrize("framework", ["flask", "fastapi", "django"])
def test_with_grafanas_packages(peers, framework):
    """The services themselves are right, or the other test would prove nothing."""
    spans, series = serve(peers, framework)
    assert len(spans) == 8 and all(span_id == profile_id for span_id, profile_id in spans)
    assert all(one.labels["service_name"] == "shop" and one.labels["region"] == "eu" for one in series)


@pytest.mark.parametrize("framework", ["flask", "fastapi", "django"])
def test_with_ours_every_request_has_its_profile(framework):
    spans, series = serve(sys.executable, framework)
    assert len(spans) == 8 and all(span_id == profile_id for span_id, profile_id in spans)
    assert all(one.labels["service_name"] == "shop" and one.labels["region"] == "eu" for one in series)
    samples = [sample for one in series for sample in one.profile.samples if "work" in sample.names]
    assert {sample.labels.get("tenant") for sample in samples if sample.names[0] == "work"} == {"acme"}
    # Each request burnt 60 ms, six samples of 10 ms.
    assert {sample.labels.get("span_id") for sample in samples} == {span_id for span_id, _ in spans}
