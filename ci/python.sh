# Python: its interpreters, environments, the wheel, and the steps that test it. Sourced by ci/lib.sh.
# shellcheck shell=bash

# find_python 3.N: prints the path of such an interpreter: from PATH, from pyenv's versions, from uv's, or unpacked from
# an archive beside the project.
find_python() {
    local version=$1 candidate
    # A shim of pyenv may be on PATH for a version that is not chosen, so each candidate has to run.
    while read -r candidate; do
        if [ -x "$candidate" ] &&
            "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done < <(
        type -aP "python$version" || true
        printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version"
        type -aP python3 || true
        if command -v uv >/dev/null; then uv python find --no-project --system "$version" 2>/dev/null || true; fi
    )
    if [ -x "$ROOT/../shared/python/unpack" ]; then
        mkdir -p "$TARGET/python"
        flock "$TARGET/python" "$ROOT/../shared/python/unpack" "$TARGET/python" "$version" 2>/dev/null && return 0
    fi
    return 1
}

# newest_python: the newest of those that the profiler knows, or a newer one, or nothing.
newest_python() {
    local version
    for version in 3.13 3.12 3.11; do
        if find_python "$version"; then return 0; fi
    done
    if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        command -v python3
        return 0
    fi
    return 1
}

# is_venv PYTHON DIRECTORY: whether there is a virtual environment whose interpreter still runs and is this one.
is_venv() {
    [ -x "$2/bin/python" ] && "$2/bin/python" -c '' 2>/dev/null && [ "$("$2/bin/python" -V)" = "$("$1" -V)" ]
}

# make_venv PYTHON DIRECTORY: a virtual environment, if it is not there. It has no pip of its own, which would take longer than all
# else: `pip_install` installs into it.
make_venv() {
    local python=$1 directory=$2
    if is_venv "$python" "$directory"; then return 0; fi
    rm -rf "$directory"
    "$python" -m venv --without-pip "$directory" || fail "$python -m venv failed"
}

# pip_install LOG VENV ARGUMENT...: by the pip of the tools.
pip_install() {
    local log=$1 venv=$2 pip
    shift 2
    pip=$(tools)/bin/python
    # What pip itself compiles for this Python is kept for the next one with it.
    quietly "$log" env -u PYTHONDONTWRITEBYTECODE "$pip" -m pip --python "$venv/bin/python" install -q "$@"
}

# tools: a virtual environment with what builds the packages; prints its directory.
tools() {
    local python package directory=$TARGET/venv-tools
    python=$(newest_python) || fail "please install Python 3.11 or newer; python3.13, 3.12, 3.11 were not found"
    (
        # Two steps may want it at a time.
        flock 6
        if [ ! -x "$directory/bin/pip" ] || ! is_venv "$python" "$directory"; then
            if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
                # Debian keeps both in a package of their own.
                apt_install "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv" || exit 1
            fi
            rm -rf "$directory"
            "$python" -m venv "$directory" || fail "$python -m venv failed"
        fi
        if [ ! -x "$directory/bin/maturin" ]; then
            say "pip install maturin" >&2
            quietly "$TARGET/logs/pip-tools.log" "$directory/bin/python" -m pip install -q 'maturin>=1.16,<2'
        fi
        # Older ones of pip do not run on the newest Python.
        for package in 'pip>=26' 'ziglang>=0.17,<0.18' 'cargo_zigbuild>=0.24,<0.25'; do
            if [ -f "$directory/.${package%%>*}" ]; then continue; fi
            say "pip install ${package%%>*}" >&2
            if "$directory/bin/python" -m pip install -q "$package" >"$TARGET/logs/pip-${package%%>*}.log" 2>&1 </dev/null; then
                : >"$directory/.${package%%>*}"
            else
                say "${package%%>*} could not be installed (see $TARGET/logs/pip-${package%%>*}.log)" >&2
            fi
        done
    ) 6>"$TARGET/tools.lock" || exit 1
    printf '%s\n' "$directory"
}

