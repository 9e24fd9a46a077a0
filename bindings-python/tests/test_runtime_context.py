"""The stand-in for OpenTelemetry's runtime context: invisible to programs, and gone after shutdown."""

import contextvars
import sys

import opentelemetry.context as otel_context
import pytest
from opentelemetry import baggage, trace
from opentelemetry.context.context import _RuntimeContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from pyroscope import _native
from pyroscope.otel import PyroscopeSpanProcessor

current = _native.current_span_id


@pytest.fixture
def provider():
    made = TracerProvider(shutdown_on_exit=False)
    yield made
    made.shutdown()


@pytest.fixture
def tracer(provider):
    provider.add_span_processor(PyroscopeSpanProcessor())
    return provider.get_tracer("test")


def id_of(span) -> int:
    return span.get_span_context().span_id


def test_the_current_span_is_seen_at_once(tracer):
    assert current() == 0
    with tracer.start_as_current_span("a") as a:
        assert current() == id_of(a)
        with trace.use_span(trace.INVALID_SPAN):
            assert current() == 0
        assert current() == id_of(a)
    assert current() == 0


def test_a_started_span_is_not_current(tracer):
    span = tracer.start_span("a")
    assert current() == 0
    span.end()


def test_what_is_attached_without_a_span_changes_nothing(tracer):
    with tracer.start_as_current_span("a") as a:
        token = otel_context.attach(baggage.set_baggage("key", "value"))
        assert current() == id_of(a)
        assert baggage.get_baggage("key") == "value"
        otel_context.detach(token)
        assert baggage.get_baggage("key") is None
        token = otel_context.attach(otel_context.Context())
        assert current() == 0
        otel_context.detach(token)
        assert current() == id_of(a)


def test_tokens_are_the_plain_ones(tracer):
    token = otel_context.attach(otel_context.Context())
    assert type(token) is contextvars.Token
    otel_context.detach(token)


def test_a_token_made_before_the_processor_detaches_after_it(provider):
    token = otel_context.attach(otel_context.set_value("before", 1))
    provider.add_span_processor(PyroscopeSpanProcessor())
    assert otel_context.get_value("before") == 1
    otel_context.detach(token)
    assert otel_context.get_value("before") is None


def test_a_token_made_with_the_processor_detaches_after_its_shutdown(provider, caplog):
    processor = PyroscopeSpanProcessor()
    provider.add_span_processor(processor)
    token = otel_context.attach(otel_context.set_value("with", 1))
    processor.shutdown()
    assert otel_context.get_value("with") == 1
    otel_context.detach(token)
    assert otel_context.get_value("with") is None
    assert not caplog.records


def test_detaching_out_of_order_leaves_what_opentelemetry_says(tracer):
    a, b = tracer.start_span("a"), tracer.start_span("b")
    token_a = otel_context.attach(trace.set_span_in_context(a))
    token_b = otel_context.attach(trace.set_span_in_context(b))
    for token in (token_a, token_b):
        otel_context.detach(token)
        now = trace.get_current_span().get_span_context().span_id
        assert current() == now
    assert current() == id_of(a), "a quirk of ContextVar.reset, which we follow"
    otel_context.attach(otel_context.Context())


def test_wrong_tokens_are_refused_as_before(tracer, caplog):
    otel_context.detach("no token")
    otel_context.detach(contextvars.ContextVar("other").set(1))
    assert [record.message for record in caplog.records] == ["Failed to detach context"] * 2
    assert current() == 0


def test_shutdown_restores(provider):
    before = otel_context._RUNTIME_CONTEXT
    first, second = PyroscopeSpanProcessor(), PyroscopeSpanProcessor()
    during = otel_context._RUNTIME_CONTEXT
    assert isinstance(during, _native.RuntimeContext) and isinstance(during, _RuntimeContext)
    assert during.previous is before
    assert during._current_context is before._current_context
    first.shutdown()
    first.shutdown()
    assert otel_context._RUNTIME_CONTEXT is during, "the second one still needs it"
    second.shutdown()
    assert otel_context._RUNTIME_CONTEXT is before


def test_a_span_left_current_at_shutdown_is_not_followed(provider):
    processor = PyroscopeSpanProcessor()
    provider.add_span_processor(processor)
    with provider.get_tracer("test").start_as_current_span("a") as a:
        assert current() == id_of(a)
        processor.shutdown()
        assert current() == 0


