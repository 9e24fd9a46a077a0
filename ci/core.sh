# The engine's steps, and those of all languages together. Sourced by ci/lib.sh.
# shellcheck shell=bash

# What is built for the tests in Rust. The same packages each time: cargo gives what they share the features that all of them want
# together, and builds it once more for another choice of packages. So the programs are built as the tests are.
crates=(-p spanprof-core -p spanprof -p spanprof-faults -p pyroscope-otel-dotnet)

# build_programs PACKAGE: its programs, unoptimised. $BUILT_WITH may say with what else it is built here, as cargo builds what they share
# once more for another choice.
build_programs() {
    local selection
    need_rust
    read -ra selection <<<"${BUILT_WITH:--p $1}"
    (cd "$ROOT" && quietly "$TARGET/logs/$1.log" cargo build --locked "${selection[@]}" --target-dir "$TARGET")
}

build_fault_server() { build_programs spanprof-faults; }

formatting() {
    cargo fmt --version >/dev/null 2>&1 || skip "rustfmt is not installed (rustup component add rustfmt)"
    cargo fmt --all --check -- --color never
}

scripts() {
    local script
    for script in ci/* .ci/run examples/run; do
        case $script:$(head -n 1 "$script") in *.sh:* | *:'#!/usr/bin/env bash') bash -n "$script" ;; esac
    done
    if command -v shellcheck >/dev/null; then
        shellcheck -x -e SC2329 ci/bench ci/bench-* ci/demo ci/test ci/step ci/soak ci/package ci/*.sh .ci/run examples/run tests/ci/report
    fi
    # What CI makes of a step that fails, and a soak of what it counts.
    (cd tests/ci && "$(newest_python)" -m unittest -q)
    tests/ci/report
}

lints() {
    local exports linted=("${crates[@]}" -p pyroscope-otel-python)
    need_rust
    cargo clippy --version >/dev/null 2>&1 || skip "clippy is not installed (rustup component add clippy)"
    if exports=$(find_ruby 3.4 || find_ruby 3.3 || find_ruby 3.1) && need_libclang; then
        eval "$exports"
        linted+=(-p pyroscope-otel-ruby)
    else
        say "without the gem: no Ruby from 3.1 on here"
    fi
    PYO3_PYTHON=$(newest_python) cargo clippy --quiet --locked --all-targets --target-dir "$TARGET" "${linted[@]}" -- -D warnings
}

rust_tests() {
    need_rust
    # The viewer's tests use the browser where there is one.
    if [ -z "${QUICK:-}" ]; then (have_browser) || say "without a browser"; fi
    # The engine is tried under another allocator where there is one.
    if ! compgen -G '/usr/lib/*/libjemalloc.so.2' >/dev/null; then apt_install libjemalloc2 || say "without jemalloc"; fi
    cargo test --locked --target-dir "$TARGET" "${crates[@]}"
}

interleavings() {
    need_rust
    cargo test --locked --quiet --target-dir "$TARGET" -p spanprof-loom
}

# What valgrind understands of the engine: no timers, no signals.
memory_errors() {
    local binary
    command -v valgrind >/dev/null || skip "valgrind is not installed"
    binary=$(cargo test --locked --target-dir "$TARGET" "${crates[@]}" --lib --no-run 2>&1 |
        sed -n 's/.*unittests.*(\(.*\/spanprof_core-.*\))$/\1/p')
    [ -x "$binary" ] || fail "the engine's tests were not found: $binary"
    PROPTEST_CASES=8 quietly "$TARGET/logs/valgrind.log" valgrind --quiet --error-exitcode=9 --leak-check=no \
        "$binary" sample::ring --test-threads=1
    grep '^test result' "$TARGET/logs/valgrind.log"
}

house() {
    local python
    python=$(newest_python) || skip "no Python here"
    "$python" -c 'import tomllib' 2>/dev/null || skip "this needs Python 3.11 or newer"
    (cd tests/house && "$python" -m unittest -q && "$python" check.py)
}

# with_clients: the wheel, and of the other languages those whose package was built, for tests that run a client of each.
with_clients() {
    with_wheel "$(newest_version)"
    export CLIENTS=python
    if use_ruby 3.4 && [ -f bindings-ruby/lib/pyroscope_otel/3.4/pyroscope_otel.so ]; then CLIENTS+=" ruby"; fi
    export DOTNET_CLIENTS=$TARGET/dotnet/bin/Clients/release/Clients.dll
    if find_dotnet && [ -f "$DOTNET_CLIENTS" ]; then CLIENTS+=" dotnet"; fi
    say "languages: $CLIENTS"
}

# The engine's own run of this list is among the Rust tests.
fault_servers() {
    with_clients
    run_pytest "$venv/bin/python" tests/faults
}

hazards() {
    with_clients
    run_pytest "$venv/bin/python" tests/hazards
}

# exits LANGUAGE: programs that end in each of the shapes, one process a shape and a few more.
exits() {
    case $1 in
    python) [ -f "$(compgen -G "$TARGET/wheel/pyroscope_otel-*.whl" | head -n 1)" ] || skip "the wheel was not built" ;;
    ruby) compgen -G 'bindings-ruby/lib/pyroscope_otel/*/*.so' >/dev/null || skip "the gem was not compiled" ;;
    dotnet)
        find_dotnet || skip "$no_dotnet"
        [ -d "$TARGET/dotnet/bin/Exits" ] || skip "the package was not built"
        ;;
    esac
    ci/soak exits "$1" 50 --as-built
}
