"""What the span processor does to spans and to profiles, and how it starts the profiler by itself."""

import logging

import pytest
from conftest import burn
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from pprof import samples_of

import pyroscope
from pyroscope import _messages, _native
from pyroscope.otel import PROFILE_ID_SPAN_ATTRIBUTE_KEY, PyroscopeSpanProcessor


@pytest.fixture
def provider_of():
    made = []

    def make(processor=None, **attributes):
        provider = TracerProvider(resource=Resource(attributes), shutdown_on_exit=False)
        provider.add_span_processor(processor or PyroscopeSpanProcessor())
        made.append(provider)
        return provider

    yield make
    for provider in made:
        provider.shutdown()


def test_a_scope_that_does_not_exist():
    with pytest.raises(ValueError, match="scope: 'roots' is not allowed; allowed: 'root', 'all'"):
        PyroscopeSpanProcessor("roots")


@pytest.mark.parametrize("value, own", [("true", False), ("FALSE", True), ("0", True)])
def test_the_scope_from_the_environment(provider_of, monkeypatch, value, own):
    monkeypatch.setenv("OTEL_PYROSCOPE_START_PROFILING", "false")
    monkeypatch.setenv("OTEL_PYROSCOPE_ROOT_SPAN_ONLY", value)
    tracer = provider_of().get_tracer("test")
    with tracer.start_as_current_span("root") as root, tracer.start_as_current_span("child") as child:
        assert root.attributes[PROFILE_ID_SPAN_ATTRIBUTE_KEY] == format(root.get_span_context().span_id, "016x")
        assert (PROFILE_ID_SPAN_ATTRIBUTE_KEY in child.attributes) == own


@pytest.mark.parametrize("name", ["ROOT_SPAN_ONLY", "START_PROFILING", "TIME_ATTRIBUTES"])
def test_a_flag_that_does_not_parse_is_told_and_spans_go_on(provider_of, monkeypatch, caplog, name):
    pyroscope.configure(application_name="shop", server_address="none")
    monkeypatch.setattr(_messages, "_warned", set())
    monkeypatch.setenv(f"OTEL_PYROSCOPE_{name}", "maybe")
    tracer = provider_of().get_tracer("test")
    with tracer.start_as_current_span("root") as root, tracer.start_as_current_span("child") as child:
        assert PROFILE_ID_SPAN_ATTRIBUTE_KEY in root.attributes
        assert PROFILE_ID_SPAN_ATTRIBUTE_KEY not in child.attributes
    said = f"OTEL_PYROSCOPE_{name}: maybe is not allowed; allowed: true, false, 1, 0, yes, no. It is taken for "
    assert caplog.text.count(said) == 1


def test_a_span_renamed_before_its_end_has_its_last_name(recording, provider_of):
    recording.start_dense()
    tracer = provider_of().get_tracer("test")
    with tracer.start_as_current_span("GET") as span:
        burn(0.05)
        span.update_name("GET /users/{id}")
    names = {sample.labels.get("span_name") for sample in recording.samples_in("burn")}
    assert names == {"GET /users/{id}"}


def test_names_of_any_kind(recording, provider_of):
    recording.start_dense()
    tracer = provider_of().get_tracer("test")
    for name in ("größe 関数", "lone \udc80", "long " * 100):
        with tracer.start_as_current_span(name):
            burn(0.03)
    names = {sample.labels.get("span_name") for sample in recording.samples_in("burn")}
    assert "größe 関数" in names
    assert any(name.startswith("lone ") for name in names)
    assert any(name.startswith("long long") and len(name.encode()) <= 256 for name in names)


def test_a_subclass_keeps_its_methods(provider_of):
    class Own(PyroscopeSpanProcessor):
        seen: list = []

        def on_start(self, span, parent_context=None):
            self.seen.append(("start", span.name))
            super().on_start(span, parent_context)

        def on_end(self, span):
            self.seen.append(("end", span.name))
            super().on_end(span)

    tracer = provider_of(Own()).get_tracer("test")
    for name in ("a", "b"):
        with tracer.start_as_current_span(name) as span:
            assert PROFILE_ID_SPAN_ATTRIBUTE_KEY in span.attributes
    assert Own.seen == [("start", "a"), ("end", "a"), ("start", "b"), ("end", "b")]


