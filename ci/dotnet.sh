# .NET: its SDK, the package, and the steps that test it. Sourced by ci/lib.sh.
# shellcheck shell=bash

no_dotnet="no .NET SDK 10 here (https://dotnet.microsoft.com/download, or the archive in ../shared/dotnet)"

# find_dotnet: puts an SDK for .NET 10 on the path: the machine's, or one unpacked from an archive beside the project. Fails
# where there is none.
find_dotnet() {
    # No telemetry, no greeting, and no servers that outlive the build.
    export DOTNET_CLI_TELEMETRY_OPTOUT=1 DOTNET_NOLOGO=1 MSBUILDDISABLENODEREUSE=1 DOTNET_CLI_USE_MSBUILD_SERVER=0
    if command -v dotnet >/dev/null && dotnet --list-sdks 2>/dev/null | grep -qE '^(1[0-9]|[2-9][0-9])\.'; then return 0; fi
    [ -x "$ROOT/../shared/dotnet/unpack" ] || return 1
    mkdir -p "$TARGET"
    local exports
    exports=$(flock "$TARGET/dotnet-sdk.lock" "$ROOT/../shared/dotnet/unpack" "$TARGET/dotnet-sdk" 2>/dev/null) || return 1
    eval "$exports"
}

# has_dotnet_runtime N.0: whether programs for this version can run, ASP.NET Core's too.
has_dotnet_runtime() { dotnet --list-runtimes | grep -q "^Microsoft.AspNetCore.App $1\."; }

# build_dotnet_library: the native half of the .NET package; prints its path.
build_dotnet_library() {
    local settings environment library=$TARGET/dotnet-library/libspanprof.so
    need_rust
    settings=$(library_settings)
    mapfile -t environment <<<"$settings"
    mkdir -p "${library%/*}"
    (
        cd "$ROOT" || exit
        # Two at a time write the same files.
        flock 4
        quietly "$TARGET/logs/dotnet-library.log" env "${environment[@]}" cargo build --release --locked -p pyroscope-otel-dotnet --lib 4>&-
        strip -o "$library.new" "${environment[0]#*=}/release/libspanprof.so"
        # What is the same keeps its time, and a process may have the old one open.
        if ! cmp -s "$library.new" "$library"; then mv "$library.new" "$library"; fi
    ) 4>"$library.lock"
    printf '%s\n' "$library"
}

# dotnet_build LIBRARY PROJECT [OPTION...]: builds a project of bindings-dotnet or examples, whose output is under target/dotnet.
dotnet_build() {
    local library=$1 project=$2
    shift 2
    quietly "$TARGET/logs/dotnet-$(basename "$project").log" dotnet build "$ROOT/$project" -c Release \
        -p:NativeLibrary="$library" -p:ArtifactsPath="$TARGET/dotnet" -p:UseSharedCompilation=false "$@"
}

# dotnet_build_with_package FOLDER PROJECT OUTPUT [OPTION...]: builds a program with the package of this folder, not with
# its sources, into a folder of its own.
dotnet_build_with_package() {
    local folder=$1 project=$2 output=$3 sources=RestoreAdditionalProjectSources
    shift 3
    # Where packages come with the SDK there is no other source to ask.
    if [ -n "${NUGET_FALLBACK_PACKAGES:-}" ]; then sources=RestoreSources; fi
    # The version stays and its content changes, so what was unpacked before is not this one.
    export NUGET_PACKAGES=$TARGET/dotnet-packages
    rm -rf "$NUGET_PACKAGES/pyroscope.opentelemetry" "$output"
    quietly "$TARGET/logs/dotnet-$(basename "$output").log" dotnet build "$ROOT/$project" -c Release -p:PackageFolder="$folder" \
        -p:$sources="$folder" -p:ArtifactsPath="$output" -p:UseSharedCompilation=false "$@"
}

dotnet_package() {
    local library
    find_dotnet || skip "$no_dotnet"
    library=$(build_dotnet_library)
    # Warnings are errors there: the compiler's, the analyzers', and what has no documentation.
    dotnet_build "$library" bindings-dotnet
}

