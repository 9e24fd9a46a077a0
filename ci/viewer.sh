# The viewer: its program, and the steps that test it, the demo among them. Sourced by ci/lib.sh.
# shellcheck shell=bash

# build_viewer: the unoptimised build, which is ready in a third of the time; prints its path.
build_viewer() {
    build_programs spanprof
    printf '%s\n' "$TARGET/debug/spanprof"
}

# start_viewer PROGRAM LOG PORT OTLP_PORT [OPTION...]: sets url and viewer_pid. If another program has the port a free one is
# taken. OTLP_PORT may be `none`: the port of the pages takes traces too.
start_viewer() {
    local program=$1 log=$2 port=$3 otlp=$4
    shift 4
    if [ "$otlp" != none ]; then otlp=127.0.0.1:$otlp; fi
    while :; do
        start "$log" "$program" --listen "127.0.0.1:$port" --listen-otlp "$otlp" --listen-grpc none "$@"
        viewer_pid=$!
        # shellcheck disable=SC2034 # url is for the script that sources this.
        if url=$(wait_for_line "$log" 'spanprof listening on (http://[^ ]+)' "$viewer_pid"); then return 0; fi
        if [ "$port" = 0 ] || ! grep -q 'another program uses it' "$log"; then fail "the viewer did not start: $(cat "$log")"; fi
        say "port $port is taken by another program, so the viewer takes a free one"
        port=0
    done
}

# run_viewer NAME [OPTION...]: starts one for a step; sets url and viewer_log, which is its own as two steps run at a time.
run_viewer() {
    viewer_log=$TARGET/logs/viewer-of-$1.log
    shift
    start "$viewer_log" "$(build_viewer)" --listen 127.0.0.1:0 "$@"
    url=$(wait_for_line "$viewer_log" 'spanprof listening on (http://[^ ]+)' $!) ||
        fail "the viewer did not start: $(cat "$viewer_log")"
}

querier() {
    command -v go >/dev/null || skip "go is not installed"
    (cd viewer/tests/go && timeout 120 go mod download >"$TARGET/logs/go-modules.log" 2>&1) ||
        skip "the Go modules cannot be fetched: $(tail -n 1 "$TARGET/logs/go-modules.log")"
    run_viewer querier --listen-otlp none --listen-grpc none
    (cd viewer/tests/go && SPANPROF_URL=$url go test -count=1 ./...)
}

# client NAME COMMAND...: runs a client of somebody else's against a viewer, and compares what this shows with `go tool pprof` of what was
# sent.
client() {
    local name=$1 folder=$TARGET/clients/$1 recorder viewer_url
    shift
    run_viewer "client-$name" --listen-otlp none --listen-grpc none
    viewer_url=$url
    rm -rf "$folder"
    start "$TARGET/logs/client-$name.log" python3 tests/clients/record.py "$folder" "$viewer_url"
    recorder=$(wait_for_line "$TARGET/logs/client-$name.log" 'recording on (http://[^ ]+)' $!) ||
        fail "the recorder did not start: $(cat "$TARGET/logs/client-$name.log")"
    SPANPROF_URL=$recorder timeout 60 "$@" >"$folder/said.json"
    if grep -v '^recording on' "$TARGET/logs/client-$name.log"; then fail "not all that the client sent was taken"; fi
    python3 tests/clients/numbers.py "$folder"
    python3 tests/clients/check.py "$viewer_url" "$folder" "$folder/said.json"
}

client_go() {
    command -v go >/dev/null || skip "go is not installed"
    (cd tests/clients/go && timeout 120 go mod download >"$TARGET/logs/go-client-modules.log" 2>&1) ||
        skip "the Go modules cannot be fetched: $(tail -n 1 "$TARGET/logs/go-client-modules.log")"
    (cd tests/clients/go && quietly "$TARGET/logs/go-client.log" go build -trimpath -o "$TARGET/clients/go-shop" .)
    client go "$TARGET/clients/go-shop" -for 2s
}

client_node() {
    command -v go >/dev/null || skip "go is not installed, whose pprof says what was sent"
    command -v node >/dev/null || skip "node is not installed"
    command -v npm >/dev/null || skip "npm is not installed"
    (cd tests/clients/node && timeout 120 npm ci --no-audit --no-fund >"$TARGET/logs/node-client-npm.log" 2>&1) ||
        skip "the packages cannot be fetched: $(tail -n 1 "$TARGET/logs/node-client-npm.log")"
    client node node tests/clients/node/shop.mjs
}

