// Package querier asks the viewer with the client that Grafana generates from its own protocol, in protobuf and in JSON.
// SPANPROF_URL says where the viewer listens; ci/test starts one.
package querier

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	profilev1 "github.com/grafana/pyroscope/api/gen/proto/go/google/v1"
	pushv1 "github.com/grafana/pyroscope/api/gen/proto/go/push/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/push/v1/pushv1connect"
	querierv1 "github.com/grafana/pyroscope/api/gen/proto/go/querier/v1"
	"github.com/grafana/pyroscope/api/gen/proto/go/querier/v1/querierv1connect"
	typesv1 "github.com/grafana/pyroscope/api/gen/proto/go/types/v1"
	"google.golang.org/protobuf/proto"
)

const (
	cpu     = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
	spanID  = "00f067aa0ba902b7"
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	inSpan  = 70_000_000
	outside = 30_000_000
)

// profile holds main > work in a span and main outside of it.
func profile() []byte {
	text := []string{"", "cpu", "nanoseconds", "main", "work", "span_id", spanID, "trace_id", traceID, "main.go"}
	bytes, err := proto.Marshal(&profilev1.Profile{
		SampleType: []*profilev1.ValueType{{Type: 1, Unit: 2}},
		PeriodType: &profilev1.ValueType{Type: 1, Unit: 2},
		Period:     10_000_000,
		TimeNanos:  time.Now().UnixNano(),
		Function:   []*profilev1.Function{{Id: 1, Name: 3, Filename: 9}, {Id: 2, Name: 4, Filename: 9}},
		Location: []*profilev1.Location{
			{Id: 1, Line: []*profilev1.Line{{FunctionId: 1, Line: 1}}},
			{Id: 2, Line: []*profilev1.Line{{FunctionId: 2, Line: 2}}},
		},
		Sample: []*profilev1.Sample{
			{LocationId: []uint64{2, 1}, Value: []int64{inSpan}, Label: []*profilev1.Label{{Key: 5, Str: 6}, {Key: 7, Str: 8}}},
			{LocationId: []uint64{1}, Value: []int64{outside}},
		},
		StringTable: text,
	})
	if err != nil {
		panic(err)
	}
	return bytes
}

func push(t *testing.T, url, service string) {
	t.Helper()
	client := pushv1connect.NewPusherServiceClient(http.DefaultClient, url)
	labels := []*typesv1.LabelPair{{Name: "__name__", Value: "process_cpu"}, {Name: "service_name", Value: service}}
	_, err := client.Push(context.Background(), connect.NewRequest(&pushv1.PushRequest{Series: []*pushv1.RawProfileSeries{
		{Labels: labels, Samples: []*pushv1.RawSample{{RawProfile: profile(), ID: "a"}}},
	}}))
	if err != nil {
		t.Fatal(err)
	}
}

// must returns the message of an answer, or ends the test.
func must[M any](t *testing.T) func(*connect.Response[M], error) *M {
	t.Helper()
	return func(response *connect.Response[M], err error) *M {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return response.Msg
	}
}

func equal[V comparable](t *testing.T, what string, got, expected V) {
	t.Helper()
	if got != expected {
		t.Errorf("%s: got %v, expected %v", what, got, expected)
	}
}

func TestQuerier(t *testing.T) {
	url := os.Getenv("SPANPROF_URL")
	if url == "" {
		t.Skip("SPANPROF_URL is not set: it says where a viewer listens")
	}
	for name, options := range map[string][]connect.ClientOption{
		"protobuf": nil,
		"json":     {connect.WithProtoJSON()},
		"gzip":     {connect.WithSendGzip()},
		"grpc-web": {connect.WithGRPCWeb()},
		// Packed, and in JSON.
		"grpc-web-packed": {connect.WithGRPCWeb(), connect.WithSendGzip()},
		"grpc-web-json":   {connect.WithGRPCWeb(), connect.WithProtoJSON()},
	} {
		t.Run(name, func(t *testing.T) {
			service := "go-" + name
			push(t, url, service)
			ask(t, querierv1connect.NewQuerierServiceClient(http.DefaultClient, url, options...), service)
		})
	}
}