# The native half in real processes, on every runtime that is there.
dotnet_native() {
    need_rust
    find_dotnet || skip "$no_dotnet"
    cargo test --locked --quiet --target-dir "$TARGET" "${crates[@]}" --test native -- \
        --include-ignored --test-threads 1
}

# dotnet_tests N: on the runtime N.0.
dotnet_tests() {
    local directory=$TARGET/dotnet/bin/Pyroscope.OpenTelemetry.Tests/release_net$1.0
    find_dotnet || skip "$no_dotnet"
    has_dotnet_runtime "$1.0" || skip "no ASP.NET Core $1.0 here"
    [ -f "$directory/Pyroscope.OpenTelemetry.Tests.dll" ] || skip "the package was not built"
    (cd "$directory" && dotnet Pyroscope.OpenTelemetry.Tests.dll -noLogo -noColor)
    # Each wait of a program that waits in every way becomes a sample: none is wrong, and none is lost.
    dotnet "$TARGET/dotnet/bin/Waits/release_net$1.0/Pyroscope.OpenTelemetry.Waits.dll" 2
}

dotnet_demo() {
    find_dotnet || skip "$no_dotnet"
    has_dotnet_runtime 10.0 || skip "no ASP.NET Core 10.0 here"
    ci/demo dotnet --check --port 0 --seconds 8
}

# A program that was built with nothing but the package runs on each runtime, with everything on.
dotnet_packages() {
    local packages=$TARGET/packages-dotnet runtime
    find_dotnet || skip "$no_dotnet"
    ci/package --to "$packages" dotnet
    dotnet_build_with_package "$packages" bindings-dotnet/tests/Worker "$TARGET/dotnet-consumer"
    for runtime in 8.0 10.0; do
        if ! has_dotnet_runtime "$runtime"; then say "no .NET $runtime here" && continue; fi
        rm -rf "$TARGET/dotnet-consumed"
        OTEL_SERVICE_NAME=consumer PYROSCOPE_SERVER_ADDRESS=file://$TARGET/dotnet-consumed \
            dotnet "$TARGET/dotnet-consumer/bin/Worker/release_net$runtime/Worker.dll" | tee "$TARGET/dotnet-consumed.json"
        grep -q '"running":true' "$TARGET/dotnet-consumed.json"
        compgen -G "$TARGET/dotnet-consumed/consumer-process_cpu-*.pb.gz"
    done
    if [ -n "${NUGET_FALLBACK_PACKAGES:-}" ] && [ ! -d "$NUGET_FALLBACK_PACKAGES/microsoft.netcore.app.runtime.linux-x64" ]; then
        say "left out: a single file and a trimmed program need the package Microsoft.NETCore.App.Runtime.linux-x64; an SDK without NUGET_FALLBACK_PACKAGES gets it from nuget.org"
        return
    fi
    dotnet_published "$packages" PublishSingleFile
    dotnet_published "$packages" PublishTrimmed
}

# dotnet_published PACKAGES PROPERTY: the program, published in this way with its own runtime, runs.
dotnet_published() {
    local output=$TARGET/dotnet-$2
    rm -rf "$output" "$TARGET/dotnet-consumed"
    quietly "$TARGET/logs/dotnet-$2.log" dotnet publish bindings-dotnet/tests/Worker -c Release -f net10.0 -r linux-x64 --self-contained \
        -p:"$2"=true -p:PackageFolder="$1" -p:RestoreAdditionalProjectSources="$1" -p:ArtifactsPath="$output/build" -o "$output" \
        -p:UseSharedCompilation=false
    OTEL_SERVICE_NAME=consumer PYROSCOPE_SERVER_ADDRESS=file://$TARGET/dotnet-consumed "$output/Worker" | grep '"running":true'
    compgen -G "$TARGET/dotnet-consumed/consumer-process_cpu-*.pb.gz"
}
