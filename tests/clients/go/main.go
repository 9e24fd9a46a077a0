// Command shop is a service with Grafana's two Go modules as their documents set them up: pyroscope-go with all ten profile types, and
// otel-profiling-go around the tracer provider. It works for about -seconds in spans and outside of them, sends its profiles to
// SPANPROF_URL, its spans to SPANPROF_URL/v1/traces, and prints what a test asks the server for, as JSON.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"log"
	"os"
	"runtime"
	"sync"
	"time"

	otelpyroscope "github.com/grafana/otel-profiling-go"
	"github.com/grafana/pyroscope-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
)

// live is what the heap profile sees.
var live [][]byte

// done is what a test asks for.
type done struct {
	Service string            `json:"service"`
	Spans   map[string]string `json:"spans"`
	Traces  map[string]string `json:"traces"`
}

func main() {
	seconds := flag.Duration("for", 3*time.Second, "how long to work")
	service := flag.String("service", "go-shop", "service.name and application name")
	flag.Parse()
	url := os.Getenv("SPANPROF_URL")
	if url == "" {
		log.Fatal("SPANPROF_URL is not set; it says where spanprof listens, such as http://localhost:4040")
	}
	provider := traces(url, *service)
	otel.SetTracerProvider(otelpyroscope.NewTracerProvider(provider))

	runtime.SetMutexProfileFraction(1)
	runtime.SetBlockProfileRate(1)
	runtime.MemProfileRate = 4096
	profiler, err := pyroscope.Start(pyroscope.Config{
		ApplicationName: *service,
		ServerAddress:   url,
		Logger:          failures{},
		Tags:            map[string]string{"region": "eu"},
		ProfileTypes: []pyroscope.ProfileType{
			pyroscope.ProfileCPU,
			pyroscope.ProfileInuseObjects, pyroscope.ProfileAllocObjects, pyroscope.ProfileInuseSpace, pyroscope.ProfileAllocSpace,
			pyroscope.ProfileGoroutines,
			pyroscope.ProfileMutexCount, pyroscope.ProfileMutexDuration,
			pyroscope.ProfileBlockCount, pyroscope.ProfileBlockDuration,
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	said := work(*service, *seconds)
	profiler.Flush(true)
	if err := profiler.Stop(); err != nil {
		log.Fatal(err)
	}
	if err := provider.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}

func traces(url, service string) *sdktrace.TracerProvider {
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(url+"/v1/traces"))
	if err != nil {
		log.Fatal(err)
	}
	named, err := resource.Merge(resource.Default(), resource.NewSchemaless(semconv.ServiceName(service)))
	if err != nil {
		log.Fatal(err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(named))
}

// work spends its time in two root spans and outside: about half of it in "GET /cart", a quarter in "GET /pay" and outside.
func work(service string, length time.Duration) done {
	said := done{Service: service, Spans: map[string]string{}, Traces: map[string]string{}}
	tracer := otel.Tracer("shop")
	in := func(name string, length time.Duration, what func(time.Duration)) {
		_, span := tracer.Start(context.Background(), name, trace.WithSpanKind(trace.SpanKindServer))
		said.Spans[name] = span.SpanContext().SpanID().String()
		said.Traces[name] = span.SpanContext().TraceID().String()
		what(length)
		span.End()
	}
	in("GET /cart", length/2, cart)
	in("GET /pay", length/4, pay)
	background(length / 8)
	contend()
	allocate()
	return said
}

//go:noinline
func cart(length time.Duration) { burn(length) }

//go:noinline
func pay(length time.Duration) { burn(length) }

//go:noinline
func background(length time.Duration) { burn(length) }

//go:noinline
func burn(length time.Duration) {
	sum := sha256.Sum256(nil)
	for since := time.Now(); time.Since(since) < length; {
		for range 1000 {
			sum = sha256.Sum256(sum[:])
		}
	}
}

// contend makes goroutines wait for a mutex, which is a delay of the mutex profile and of the block profile.
//
//go:noinline
func contend() {
	var mutex sync.Mutex
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				mutex.Lock()
				time.Sleep(time.Millisecond)
				mutex.Unlock()
			}
		})
	}
	all.Wait()
}

// allocate keeps eight megabytes and drops as many.
//
//go:noinline
func allocate() {
	for range 64 {
		live = append(live, make([]byte, 128<<10))
		_ = append([]byte(nil), make([]byte, 128<<10)...)
	}
	runtime.GC()
	runtime.GC()
}

// failures prints what the profiler cannot send, so that a test sees it.
type failures struct{}

func (failures) Infof(string, ...any)  {}
func (failures) Debugf(string, ...any) {}
func (failures) Errorf(format string, values ...any) {
	log.Printf(format, values...)
}