def test_a_thread_that_left_its_span_between_two_processors_is_outside(provider):
    import threading

    first, second = PyroscopeSpanProcessor(), None
    provider.add_span_processor(first)
    tracer, turn = provider.get_tracer("test"), threading.Barrier(2)
    seen = []

    def body():
        with tracer.start_as_current_span("between") as span:
            seen.append(current() == id_of(span))
            turn.wait()  # the first is shut down
            turn.wait()
        turn.wait()  # the second is made
        turn.wait()
        seen.append(current())
        with tracer.start_as_current_span("after") as span:
            seen.append(current() == id_of(span))

    thread = threading.Thread(target=body)
    thread.start()
    turn.wait()
    first.shutdown()
    turn.wait()
    turn.wait()
    second = PyroscopeSpanProcessor()
    provider.add_span_processor(second)
    turn.wait()
    thread.join()
    assert seen == [True, 0, True]


def test_a_span_older_than_the_processor_counts(provider):
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("old") as old:
        provider.add_span_processor(PyroscopeSpanProcessor())
        assert current() == id_of(old)
        assert old.attributes["pyroscope.profile.id"] == format(id_of(old), "016x")
        with tracer.start_as_current_span("child") as child:
            assert current() == id_of(old)
            assert "pyroscope.profile.id" not in child.attributes
    with tracer.start_as_current_span("ended") as ended:
        ended.end()
        del ended._pyroscope
        with trace.use_span(ended):
            assert current() == 0, "nothing can be said of it any more"


def test_a_span_that_is_not_sampled_is_outside_spans():
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor())
    with provider.get_tracer("test").start_as_current_span("a"):
        assert current() == 0
    provider.shutdown()


def test_a_remote_parent_is_no_span_of_ours(tracer):
    remote = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1))
    context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
    with trace.use_span(trace.NonRecordingSpan(remote)):
        assert current() == 0
    with tracer.start_as_current_span("a", context=context) as a:
        assert current() == id_of(a)
        assert a.attributes["pyroscope.profile.id"] == format(id_of(a), "016x")


def test_an_explicit_parent_context_decides(tracer):
    root = tracer.start_span("root")
    with tracer.start_as_current_span("other"):
        child = tracer.start_span("child", context=trace.set_span_in_context(root))
        assert "pyroscope.profile.id" not in child.attributes
        with trace.use_span(child):
            assert current() == id_of(root)


def test_spans_all_carry_their_own_id_in_the_scope_all(provider):
    provider.add_span_processor(PyroscopeSpanProcessor("all"))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("a") as a:
        with tracer.start_as_current_span("b") as b:
            assert current() == id_of(b)
            assert b.attributes["pyroscope.profile.id"] == format(id_of(b), "016x")
        assert current() == id_of(a)


class OwnContext(_RuntimeContext):
    """Somebody's own runtime context: a stack of one thread."""

    def __init__(self):
        self.stack = [otel_context.Context()]

    def attach(self, context):
        self.caller = sys._getframe(1).f_globals["__name__"]
        self.stack.append(context)
        return len(self.stack)

    def detach(self, token):
        if token != len(self.stack):
            raise ValueError("not the newest")
        self.stack.pop()

    def get_current(self):
        return self.stack[-1]


def test_somebodys_own_runtime_context_is_wrapped(provider, monkeypatch):
    own = OwnContext()
    monkeypatch.setattr(otel_context, "_RUNTIME_CONTEXT", own)
    processor = PyroscopeSpanProcessor()
    provider.add_span_processor(processor)
    with provider.get_tracer("test").start_as_current_span("a") as a:
        assert len(own.stack) == 2
        assert own.caller == "pyroscope._context", "until 3.13 no native frame may lie below Python code at exit"
        assert current() == id_of(a)
    assert len(own.stack) == 1 and current() == 0
    with pytest.raises(ValueError, match="not the newest"):
        otel_context._RUNTIME_CONTEXT.detach(7)
    processor.shutdown()
    assert otel_context._RUNTIME_CONTEXT is own


def test_a_span_in_a_destructor_that_any_allocation_may_run(python):
    """Up to 3.11 a collection comes with any allocation, those of a switch of contexts too."""
    python(
        """
        import gc
        from opentelemetry.sdk.trace import TracerProvider
        from pyroscope.otel import PyroscopeSpanProcessor

        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(PyroscopeSpanProcessor("all"))
        span = provider.get_tracer("test").start_as_current_span

        class Cycle:
            def __init__(self):
                self.itself = self

            def __del__(self):
                with span("inner"):
                    pass

        gc.set_threshold(7, 2, 2)
        for _ in range(20_000):
            with span("outer"):
                Cycle()
        """
    )