def test_a_span_of_another_kind_does_no_harm(provider_of, caplog):
    processor = PyroscopeSpanProcessor()
    provider_of(processor)
    processor._began = True
    for _ in range(2):
        processor.on_start(object())
        processor.on_end(object())
    assert len([record for record in caplog.records if record.name == "pyroscope"]) <= 1
    with trace.use_span(trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)):
        assert _native.current_span_id() == 0


def test_the_first_span_starts_the_profiler(tmp_path, provider_of, monkeypatch):
    monkeypatch.setenv("PYROSCOPE_SERVER_ADDRESS", f"file://{tmp_path}")
    monkeypatch.setenv("PYROSCOPE_SAMPLE_RATE", "1000")
    provider = provider_of(**{"service.name": "shop", "service.namespace": "eu"})
    assert not _native.is_running()
    with provider.get_tracer("test").start_as_current_span("GET /"):
        assert _native.is_running()
        burn(0.2)
    provider.shutdown()
    assert not _native.is_running()
    assert any("burn" in sample.names and sample.labels.get("span_name") == "GET /" for sample in samples_of(tmp_path))
    assert all(file.name.startswith("shop-") for file in tmp_path.iterdir())


def test_the_environments_name_wins_over_the_resources(tmp_path, provider_of, monkeypatch, caplog):
    monkeypatch.setenv("PYROSCOPE_SERVER_ADDRESS", f"file://{tmp_path}")
    monkeypatch.setenv("PYROSCOPE_APPLICATION_NAME", "own")
    provider = provider_of(**{"service.name": "shop"})
    for name in ("a", "b"):
        with provider.get_tracer("test").start_as_current_span(name):
            pass
    assert _native.is_running()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "'own'" in warnings[0] and "'shop'" in warnings[0], "once, with both names"


@pytest.mark.parametrize("name", ["OTEL_PYROSCOPE_START_PROFILING", "PYROSCOPE_PROFILING_ENABLED"])
def test_the_processor_does_not_start_what_it_may_not(provider_of, monkeypatch, name):
    monkeypatch.setenv(name, "false")
    with provider_of(**{"service.name": "shop"}).get_tracer("test").start_as_current_span("a") as span:
        assert not _native.is_running()
        assert PROFILE_ID_SPAN_ATTRIBUTE_KEY in span.attributes


def test_the_processor_does_not_start_what_was_stopped(recording, provider_of):
    assert pyroscope.configure(application_name="shop", server_address="none")
    pyroscope.shutdown()
    with provider_of(**{"service.name": "shop"}).get_tracer("test").start_as_current_span("a"):
        assert not _native.is_running()


def test_an_environment_that_does_not_parse_is_told_and_spans_go_on(provider_of, monkeypatch, caplog):
    monkeypatch.setenv("PYROSCOPE_SAMPLE_RATE", "fast")
    with provider_of(**{"service.name": "shop"}).get_tracer("test").start_as_current_span("a") as span:
        assert span.is_recording()
    assert "PYROSCOPE_SAMPLE_RATE: fast is not allowed" in caplog.text


def test_a_missing_namespace_is_told(provider_of, caplog):
    pyroscope.configure(application_name="shop", server_address="none")
    resource = {"service.name": "shop", "service.namespace": "eu"}
    with provider_of(**resource).get_tracer("test").start_as_current_span("a"):
        pass
    assert "configure(tags={'service_namespace': 'eu'})" in caplog.text


def test_force_flush_uploads(recording, provider_of):
    recording.start(upload_interval=600)
    provider = provider_of()
    with provider.get_tracer("test").start_as_current_span("a"):
        burn(0.2)
    assert provider.force_flush()
    assert any("burn" in sample.names for sample in samples_of(recording.folder))
    pyroscope.stop()
    assert provider.force_flush(), "nothing to flush is no failure"
