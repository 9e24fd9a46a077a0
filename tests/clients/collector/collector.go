// Package collector runs an OpenTelemetry Collector between senders of profiles and whoever takes OTLP.
package collector

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/featuregate"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

// Way is how the Collector sends what it got.
type Way struct {
	// Name of the way: grpc, protobuf or json.
	Name string
	// Exporter is its configuration, as YAML with an indentation of four.
	Exporter string
	// Address is where the Collector takes OTLP by gRPC for this way.
	Address string
}

// Ways are all that a Collector has, to a receiver by gRPC at grpc and by HTTP at url.
func Ways(grpc, url string) []Way {
	http := "otlp_http/%s:\n    endpoint: %s\n    encoding: %s\n    compression: %s\n    sending_queue: {enabled: false}\n"
	return []Way{
		{Name: "grpc", Exporter: fmt.Sprintf("otlp_grpc/grpc:\n    endpoint: %s\n    tls: {insecure: true}\n    sending_queue: {enabled: false}\n", grpc)},
		{Name: "protobuf", Exporter: fmt.Sprintf(http, "protobuf", url, "proto", "gzip")},
		{Name: "json", Exporter: fmt.Sprintf(http, "json", url, "json", "none")},
	}
}

// Start runs a Collector until the test ends, and sets the addresses of ways: a pipeline of profiles each.
func Start(t *testing.T, ways []Way) {
	t.Helper()
	if err := featuregate.GlobalRegistry().Set("service.profilesSupport", true); err != nil {
		t.Fatal(err)
	}
	var receivers, exporters, pipelines strings.Builder
	for index := range ways {
		way := &ways[index]
		way.Address = free(t)
		fmt.Fprintf(&receivers, "  otlp/%s:\n    protocols:\n      grpc: {endpoint: '%s'}\n", way.Name, way.Address)
		fmt.Fprintf(&exporters, "  %s", way.Exporter)
		name, _, _ := strings.Cut(way.Exporter, ":")
		fmt.Fprintf(&pipelines, "    profiles/%s: {receivers: [otlp/%s], exporters: [%s]}\n", way.Name, way.Name, name)
	}
	config := fmt.Sprintf("receivers:\n%sexporters:\n%sservice:\n  telemetry:\n    metrics: {level: none}\n    logs: {level: warn}\n  pipelines:\n%s",
		receivers.String(), exporters.String(), pipelines.String())
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Version: "0.165.0"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs:              []string{"yaml:" + config},
			ProviderFactories: []confmap.ProviderFactory{yamlprovider.NewFactory()},
		}},
		DisableGracefulShutdown: true,
	}
	service, err := otelcol.NewCollector(settings)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- service.Run(context.Background()) }()
	t.Cleanup(func() {
		service.Shutdown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for service.GetState() != otelcol.StateRunning {
		select {
		case err := <-ended:
			ended <- nil
			t.Fatalf("the Collector does not start: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func factories() (otelcol.Factories, error) {
	all := otelcol.Factories{Telemetry: otelconftelemetry.NewFactory()}
	var err error
	if all.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
		return all, err
	}
	all.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](otlpexporter.NewFactory(), otlphttpexporter.NewFactory())
	return all, err
}

// free is an address on this machine that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