# build_wheel DIRECTORY [RUST TARGET]: leaves the one wheel for this machine, or for another target, there and prints its path. Not in
# target/wheels, where maturin leaves what pip makes of the sources.
build_wheel() {
    local directory=$1 processor settings environment options=() venv
    need_rust
    venv=$(tools)
    if [ $# -gt 1 ]; then
        processor=${2%%-*}
        has_zig || fail "a wheel for $2 needs ziglang, which could not be installed"
        options=(--target "$2" --zig --compatibility manylinux2014)
        # maturin looks for zig in the Python on the path.
        environment=("CARGO_TARGET_DIR=$TARGET/maturin" "PATH=$venv/bin:$PATH" "RUSTFLAGS=$(rust_flags "$processor")")
    else
        processor=$(uname -m)
        if has_zigbuild; then options=(--compatibility manylinux2014); fi
        settings=$(library_settings)
        mapfile -t environment <<<"$settings"
    fi
    mkdir -p "$directory"
    (
        cd "$ROOT" || exit
        # Two at a time make the same one, while others install it: it takes the old one's place at once.
        flock 7
        rm -rf "$directory/.new"
        quietly "$TARGET/logs/maturin-$processor.log" env "${environment[@]}" "$venv/bin/maturin" build --release --strip --locked \
            --manifest-path bindings-python/Cargo.toml --interpreter "$venv/bin/python" --out "$directory/.new" "${options[@]}"
        for old in "$directory"/pyroscope_otel-*"_$processor.whl"; do
            if [ ! -e "$directory/.new/${old##*/}" ]; then rm -f "$old"; fi
        done
        mv -f "$directory/.new"/*.whl "$directory"
        rmdir "$directory/.new"
    ) 7>"$TARGET/wheel.lock"
    printf '%s\n' "$directory"/pyroscope_otel-*"_$processor.whl"
}

# install_wheel VENV WHEEL: installs this very file, unless it is there already.
install_wheel() {
    local venv=$1 wheel=$2 sum log=$TARGET/logs/pip-wheel-${1##*/}.log
    sum=$(sha256sum <"$wheel")
    if [ "$(cat "$venv/.wheel" 2>/dev/null)" = "$sum" ]; then return 0; fi
    # Its version stays and its content changes.
    if [ -f "$venv/.wheel" ]; then pip_install "$log" "$venv" --force-reinstall --no-deps "$wheel"; fi
    pip_install "$log" "$venv" "$wheel"
    printf '%s' "$sum" >"$venv/.wheel"
}

# install_requirements VENV FILE...: installs what the files list, unless the same was done before.
install_requirements() {
    local venv=$1 sum file arguments=()
    shift
    sum=$(cat "$@" "$ROOT/ci/constraints.txt" | sha256sum)
    if [ "$(cat "$venv/.requirements" 2>/dev/null)" = "$sum" ]; then return 0; fi
    for file in "$@"; do arguments+=(-r "$file"); done
    say "pip install the requirements of ${venv##*/}" >&2
    pip_install "$TARGET/logs/pip-${venv##*/}.log" "$venv" -c "$ROOT/ci/constraints.txt" "${arguments[@]}"
    printf '%s' "$sum" >"$venv/.requirements"
}

newest_version() {
    "$(newest_python)" -c 'import sys; print("%d.%d" % sys.version_info[:2])'
}

wheel() {
    build_wheel "$TARGET/wheel"
}

# environments: for each Python that is found, what its tests need besides the wheel. It waits for the network while others compile.
environments() {
    local version python venv
    for version in $PYTHONS; do
        python=$(find_python "$version") || continue
        venv=$TARGET/venv-$version
        (
            flock 8
            make_venv "$python" "$venv"
            install_requirements "$venv" tests/requirements.txt
        ) 8>"$venv.lock"
    done
}

# with_wheel VERSION [NAME FILE...]: makes $venv, where this Python has the wheel and what the files list: by default
# what the wheel's tests need.
with_wheel() {
    local python wheels=("$TARGET"/wheel/pyroscope_otel-*.whl) name=${2:-$1} files=("${@:3}")
    if [ ${#files[@]} = 0 ]; then files=(tests/requirements.txt); fi
    python=$(find_python "$1") || skip "no Python $1 here (for example: uv python install $1)"
    [ -f "${wheels[0]}" ] || skip "the wheel was not built"
    venv=$TARGET/venv-$name
    # Another step may be making it.
    exec 8>"$venv.lock"
    flock 8
    make_venv "$python" "$venv"
    install_requirements "$venv" "${files[@]}"
    install_wheel "$venv" "${wheels[0]}"
    exec 8>&-
}

# run_pytest PYTHON PATH...: in the step's own folder. In the project's, which has a folder of that name, no core can be written.
run_pytest() {
    local python=$1
    shift
    cd "$step_folder"
    "$python" -m pytest -q -rfEs -p no:cacheprovider "${@/#/$ROOT/}"
}

# python_tests VERSION DIRECTORY...
python_tests() {
    local venv
    with_wheel "$1"
    shift
    run_pytest "$venv/bin/python" "$@"
}

# binding_tests VERSION: those of other people's servers, and of forks at each line of a start, on the oldest Python here, on the newest
# one and on the newest that all servers have wheels for. What differs between Pythons in threads, forks and exits has other tests, and
# tests/exits.
binding_tests() {
    local version found=()
    for version in $PYTHONS; do if find_python "$version" >/dev/null; then found+=("$version"); fi; done
    case " ${found[0]:-} ${found[-1]:-} $(newest_version) " in
    *" $1 "*) ;;
    *)
        local tests=$ROOT/bindings-python/tests
        export PYTEST_ADDOPTS="--ignore='$tests/test_servers.py' --ignore='$tests/test_fork_during_start.py'"
        ;;
    esac
    python_tests "$1" bindings-python/tests
}

# These tests link the library of a Python, as an extension module for users does not. They use the stable ABI alone, so
# what is built with one version's library runs with that of another under its name.
binding_rust_tests() {
    local version python library base test='' needed directory=$TARGET/libpython
    need_rust
    for version in $PYTHONS; do
        python=$(find_python "$version") || continue
        read -r library base < <("$python" -c 'import sys, sysconfig as s
print(s.get_config_var("LIBDIR") + "/" + s.get_config_var("INSTSONAME"), sys.base_prefix)')
        case $library in
        *.so.*) [ -e "$library" ] || continue ;;
        *) continue ;;
        esac
        if [ -z "$test" ]; then
            test=$(PYO3_PYTHON=$python LD_LIBRARY_PATH=${library%/*} cargo test --locked --target-dir "$TARGET" \
                "${crates[@]}" -p pyroscope-otel-python --lib --no-run --message-format=json |
                sed -n '/"name":"_native"/s/.*"executable":"\([^"]*\)".*/\1/p')
            needed=${library##*/}
        fi
        say "Rust tests of the binding with ${library##*/}"
        mkdir -p "$directory/$version"
        ln -sf "$library" "$directory/$version/$needed"
        LD_LIBRARY_PATH=$directory/$version PYTHONHOME=$base "$test"
    done
    [ -n "$test" ] || skip "no Python here has a libpython3.N.so to link (Debian: apt-get install libpython3-dev)"
}

types() {
    local venv directory
    with_wheel "$(newest_version)" types tests/types.txt
    directory=$(mktemp -d)
    # Outside of the sources, so that what is checked is what is installed.
    (cd "$directory" && "$venv/bin/python" -m mypy.stubtest --ignore-disjoint-bases pyroscope \
        pyroscope_io pyroscope_otel)
    (cd "$directory" && "$venv/bin/python" -m mypy --strict -p pyroscope -p pyroscope_io -p pyroscope_otel)
    rm -r "$directory"
}

documentation() {
    local venv
    with_wheel "$(newest_version)" docs tests/docs/requirements.txt
    run_pytest "$venv/bin/python" tests/docs
}

examples() {
    local venv directory wheels=("$TARGET"/wheel/pyroscope_otel-*.whl)
    with_wheel "$(newest_version)" examples tests/examples/requirements.txt examples/*/requirements.txt
    # Each folder is a program of its own, with modules of the same names.
    for directory in examples examples/*/; do
        compgen -G "$directory/*.py" >/dev/null || continue
        say "mypy --strict: $directory"
        (cd "$directory" && "$venv/bin/python" -m mypy --config-file "$ROOT/examples/mypy.ini" \
            --cache-dir "$TARGET/mypy-examples" ./*.py)
    done
    WHEEL=${wheels[0]} run_pytest "$venv/bin/python" tests/examples
}

packages() {
    local packages=$TARGET/packages
    # The wheel for arm64 takes as long to build as all of the others: releases and ci/package alone make it.
    ci/package --to "$packages" --native python
    PACKAGES=$packages TARGET=$TARGET run_pytest "$TARGET/venv-package/bin/python" tests/packages
}

# A service written against Grafana's packages runs with ours, and their surface is in ours. They have wheels for some
# Pythons only, so this runs on the newest of those.
drop_in() {
    local version python directory wheels=("$TARGET"/wheel/pyroscope_otel-*.whl)
    [ -f "${wheels[0]}" ] || skip "the wheel was not built"
    for version in 3.13 3.12 3.11; do
        python=$(find_python "$version") && break
    done
    [ -n "$python" ] || skip "no Python here that pyroscope-io 1.4.0 has a wheel for"
    directory=$TARGET/venv-drop-in
    make_venv "$python" "$directory"
    install_requirements "$directory" tests/drop_in/requirements.txt
    install_wheel "$directory" "${wheels[0]}"
    make_venv "$python" "$TARGET/venv-peers"
    install_requirements "$TARGET/venv-peers" tests/drop_in/requirements.txt tests/bench/peers.txt
    PEERS=$TARGET/venv-peers/bin/python run_pytest "$directory/bin/python" tests/drop_in
}

go_pprof() {
    local venv directory
    command -v go >/dev/null || skip "go is not installed"
    with_wheel "$(newest_version)"
    directory=$(mktemp -d)
    OTEL_SERVICE_NAME=go-reads-it "$venv/bin/python" - "$directory" <<'PROGRAM'
import sys, time
import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor

def spin_for_pprof():
    until = time.process_time() + 1
    while time.process_time() < until:
        sum(range(1000))

pyroscope.configure(application_name="go-reads-it", server_address=f"file://{sys.argv[1]}")
provider = TracerProvider()
provider.add_span_processor(PyroscopeSpanProcessor())
with provider.get_tracer("test").start_as_current_span("spin"):
    spin_for_pprof()
pyroscope.shutdown()
PROGRAM
    go tool pprof -top -tagfocus=span_name=spin "$directory"/*.pb.gz | tee "$directory/top"
    grep -q spin_for_pprof "$directory/top"
    rm -r "$directory"
}
