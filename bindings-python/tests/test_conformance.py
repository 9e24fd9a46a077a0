"""The vectors that all languages share (tests/conformance), for this one."""

import json
from contextlib import ExitStack

import pytest
from conftest import TESTS, burn
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import IdGenerator, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from receiver import Receiver

import pyroscope
from pyroscope import tag_wrapper
from pyroscope.otel import PyroscopeSpanProcessor


def vectors(file):
    return json.loads((TESTS.parents[1] / "tests" / "conformance" / f"{file}.json").read_text(encoding="utf-8"))


SETTINGS, TAGS, SPANS, SCOPES, STATS = map(vectors, ("settings", "tags", "spans", "scopes", "stats"))


def text(value):
    """A text, as it is or as a list of [text, times]."""
    return value if isinstance(value, str) else "".join(part * times for part, times in value)


def texts(pairs):
    return {name: text(value) for name, value in pairs.items()}


def kept():
    """Samples that were taken and not lost."""
    stats = pyroscope.stats()
    return stats["taken"]["samples"] - stats["dropped_ring"]["samples"]


def node(name):
    """Burns with a tag by which its samples are found, until there are some."""
    with tag_wrapper({"node": name}):
        # So that what is counted from here on was sampled from here on.
        assert pyroscope.flush(20)
        enough = kept() + 2
        for _ in range(1_000):
            burn(0.005)
            if kept() >= enough:
                break


def labels_of(samples, name):
    """What each sample of a node carries beside; all carry the same."""
    found = [sample.labels for sample in samples if sample.labels.get("node") == name]
    assert found, f"{name} was not sampled"
    assert all(labels == found[0] for labels in found), found
    return {label: value for label, value in found[0].items() if label != "node"}


def configure(monkeypatch, case, place="127.0.0.1:9"):
    def fill(value):
        return value.replace("PLACE", place) if isinstance(value, str) else value

    for name, value in {**SETTINGS["defaults"], **case.get("environment", {})}.items():
        monkeypatch.setenv(name, fill(value))
    return pyroscope.configure(**{name: fill(value) for name, value in case.get("settings", {}).items()})


def send(monkeypatch, case):
    """The request's path and headers, and the series, of the first upload with these settings."""
    with Receiver() as receiver:
        assert configure(monkeypatch, case, receiver.url.removeprefix("http://"))
        burn(0.02)
        assert pyroscope.shutdown()
        assert receiver.errors == []
        return *receiver.requests[0], receiver.series[0]


@pytest.mark.parametrize("case", SETTINGS["cases"], ids=lambda case: case["name"])
def test_settings(monkeypatch, case):
    if "error" in case:
        with pytest.raises(ValueError) as raised:
            configure(monkeypatch, case)
        assert str(raised.value) == case["error"]
    elif "starts" in case:
        assert configure(monkeypatch, {**case, "settings": {"server_address": "none"}}) is case["starts"]
    else:
        path, headers, series = send(monkeypatch, case)
        expected = case["sent"]
        assert path == expected.get("path", path)
        assert series.profile.period == expected.get("period", series.profile.period)
        for found, wanted in ((headers, expected.get("headers", {})), (series.labels, expected.get("labels", {}))):
            assert {name: found.get(name) for name in wanted} == wanted


def with_tags(tags):
    return pyroscope.configure(application_name="app", server_address="none", tags=tags)


def test_names_of_tags():
    for name in TAGS["names"]:
        assert with_tags({name: "x"})
    most = {f"t{number}": "" for number in range(TAGS["most"])}
    assert with_tags(most)
    with pytest.raises(ValueError) as raised:
        with_tags({**most, "more": ""})
    assert str(raised.value) == TAGS["too_many"]


@pytest.mark.parametrize("name", TAGS["refused_names"])
def test_names_of_tags_that_are_refused(name):
    with pytest.raises(ValueError) as raised:
        with_tags({name: "x"})
    why = TAGS["refused_names"][name]
    assert str(raised.value) == f"tags: {why}"


def test_names_of_tags_that_are_left_out_and_told_once(python):
    """In a process of its own, as each is told once a process."""
    told = python(
        """
        import json, logging, sys, pyroscope
        told = []
        class Keep(logging.Handler):
            def emit(self, record): told.append(record.getMessage())
        logging.getLogger("pyroscope").addHandler(Keep())
        assert pyroscope.configure(application_name="app", server_address="none")
        for name in json.loads(sys.argv[1]) * 2:
            with pyroscope.tag_wrapper({name: "x"}):
                pass
        print(json.dumps(told))
        """,
        args=[json.dumps(list(TAGS["refused_names"]))],
    )
    assert json.loads(told) == [f"tag_wrapper: {why}; the tag is left out" for why in TAGS["refused_names"].values()]