func ask(t *testing.T, client querierv1connect.QuerierServiceClient, service string) {
	ctx := context.Background()
	selector := `{service_name="` + service + `"}`
	start, end := time.Now().Add(-time.Hour).UnixMilli(), time.Now().Add(time.Minute).UnixMilli()
	merge := func(change func(*querierv1.SelectMergeStacktracesRequest)) *querierv1.SelectMergeStacktracesResponse {
		request := &querierv1.SelectMergeStacktracesRequest{ProfileTypeID: cpu, LabelSelector: selector, Start: start, End: end}
		change(request)
		return must[querierv1.SelectMergeStacktracesResponse](t)(client.SelectMergeStacktraces(ctx, connect.NewRequest(request)))
	}

	types := must[querierv1.ProfileTypesResponse](t)(client.ProfileTypes(ctx, connect.NewRequest(&querierv1.ProfileTypesRequest{Start: start, End: end})))
	equal(t, "profile type", types.ProfileTypes[0].ID, cpu)
	equal(t, "sample unit", types.ProfileTypes[0].SampleUnit, "nanoseconds")

	names := must[typesv1.LabelNamesResponse](t)(client.LabelNames(ctx, connect.NewRequest(&typesv1.LabelNamesRequest{Matchers: []string{selector}, Start: start, End: end})))
	equal(t, "service_name is a label", slices.Contains(names.Names, "service_name"), true)
	values := must[typesv1.LabelValuesResponse](t)(client.LabelValues(ctx, connect.NewRequest(&typesv1.LabelValuesRequest{Name: "service_name", Matchers: []string{selector}, Start: start, End: end})))
	equal(t, "services", len(values.Names), 1)
	series := must[querierv1.SeriesResponse](t)(client.Series(ctx, connect.NewRequest(&querierv1.SeriesRequest{Matchers: []string{selector}, LabelNames: []string{"service_name"}, Start: start, End: end})))
	equal(t, "series", series.LabelsSet[0].Labels[0].Value, service)

	graph := merge(func(*querierv1.SelectMergeStacktracesRequest) {}).Flamegraph
	equal(t, "total", graph.Total, inSpan+outside)
	equal(t, "names", slices.Equal(graph.Names, []string{"total", "main", "work"}), true)
	equal(t, "the last level", slices.Equal(graph.Levels[2].Values, []int64{outside, inSpan, inSpan, 2}), true)
	ofSpan := merge(func(request *querierv1.SelectMergeStacktracesRequest) { request.SpanSelector = []string{spanID} })
	equal(t, "total of the span", ofSpan.Flamegraph.Total, inSpan)
	ofTrace := merge(func(request *querierv1.SelectMergeStacktracesRequest) { request.TraceIdSelector = []string{traceID} })
	equal(t, "total of the trace", ofTrace.Flamegraph.Total, inSpan)
	tree := merge(func(request *querierv1.SelectMergeStacktracesRequest) {
		request.Format = querierv1.ProfileFormat_PROFILE_FORMAT_TREE
	})
	equal(t, "there is a tree", len(tree.Tree) > 10, true)
	pprof := merge(func(request *querierv1.SelectMergeStacktracesRequest) {
		request.Format = querierv1.ProfileFormat_PROFILE_FORMAT_PPROF
	}).Pprof.Profile
	equal(t, "samples of the pprof", len(pprof.Sample), 2)

	span := must[querierv1.SelectMergeSpanProfileResponse](t)(client.SelectMergeSpanProfile(ctx, connect.NewRequest(&querierv1.SelectMergeSpanProfileRequest{ProfileTypeID: cpu, LabelSelector: selector, SpanSelector: []string{spanID}, Start: start, End: end})))
	equal(t, "total of the span, as it was asked before", span.Flamegraph.Total, inSpan)
	merged := must[profilev1.Profile](t)(client.SelectMergeProfile(ctx, connect.NewRequest(&querierv1.SelectMergeProfileRequest{ProfileTypeID: cpu, LabelSelector: selector, Start: start, End: end})))
	equal(t, "function", merged.StringTable[merged.Function[0].Name], "main")

	points := must[querierv1.SelectSeriesResponse](t)(client.SelectSeries(ctx, connect.NewRequest(&querierv1.SelectSeriesRequest{ProfileTypeID: cpu, LabelSelector: selector, Start: start, End: end, Step: 15, GroupBy: []string{"service_name"}})))
	sum := 0.0
	for _, point := range points.Series[0].Points {
		equal(t, "distance of a point from the start", (point.Timestamp-start)%15_000, 0)
		sum += point.Value
	}
	equal(t, "sum of the points", sum, inSpan+outside)

	side := func(spans ...string) *querierv1.SelectMergeStacktracesRequest {
		return &querierv1.SelectMergeStacktracesRequest{ProfileTypeID: cpu, LabelSelector: selector, Start: start, End: end, SpanSelector: spans}
	}
	diff := must[querierv1.DiffResponse](t)(client.Diff(ctx, connect.NewRequest(&querierv1.DiffRequest{Left: side(), Right: side(spanID)})))
	equal(t, "left", diff.Flamegraph.LeftTicks, inSpan+outside)
	equal(t, "right", diff.Flamegraph.RightTicks, inSpan)

	stats := must[typesv1.GetProfileStatsResponse](t)(client.GetProfileStats(ctx, connect.NewRequest(&typesv1.GetProfileStatsRequest{})))
	equal(t, "there is data", stats.DataIngested, true)

	_, err := client.SelectMergeStacktraces(ctx, connect.NewRequest(&querierv1.SelectMergeStacktracesRequest{ProfileTypeID: cpu, SpanSelector: []string{"xyz"}}))
	equal(t, "a span id that is none", connect.CodeOf(err), connect.CodeInvalidArgument)
	_, err = client.ProfileTypes(ctx, connect.NewRequest(&querierv1.ProfileTypesRequest{}))
	equal(t, "no time range", connect.CodeOf(err), connect.CodeInvalidArgument)
	equal(t, "what is said of it", strings.Contains(err.Error(), "missing time range in the query"), true)

	dot := merge(func(request *querierv1.SelectMergeStacktracesRequest) {
		request.Format = querierv1.ProfileFormat_PROFILE_FORMAT_DOT
	}).Dot
	for _, part := range []string{"digraph", `N1 [label="main\n30.0 ms of 100 ms`, `N2 [label="work\n70.0 ms of 70.0 ms`, `N1 -> N2 [label=" 70.0 ms"`} {
		equal(t, "the graph has "+part+": "+dot, strings.Contains(dot, part), true)
	}

	heatmap := must[querierv1.SelectHeatmapResponse](t)(client.SelectHeatmap(ctx, connect.NewRequest(&querierv1.SelectHeatmapRequest{
		ProfileTypeID: cpu, LabelSelector: selector, Start: start, End: end, Step: 15, GroupBy: []string{"service_name"},
		QueryType: querierv1.HeatmapQueryType_HEATMAP_QUERY_TYPE_SPAN, ExemplarType: typesv1.ExemplarType_EXEMPLAR_TYPE_SPAN,
	})))
	equal(t, "series of the heat map", heatmap.Series[0].Labels[0].Value, service)
	slot := heatmap.Series[0].Slots[0]
	equal(t, "slots", len(heatmap.Series[0].Slots), 1)
	equal(t, "distance of a slot from the start", (slot.Timestamp-start)%15_000, 0)
	equal(t, "rows", len(slot.YMin), 20)
	// Where all values are equal Pyroscope has them in the highest row.
	equal(t, "spans in the highest row", slot.Counts[19], 1)
	equal(t, "value of the lowest row", slot.YMin[0], inSpan)
	exemplar := slot.Exemplars[0]
	equal(t, "span", exemplar.SpanId, spanID)
	equal(t, "trace", exemplar.TraceId, traceID)
	equal(t, "value of the span", exemplar.Value, inSpan)
	individual := must[querierv1.SelectHeatmapResponse](t)(client.SelectHeatmap(ctx, connect.NewRequest(&querierv1.SelectHeatmapRequest{
		ProfileTypeID: cpu, LabelSelector: selector, Start: start, End: end, Step: 15,
		QueryType: querierv1.HeatmapQueryType_HEATMAP_QUERY_TYPE_INDIVIDUAL, ExemplarType: typesv1.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL,
	})))
	equal(t, "value of a profile", individual.Series[0].Slots[0].YMin[0], inSpan+outside)
	timeline := must[querierv1.SelectSeriesResponse](t)(client.SelectSeries(ctx, connect.NewRequest(&querierv1.SelectSeriesRequest{
		ProfileTypeID: cpu, LabelSelector: selector, Start: start, End: end, Step: 15, ExemplarType: typesv1.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL,
	})))
	for _, exemplar := range []*typesv1.Exemplar{individual.Series[0].Slots[0].Exemplars[0], timeline.Series[0].Points[0].Exemplars[0]} {
		equal(t, "value of an exemplar", exemplar.Value, inSpan+outside)
		of := func(id string) int64 {
			return merge(func(request *querierv1.SelectMergeStacktracesRequest) { request.ProfileIdSelector = []string{id} }).Flamegraph.Total
		}
		equal(t, "what its id chooses", of(exemplar.ProfileId), inSpan+outside)
		equal(t, "what another id chooses", of("7c9e6679-7425-40de-944b-e07fc1f90ae7"), 0)
	}
	analyzed := must[querierv1.AnalyzeQueryResponse](t)(client.AnalyzeQuery(ctx, connect.NewRequest(&querierv1.AnalyzeQueryRequest{Start: start, End: end, Query: selector})))
	equal(t, "parts of a server that are asked", len(analyzed.QueryScopes), 0)
	_, err = client.SelectHeatmap(ctx, connect.NewRequest(&querierv1.SelectHeatmapRequest{ProfileTypeID: cpu, Start: start, End: end, Step: 15}))
	equal(t, "no type of query", connect.CodeOf(err), connect.CodeInvalidArgument)
}

// TestDownload lets `go tool pprof` choose by what a downloaded profile says of its samples.
func TestDownload(t *testing.T) {
	url := os.Getenv("SPANPROF_URL")
	if url == "" {
		t.Skip("SPANPROF_URL is not set: it says where a viewer listens")
	}
	push(t, url, "go-download")
	for focus, expected := range map[string]string{
		"span_id=" + spanID:           "70ms, 70.00% of 100ms total",
		"trace_id=" + traceID:         "70ms, 70.00% of 100ms total",
		"span_id=" + traceID[:16]:     "0, 0% of 100ms total",
		"span_id=" + spanID + "|none": "70ms, 70.00% of 100ms total",
	} {
		command := exec.Command("go", "tool", "pprof", "-top", "-tagfocus="+focus, url+"/profile.pb.gz?service=go-download")
		command.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
		top, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v %s", focus, err, top)
		}
		for _, part := range []string{"Time: ", "Duration: ", expected} {
			equal(t, focus+" says "+part+": "+string(top), strings.Contains(string(top), part), true)
		}
	}
}
