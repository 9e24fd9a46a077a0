// What a Collector and the eBPF profiler's reporter send, compared with what they know of it, by each way that a Collector sends.
// SPANPROF_URL and SPANPROF_GRPC say where the viewer listens; ci/test starts one. RECORD is a folder to keep what is sent in, instead.
package collector

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWhatASenderKnowsIsWhatTheViewerShows(t *testing.T) {
	viewer, grpc := os.Getenv("SPANPROF_URL"), os.Getenv("SPANPROF_GRPC")
	if viewer == "" || grpc == "" {
		t.Skip("SPANPROF_URL and SPANPROF_GRPC are not set")
	}
	ways := Ways(grpc, viewer)
	Start(t, ways)
	for _, way := range ways {
		profiles, numbers := Profiles(way.Name, time.Now())
		Send(t, way.Address, profiles)
		numbers = append(numbers, ReportEbpf(t, way.Address, way.Name, time.Now())...)
		for _, known := range numbers {
			check(t, viewer, known)
		}
	}
	var services struct{ Refused []any }
	get(t, viewer+"/api/services", &services)
	if len(services.Refused) != 0 {
		t.Errorf("refused: %v", services.Refused)
	}
}

func check(t *testing.T, viewer string, known Numbers) {
	t.Helper()
	query := "service=" + url.QueryEscape(known.Service) + "&type=" + url.QueryEscape(known.Type)
	var top struct {
		Total     int64
		Functions []struct {
			Function string
			Own      int64
		}
	}
	get(t, viewer+"/api/top?"+query, &top)
	self := map[string]int64{}
	for _, function := range top.Functions {
		if function.Own > 0 {
			self[function.Function] = function.Own
		}
	}
	if top.Total != known.Total || fmt.Sprint(self) != fmt.Sprint(known.Self) {
		t.Errorf("%s, %s: %d %v, and sent was %d %v", known.Service, known.Type, top.Total, self, known.Total, known.Self)
	}
	for span, value := range known.Spans {
		var flame struct{ Total int64 }
		get(t, viewer+"/api/flame?span="+span+"&"+query, &flame)
		if flame.Total != value {
			t.Errorf("%s, %s, span %s: %d, and sent was %d", known.Service, known.Type, span, flame.Total, value)
		}
	}
}

func get(t *testing.T, address string, into any) {
	t.Helper()
	answer, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s", address, answer.StatusCode, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %v", address, err)
	}
}

// TestRecord keeps the messages of each way, and the numbers that belong to them.
func TestRecord(t *testing.T) {
	folder := os.Getenv("RECORD")
	if folder == "" {
		t.Skip("RECORD is not set")
	}
	name := ""
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			t.Error(err)
		}
		kind, ending := request.Header.Get("Content-Type"), ".pb"
		switch {
		case strings.HasPrefix(kind, "application/grpc"):
			// One frame, whose head says whether it is packed and how long it is.
			if length := binary.BigEndian.Uint32(body[1:5]); int(length) != len(body)-5 {
				t.Errorf("a frame of %d in a body of %d", length, len(body))
			}
			if body[0] == 1 {
				ending += ".gz"
			}
			body = body[5:]
			writer.Header().Set("Content-Type", "application/grpc")
			writer.Header().Set("Trailer", "Grpc-Status")
			writer.Write([]byte{0, 0, 0, 0, 0})
			writer.Header().Set("Grpc-Status", "0")
		case kind == "application/json":
			ending = ".json"
		case request.Header.Get("Content-Encoding") == "gzip":
			ending += ".gz"
		}
		if err := os.WriteFile(filepath.Join(folder, name+ending), body, 0o644); err != nil {
			t.Error(err)
		}
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	ways := Ways(strings.TrimPrefix(server.URL, "http://"), server.URL)
	Start(t, ways)
	all := map[string][]Numbers{}
	// Long ago, so that no clock is behind it.
	now := time.Unix(1_767_225_600, 0)
	for _, way := range ways {
		profiles, numbers := Profiles(way.Name, now)
		name = "sdk-" + way.Name
		all[name] = numbers
		Send(t, way.Address, profiles)
		name = "ebpf-" + way.Name
		all[name] = ReportEbpf(t, way.Address, way.Name, now)
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "numbers.json"), append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