@pytest.mark.parametrize("case", TAGS["values"], ids=lambda case: text(case["label"])[-8:])
def test_values_of_tags(monkeypatch, case):
    _, _, series = send(monkeypatch, {"settings": {"tags": {"cut": text(case["value"])}}})
    assert series.labels["cut"] == text(case["label"])


def test_tags_of_blocks(recording):
    recording.start()
    for number, case in enumerate(TAGS["blocks"]):
        with ExitStack() as stack:
            for tags in case["enter"]:
                stack.enter_context(tag_wrapper(texts(tags)))
            node(str(number))
    samples = recording.samples()
    for number, case in enumerate(TAGS["blocks"]):
        assert labels_of(samples, str(number)) == texts(case["labels"])


class Ids(IdGenerator):
    """Gives the ids that are set."""

    trace_id = span_id = 0

    def generate_trace_id(self):
        return self.trace_id

    def generate_span_id(self):
        return self.span_id


@pytest.fixture
def processed():
    """Makes providers with our processor."""
    providers = []

    def make(scope, **arguments):
        provider = TracerProvider(shutdown_on_exit=False, **arguments)
        provider.add_span_processor(PyroscopeSpanProcessor(scope=scope))
        providers.append(provider)
        return provider.get_tracer("conformance")

    yield make
    for provider in providers:
        provider.shutdown()


def test_names_and_ids_of_spans(recording, processed):
    recording.start()
    ids = Ids()
    tracer = processed("root", id_generator=ids)
    for number, case in enumerate(SPANS["names"], 1000):
        ids.trace_id = ids.span_id = number
        with tracer.start_as_current_span(text(case["name"])):
            node(f"name {number}")
    for case in SPANS["ids"]:
        ids.trace_id, ids.span_id = int(case["trace_id"], 16), int(case["span_id"], 16)
        with tracer.start_as_current_span("ids") as span:
            node(case["span_id"])
        assert span.attributes["pyroscope.profile.id"] == case["span_id"]
    samples = recording.samples()
    for number, case in enumerate(SPANS["names"], 1000):
        assert labels_of(samples, f"name {number}")["span_name"] == text(case["label"])
    for case in SPANS["ids"]:
        assert labels_of(samples, case["span_id"]) == {**case, "span_name": "ids"}


class AllButUnseen(Sampler):
    """Leaves out the spans that the vectors say nobody exports."""

    def __init__(self, unseen):
        self.unseen = unseen

    def should_sample(self, parent_context, trace_id, name, *_arguments, **_named):
        return SamplingResult(Decision.DROP if name in self.unseen else Decision.RECORD_AND_SAMPLE)

    def get_description(self):
        return "AllButUnseen"


def all_spans(spans):
    for span in spans:
        yield span
        yield from all_spans(span.get("children", []))


@pytest.mark.parametrize("scope", ["root", "all"])
def test_scopes(recording, processed, scope):
    recording.start()
    unseen = {span["name"] for span in all_spans(SCOPES["spans"]) if span.get("sampled") is False}
    tracer = processed(scope, sampler=AllButUnseen(unseen))
    remote = trace.SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=trace.TraceFlags(1))
    parents = {
        None: None,
        "none": Context(),
        "remote": trace.set_span_in_context(trace.NonRecordingSpan(remote), Context()),
    }
    started = {}

    def run(spans):
        for span in spans:
            name = span["name"]
            with tracer.start_as_current_span(name, context=parents[span.get("parent")]) as started[name]:
                node(name)
                for child in span.get("children", []):
                    run([child])
                    node(name)

    run(SCOPES["spans"])
    samples = recording.samples()
    for span in all_spans(SCOPES["spans"]):
        carried, own = span[scope], started[span["name"]]
        expected = {}
        if carried is not None:
            context = started[carried].get_span_context()
            expected = {
                "span_id": format(context.span_id, "016x"),
                "trace_id": format(context.trace_id, "032x"),
                "span_name": carried,
            }
        assert labels_of(samples, span["name"]) == expected
        profile_id = expected["span_id"] if carried == span["name"] else None
        # A span that nobody exports has no attributes.
        assert getattr(own, "attributes", {}).get("pyroscope.profile.id") == profile_id


def assert_adds_up(stats):
    for name, parts in STATS["sums"].items():
        for unit in ("samples", "weight") if name in STATS["tallies"] else (None,):
            whole, *rest = (stats[key] if unit is None else stats[key][unit] for key in (name, *parts))
            assert whole == sum(rest), (name, stats)


def test_stats(recording):
    recording.start()
    burn(0.02)
    stats = pyroscope.stats()
    assert list(stats) == STATS["tallies"] + STATS["numbers"] + STATS["texts"]
    assert_adds_up(stats)
    pyroscope.shutdown()
    stats = pyroscope.stats()
    assert_adds_up(stats)
    assert stats["taken"]["samples"] > 0
    assert all(stats[name] == {"samples": 0, "weight": 0} for name in STATS["nothing_after_a_stop"])