# No step of ci/test: the Collector's modules take two processors ten minutes to be built for the first time, and seconds from Go's cache.
# By hand: `ci/step collector`. What it sent is in viewer/tests, whose tests read it.
collector() {
    local grpc
    command -v go >/dev/null || skip "go is not installed"
    # Not `go mod download`, which asks for what only tests of modules need too.
    (cd tests/clients/collector && timeout 300 go list -deps -test . >"$TARGET/logs/collector-modules.log" 2>&1) ||
        skip "the Collector's modules cannot be fetched: $(tail -n 1 "$TARGET/logs/collector-modules.log")"
    (cd tests/clients/collector && quietly "$TARGET/logs/collector.log" go test -c -o "$TARGET/collector.test" .)
    run_viewer collector --listen-otlp none --listen-grpc 127.0.0.1:0
    grpc=$(wait_for_line "$viewer_log" 'spanprof listening for OTLP by gRPC on http://([^ ]+)' $$) ||
        fail "the viewer does not listen for gRPC: $(cat "$viewer_log")"
    SPANPROF_URL=$url SPANPROF_GRPC=$grpc "$TARGET/collector.test" -test.v -test.timeout 120s
}

otlp_sdk() {
    local python venv=$TARGET/venv-otlp name
    python=$(newest_python) || skip "no Python here"
    make_venv "$python" "$venv"
    install_requirements "$venv" viewer/tests/otlp/requirements.txt
    run_viewer otlp-sdk
    if grep 'cannot listen' "$viewer_log"; then skip "another program has OTLP's default ports"; fi
    "$venv/bin/python" viewer/tests/otlp/send.py >"$TARGET/otlp-traces"
    OTEL_EXPORTER_OTLP_COMPRESSION=gzip "$venv/bin/python" viewer/tests/otlp/send.py
    for name in grpc http; do
        "$venv/bin/python" - "$url" "$name" <<'PROGRAM'
import json, sys, urllib.request
url, name = sys.argv[1:]
rows = json.load(urllib.request.urlopen(f"{url}/api/spans?service=sdk-{name}"))["spans"]
assert [(row["name"], row["count"]) for row in rows] == [(f"by {name}", 2)], rows
PROGRAM
    done
    "$venv/bin/python" - "$url" "$TARGET/otlp-traces" <<'PROGRAM'
import json, sys, urllib.request
url, traces = sys.argv[1:]
for trace in open(traces):
    (span,) = json.load(urllib.request.urlopen(f"{url}/api/trace/{trace.strip()}"))["spans"]
    assert span["states"] == {"io": 7} and span["by_attributes"], span
PROGRAM
}

# Grafana's extension of OpenTelemetry's Java agent, in a service that has spans.
java_client() {
    local needed python
    python=$(newest_python)
    for needed in javac mvn; do
        command -v $needed >/dev/null || skip "$needed is not installed"
    done
    timeout 300 "$python" tests/clients/java/client.py build "$TARGET/java" >"$TARGET/logs/java-client.log" 2>&1 ||
        skip "the jars cannot be fetched and compiled: $(tail -n 1 "$TARGET/logs/java-client.log")"
    run_viewer java --listen-otlp none --listen-grpc none
    "$python" tests/clients/java/client.py check "$TARGET/java" "$url"
}

demo() {
    ci/demo --check --port 0
}

browser() {
    local url shots=$TARGET/screenshots
    have_browser
    [ -f "$TARGET/demo/viewer.db" ] || skip "the demo left no data"
    start "$TARGET/logs/browser-viewer.log" "$(build_viewer)" --listen 127.0.0.1:0 --listen-otlp none --listen-grpc none \
        --data "$TARGET/demo/viewer.db"
    url=$(wait_for_line "$TARGET/logs/browser-viewer.log" 'spanprof listening on (http://[^ ]+)' $!) ||
        fail "the viewer did not start: $(cat "$TARGET/logs/browser-viewer.log")"
    SERVICE=checkout SPAN='GET /cart/<int:user>' FUNCTION=read_item node viewer/tests/browser/run.mjs "$url" "$shots"
    SERVICE=search SPAN='GET /suggest' FUNCTION=edit_distance node viewer/tests/browser/run.mjs "$url" "$shots/asyncio"
    node viewer/tests/browser/schema.mjs "$url" checkout
}

# have_browser: the browser and what drives it, installed if that is allowed here.
have_browser() {
    command -v node >/dev/null || skip "node is not installed"
    command -v npm >/dev/null || skip "npm is not installed"
    if [ ! -x "${CHROMIUM:-/usr/bin/chromium}" ]; then
        apt_install chromium || skip "no ${CHROMIUM:-/usr/bin/chromium}; install chromium or set CHROMIUM"
    fi
    if [ ! -d viewer/tests/browser/node_modules/playwright-core ] || [ ! -d viewer/tests/browser/node_modules/speedscope ]; then
        (cd viewer/tests/browser && quietly "$TARGET/logs/npm.log" npm ci --no-audit --no-fund)
    fi
}

# The viewer under attack. What it answers in which time is no matter for a machine that others use: only that it lives, within
# its memory, and that nothing is lost or stored twice.
viewer_soak() {
    local python viewer
    python=$(newest_python)
    viewer=$(build_viewer)
    "$python" tests/stress/viewer.py "$viewer" --seconds 20
}
