package collector

import (
	"context"
	"encoding/hex"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Period is that of all CPU profiles here.
const Period = 10 * time.Millisecond

// Numbers are what a sender knows of what it sent: of a service, of a type, by function and by span.
type Numbers struct {
	Service string `json:"service"`
	// Type as the query API has it.
	Type  string           `json:"type"`
	Total int64            `json:"total"`
	Self  map[string]int64 `json:"self"`
	Spans map[string]int64 `json:"spans"`
}

// Cpu is the type of CPU time.
const Cpu = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

// writer fills the tables that profiles of a request share.
type writer struct {
	all     pprofile.Profiles
	strings map[string]int32
	now     time.Time
}

func newWriter(now time.Time) *writer {
	w := &writer{pprofile.NewProfiles(), map[string]int32{}, now}
	w.string("")
	tables := w.all.Dictionary()
	tables.MappingTable().AppendEmpty()
	tables.LocationTable().AppendEmpty()
	tables.FunctionTable().AppendEmpty()
	tables.LinkTable().AppendEmpty()
	tables.AttributeTable().AppendEmpty()
	tables.StackTable().AppendEmpty()
	return w
}

func (w *writer) string(text string) int32 {
	if known, ok := w.strings[text]; ok {
		return known
	}
	table := w.all.Dictionary().StringTable()
	w.strings[text] = int32(table.Len())
	table.Append(text)
	return w.strings[text]
}

// stack adds a stack of functions, leaf first, each in line 7 of app.go.
func (w *writer) stack(functions ...string) int32 {
	tables := w.all.Dictionary()
	stack := tables.StackTable().AppendEmpty()
	for _, name := range functions {
		function := tables.FunctionTable().AppendEmpty()
		function.SetNameStrindex(w.string(name))
		function.SetFilenameStrindex(w.string("app.go"))
		location := tables.LocationTable().AppendEmpty()
		line := location.Lines().AppendEmpty()
		line.SetFunctionIndex(int32(tables.FunctionTable().Len() - 1))
		line.SetLine(7)
		stack.LocationIndices().Append(int32(tables.LocationTable().Len() - 1))
	}
	return int32(tables.StackTable().Len() - 1)
}

func (w *writer) link(trace, span string) int32 {
	link := w.all.Dictionary().LinkTable().AppendEmpty()
	var traceID pcommon.TraceID
	var spanID pcommon.SpanID
	hex.Decode(traceID[:], []byte(trace))
	hex.Decode(spanID[:], []byte(span))
	link.SetTraceID(traceID)
	link.SetSpanID(spanID)
	return int32(w.all.Dictionary().LinkTable().Len() - 1)
}

func (w *writer) attribute(key, value string) int32 {
	attribute := w.all.Dictionary().AttributeTable().AppendEmpty()
	attribute.SetKeyStrindex(w.string(key))
	attribute.Value().SetStr(value)
	return int32(w.all.Dictionary().AttributeTable().Len() - 1)
}

// profile adds one of the type and period of another.
func (w *writer) profile(scope pprofile.ScopeProfiles, kind, unit, periodKind, periodUnit string, period int64) pprofile.Profile {
	profile := scope.Profiles().AppendEmpty()
	profile.SampleType().SetTypeStrindex(w.string(kind))
	profile.SampleType().SetUnitStrindex(w.string(unit))
	profile.PeriodType().SetTypeStrindex(w.string(periodKind))
	profile.PeriodType().SetUnitStrindex(w.string(periodUnit))
	profile.SetPeriod(period)
	profile.SetTime(pcommon.NewTimestampFromTime(w.now))
	profile.SetDurationNano(uint64(10 * time.Second))
	return profile
}

func sample(profile pprofile.Profile, stack, link int32, value int64, attributes ...int32) {
	sample := profile.Samples().AppendEmpty()
	sample.SetStackIndex(stack)
	sample.SetLinkIndex(link)
	sample.Values().Append(value)
	sample.AttributeIndices().Append(attributes...)
}

const (
	trace    = "4bf92f3577b34da6a3ce929d0e0e4736"
	cartSpan = "00f067aa0ba902b7"
	userSpan = "00f067aa0ba902b8"
)

// Profiles are what an SDK with spans would send now, and samples that say their own service; names of services end in suffix.
func Profiles(suffix string, now time.Time) (pprofile.Profiles, []Numbers) {
	w := newWriter(now)
	one := w.all.ResourceProfiles().AppendEmpty()
	one.Resource().Attributes().PutStr("service.name", "shop-"+suffix)
	one.Resource().Attributes().PutStr("service.namespace", "demo")
	one.Resource().Attributes().PutInt("process.pid", 77)
	scope := one.ScopeProfiles().AppendEmpty()
	scope.Scope().SetName("profiler")
	scope.Scope().Attributes().PutStr("profiler.kind", "sampling")
	cpu := w.profile(scope, "samples", "count", "cpu", "nanoseconds", int64(Period))
	query, render := w.stack("query", "handle", "main"), w.stack("render", "handle", "main")
	cart, user := w.link(trace, cartSpan), w.link(trace, userSpan)
	sample(cpu, query, cart, 7)
	sample(cpu, render, cart, 2)
	sample(cpu, render, user, 4)
	sample(cpu, render, 0, 1)
	sample(cpu, query, 0, 3, w.attribute("service.name", "worker-"+suffix))
	// async-profiler calls CPU time by its timer.
	timer := w.profile(scope, "itimer", "ns", "itimer", "ns", int64(Period))
	sample(timer, query, 0, int64(5*Period), w.attribute("service.name", "java-"+suffix))
	waits := w.profile(scope, "off_cpu", "nanoseconds", "", "", 0)
	sample(waits, query, cart, 1_234_567)

	nameless := w.all.ResourceProfiles().AppendEmpty()
	nameless.Resource().Attributes().PutStr("process.executable.name", "nameless-"+suffix)
	other := w.profile(nameless.ScopeProfiles().AppendEmpty(), "cpu", "nanoseconds", "cpu", "nanoseconds", int64(Period))
	sample(other, render, 0, int64(6*Period))

	period := int64(Period)
	return w.all, []Numbers{
		{
			"shop-" + suffix, Cpu, 14 * period,
			map[string]int64{"query": 7 * period, "render": 7 * period},
			map[string]int64{cartSpan: 9 * period, userSpan: 4 * period},
		},
		{"worker-" + suffix, Cpu, 3 * period, map[string]int64{"query": 3 * period}, nil},
		{"java-" + suffix, Cpu, 5 * period, map[string]int64{"query": 5 * period}, nil},
		{
			"shop-" + suffix, "off_cpu:off_cpu:nanoseconds::", 1_234_567,
			map[string]int64{"query": 1_234_567}, map[string]int64{cartSpan: 1_234_567},
		},
		{"unknown_service:nameless-" + suffix, Cpu, 6 * period, map[string]int64{"render": 6 * period}, nil},
	}
}

// Send sends profiles by gRPC.
func Send(t *testing.T, address string, profiles pprofile.Profiles) {
	t.Helper()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	answer, err := pprofileotlp.NewGRPCClient(connection).Export(context.Background(), pprofileotlp.NewExportRequestFromProfiles(profiles))
	if err != nil {
		t.Fatal(err)
	}
	if rejected := answer.PartialSuccess(); rejected.RejectedProfiles() != 0 || rejected.ErrorMessage() != "" {
		t.Fatalf("%d rejected: %s", rejected.RejectedProfiles(), rejected.ErrorMessage())
	}
}
