package collector

import (
	"context"
	"encoding/hex"
	"testing"
	"time"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"
	"google.golang.org/grpc"
)

// PerSecond is how often the eBPF profiler samples by default.
const PerSecond = 20

// Thread and Process are what samples of the eBPF profiler are of, where the kernel numbers them.
const (
	Process = 4_242
	Thread  = 4_243
)

// ReportEbpf lets the eBPF profiler's own reporter send what its tracer would tell it: samples of a C++ program in a container, some
// in a span that the process shares with it, some with thread and time alone, until now. Names of services end in suffix.
func ReportEbpf(t *testing.T, address, suffix string, now time.Time) []Numbers {
	t.Helper()
	sent := make(chan struct{}, 16)
	config := &reporter.Config{
		Name: "ebpf-profiler", Version: "v0.0.202633", CollAgentAddr: address, MaxRPCMsgSize: 32 << 20, DisableTLS: true,
		SamplesPerSecond: PerSecond, MaxGRPCRetries: 3, GRPCOperationTimeout: 10 * time.Second,
		GRPCStartupBackoffTime: 100 * time.Millisecond, GRPCConnectionTimeout: 10 * time.Second,
		ReportInterval: 100 * time.Millisecond,
		GRPCClientInterceptor: func(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			err := invoke(ctx, method, request, reply, connection, options...)
			if err != nil {
				t.Error(err)
			}
			sent <- struct{}{}
			return err
		},
	}
	profiler, err := reporter.NewOTLP(config)
	if err != nil {
		t.Fatal(err)
	}
	mapping := libpf.NewFrameMapping(libpf.FrameMappingData{File: libpf.NewFrameMappingFile(libpf.FrameMappingFileData{
		FileID: libpf.NewFileID(2, 3), FileName: libpf.Intern("server"), GnuBuildID: "5a5a",
	})})
	stack := func(names ...string) *libpf.Trace {
		var frames libpf.Frames
		for index, name := range names {
			frame := libpf.Frame{Type: libpf.NativeFrame, AddressOrLineno: libpf.AddressOrLineno(0x1000 + index), Mapping: mapping}
			if name != "" {
				frame.FunctionName, frame.SourceFile, frame.SourceLine = libpf.Intern(name), libpf.Intern("server.cc"), 9
			}
			frames.Append(&frame)
		}
		return &libpf.Trace{Frames: frames}
	}
	cpu := &samples.TypeMetadata{PeriodType: "cpu", PeriodUnit: "nanoseconds", SampleType: "samples", SampleUnit: "count"}
	waits := &samples.TypeMetadata{SampleType: "off_cpu", SampleUnit: "nanoseconds", ReportValues: true}
	report := func(frames *libpf.Trace, kind *samples.TypeMetadata, service string, ago time.Duration, value int64, inSpan bool) {
		meta := &samples.TraceEventMeta{
			Comm: libpf.NewCommFromString("server"), ExecutablePath: libpf.Intern("/usr/bin/native-" + suffix),
			ContainerID: libpf.Intern("c0ffee"), APMServiceName: service, Timestamp: libpf.UnixTime64(now.Add(-ago).UnixNano()),
			CPU: 1, ProfileType: kind, Value: value, PID: Process, TID: Thread,
		}
		if inSpan {
			hex.Decode(meta.SpanID[:], []byte(cartSpan))
			hex.Decode(meta.TraceID[:], []byte(trace))
		}
		if err := profiler.ReportTraceEvent(frames, meta); err != nil {
			t.Fatal(err)
		}
	}
	parse, write := stack("parse", "serve", "main"), stack("write", "serve", "main")
	for step := range 6 {
		report(parse, cpu, "cpp-"+suffix, time.Duration(step)*50*time.Millisecond, 1, true)
	}
	for step := range 3 {
		report(write, cpu, "cpp-"+suffix, time.Duration(step)*50*time.Millisecond, 1, false)
	}
	report(stack("", "main"), cpu, "", 0, 1, false)
	report(write, waits, "cpp-"+suffix, 0, 2_000_000, false)
	report(write, waits, "cpp-"+suffix, time.Millisecond, 3_000_000, false)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := profiler.Start(ctx); err != nil {
		t.Fatal(err)
	}
	<-sent
	profiler.Stop()

	period := int64(time.Second / PerSecond)
	return []Numbers{
		{
			"cpp-" + suffix, Cpu, 9 * period, map[string]int64{"parse": 6 * period, "write": 3 * period},
			map[string]int64{cartSpan: 6 * period},
		},
		{"cpp-" + suffix, "off_cpu:off_cpu:nanoseconds::", 5_000_000, map[string]int64{"write": 5_000_000}, nil},
		{"unknown_service:native-" + suffix, Cpu, period, map[string]int64{"0x1000": period}, nil},
	}
}
