//! The library in real processes, on each .NET runtime that is there: are chains whole, do events add up, does the process
//! survive? `tests/native-app` is the program. ci/test runs this where there is an SDK.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use prost::Message;
use spanprof_core::wire::pprof::Profile;

const FRAMEWORKS: [(&str, &str); 2] = [("net8.0", " 8."), ("net10.0", " 10.")];

/// A sample: functions from the root on, values, span id.
struct Sample {
    functions: Vec<String>,
    values: Vec<i64>,
    span_id: String,
}

#[test]
#[ignore = "needs the .NET SDK"]
fn chains_are_whole_and_named_once_the_program_is_warm() {
    on_each_runtime(|framework| {
        let run = Run::new(framework, "chains", 9, &["sample_rate=250", "upload_interval_ms=1000"]);
        let samples: Vec<Sample> = run.profiles("process_cpu").into_iter().skip(4).flatten().collect();
        let samples: Vec<&Sample> = samples
            .iter()
            .filter(|sample| sample.functions.first().is_some_and(|root| root == "Program.Main"))
            .collect();
        let weight = |which: &dyn Fn(&Sample) -> bool| -> i64 {
            samples.iter().filter(|sample| which(sample)).map(|sample| sample.values[0]).sum()
        };
        let all = weight(&|_| true);
        assert!(all > 200_000_000, "{all} ns of CPU time were seen");
        let wrong = weight(&|sample| !is_whole(&sample.functions));
        assert!(wrong * 100 <= all, "{framework}: {wrong} of {all} ns have a wrong chain");
        let unnamed = weight(&|sample| sample.functions.iter().any(|function| function.contains("(unknown")));
        assert!(unnamed * 200 <= all, "{framework}: {unnamed} of {all} ns have a method without a name");
        // Run begins and ends the span itself, and CPU time that is burnt in it may be noticed after its end, below Main.
        let in_span = |sample: &Sample| sample.functions.iter().any(|function| function == "NativeApp.Chains.C");
        assert!(weight(&in_span) * 2 > all, "{framework}: {} of {all} ns are in the span's method", weight(&in_span));
        let outside = weight(&|sample| in_span(sample) && sample.span_id != format!("{:016x}", 21));
        assert_eq!(outside, 0, "{framework}: all of it is in the span");
    });
}

#[test]
#[ignore = "needs the .NET SDK"]
fn older_code_is_named_after_a_collection_and_not_asked_for_before() {
    on_each_runtime(|framework| {
        let run = Run::new(framework, "older", 3, &["sample_rate=250"]);
        assert!(run.output.contains("true collections 0\n"), "{framework}: {}", run.output);
        let samples: Vec<Sample> = run.profiles("process_cpu").into_iter().flatten().collect();
        let weight = |span: u64, function: &str| -> i64 {
            let those = samples.iter().filter(|sample| sample.span_id == format!("{span:016x}"));
            let those =
                those.filter(|sample| function.is_empty() || sample.functions.iter().any(|name| name == function));
            those.map(|sample| sample.values[0]).sum()
        };
        assert!(weight(52, "") > 500_000_000, "{framework}: {} ns", weight(52, ""));
        assert_eq!(weight(52, "Made.Older.Loop"), 0, "{framework}: it could have been unloaded");
        let named = [(61, "NativeApp.Older.Stays"), (62, "Made.Older.Loop"), (63, "NativeApp.Older.Generic<Older>")];
        for (span, function) in named {
            let (named, all) = (weight(span, function), weight(span, ""));
            assert!(all > 100_000_000 && named * 10 > all * 8, "{framework}: {named} of {all} ns are in {function}");
        }
    });
}

#[test]
#[ignore = "needs the .NET SDK"]
fn events_have_span_amount_and_stack() {
    on_each_runtime(|framework| {
        let run = Run::new(
            framework,
            "events",
            6,
            &["allocation_enabled=true", "lock_enabled=true", "exception_enabled=true"],
        );
        let truth = run.numbers("true ");
        let sum = |kind: &str, value: usize, span: u64, frame: &str| -> f64 {
            let span = format!("{span:016x}");
            let samples = run.profiles(kind).into_iter().flatten();
            let those = samples.filter(|sample| {
                sample.span_id == span && sample.functions.iter().any(|function| function.ends_with(frame))
            });
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            those.map(|sample| sample.values[value] as f64).sum()
        };
        // Where there is other work the ring of a thread overflows; what it drops is counted, each for so much.
        let dropped = run.numbers("stat ").get("dropped_ring_samples").copied().unwrap_or(0.0);
        let near = |what: &str, seen: f64, by: f64, each: f64| {
            let expected = truth[what];
            let by = by + dropped * each / expected;
            assert!(
                (seen / expected - 1.0).abs() <= by,
                "{framework}: {what}: {seen} of {expected}, {dropped} dropped"
            );
        };
        let bytes_each = 102_400.0;
        if framework == "net10.0" {
            // Five standard deviations, where a machine has time for few allocations.
            let by = |what: &str| 0.12_f64.max(5.0 / (truth[what] / bytes_each).sqrt());
            near("small_bytes", sum("memory", 1, 11, "Events.Small"), by("small_bytes"), bytes_each);
            near("large_bytes", sum("memory", 1, 11, "Events.Large"), by("large_bytes"), bytes_each);
        } else {
            // AllocationTick names the object at which a limit is passed, so large ones are told for small ones.
            let all = truth["small_bytes"] + truth["large_bytes"];
            let both = sum("memory", 1, 11, "Events.Run") / all;
            let least = 0.7 - dropped * bytes_each / all;
            assert!((least..1.1).contains(&both), "{framework}: {both} of all bytes, {dropped} dropped");
        }
        near("waits", sum("lock", 0, 12, "Events.Wait"), 0.05, 1.0);
        near("waited_ns", sum("lock", 1, 12, "Events.Wait"), 0.10, truth["waited_ns"] / truth["waits"]);
        near("throws", sum("exception", 0, 13, "Events.Throw"), 0.0, 1.0);
        near("throws", sum("exception", 0, 13, "System.FormatException"), 0.0, 1.0);
    });
}

#[test]
#[ignore = "needs the .NET SDK"]
fn a_thread_that_is_older_than_the_profiler_takes_samples_of_what_it_does() {
    on_each_runtime(|framework| {
        let run = Run::new(framework, "older_thread", 0, &["allocation_enabled=true", "lock_enabled=true"]);
        let (truth, stats) = (run.numbers("true "), run.numbers("stat "));
        let dropped = stats.get("dropped_ring_samples").copied().unwrap_or(0.0);
        for (kind, value, what, frame, each) in [
            ("memory", 1, "bytes", "NativeApp.OlderThread.Allocates", 102_400.0),
            ("lock", 0, "waits", "NativeApp.OlderThread.WaitsForLocks", 1.0),
        ] {
            let those = run.profiles(kind).into_iter().flatten();
            let those = those.filter(|sample| sample.functions.iter().any(|function| function == frame));
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            let seen: f64 = those.map(|sample| sample.values[value] as f64).sum();
            let (least, most) = (truth[what] * 0.85 - dropped * each, truth[what] * 1.15);
            assert!(
                (least..most).contains(&seen),
                "{framework}: {seen} of {} {what}, {dropped} samples dropped",
                truth[what]
            );
        }
    });
}

#[test]
#[ignore = "needs the .NET SDK"]
fn a_process_in_turmoil_survives_and_its_statistics_add_up() {
    let collectors = [("workstation", "0", "0"), ("concurrent", "0", "1"), ("server", "1", "1")];
    on_each_runtime(|framework| {
        for (collector, server, concurrent) in collectors {
            let environment = [("DOTNET_gcServer", Path::new(server)), ("DOTNET_gcConcurrent", Path::new(concurrent))];
            let settings = [
                "sample_rate=250",
                "allocation_enabled=true",
                "lock_enabled=true",
                "exception_enabled=true",
                "wall_time=true",
            ];
            // The program compares what was sampled with what it did, and ends with code 1 if anything is wrong.
            let run = Run::within(&environment, framework, "soak", 2, &settings);
            let is_server = format!("soak server {}", if server == "1" { "True" } else { "False" });
            assert!(run.output.contains(&is_server), "{framework}, {collector}: {}", run.output);
            assert!(run.numbers("true ")["waits"] > 100.0, "{framework}, {collector}: {}", run.output);
            let stats = run.numbers("stat ");
            let of = |name: &str| stats.get(name).copied().unwrap_or(0.0);
            let sum: f64 = ["dropped_ring", "dropped_window", "pending", "encoded"]
                .map(|name| of(&format!("{name}_samples")))
                .iter()
                .sum();
            assert!((of("taken_samples") - sum).abs() < 0.5, "{framework}, {collector}: {stats:?}");
        }
    });
}

#[test]
#[ignore = "needs the .NET SDK"]
fn the_profiler_starts_and_stops_as_often_as_it_is_told() {
    on_each_runtime(|framework| {
        let settings = ["allocation_enabled=true", "lock_enabled=true", "exception_enabled=true"];
        let run = Run::new(framework, "restart", 3, &settings);
        assert!(run.numbers("true ")["rounds"] >= 1.0, "{framework}: {}", run.output);
        let is_asked_for = |line: &&str| line.starts_with("status ") && *line != "status waits False switched off";
        let states: Vec<&str> = run.output.lines().filter(is_asked_for).collect();
        assert!(states.len() >= 10 && states.iter().all(|line| line.contains(" True")), "{framework}: {states:?}");
        assert!(!run.output.contains("stopped False"), "{framework}: {}", run.output);
    });
}

#[test]
#[ignore = "needs the .NET SDK"]
fn beside_a_clr_profiler_everything_is_on_and_that_one_goes_on() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (library, count) = (folder.join("main_profiler.so"), folder.join("compiled"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/main_profiler.c");
    output(
        Command::new("cc").args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&library).arg(source),
    );
    on_each_runtime(|framework| {
        let _ = std::fs::remove_file(&count);
        let environment = [
            ("CORECLR_ENABLE_PROFILING", Path::new("1")),
            ("CORECLR_PROFILER", Path::new("{3d4a6c51-7f5a-4f7a-9c59-0d1a3f0b2c11}")),
            ("CORECLR_PROFILER_PATH", &library),
            ("MAIN_PROFILER_COUNT", &count),
        ];
        let settings = ["allocation_enabled=true", "lock_enabled=true", "exception_enabled=true", "wall_time=true"];
        let run = Run::within(&environment, framework, "events", 2, &settings);
        let states: Vec<&str> = run.output.lines().filter(|line| line.starts_with("status ")).collect();
        assert!(states.len() == 6 && states.iter().all(|line| line.contains(" True")), "{framework}: {states:?}");
        for kind in ["memory", "exception"] {
            let in_events = |sample: Sample| sample.functions.iter().any(|function| function.contains("Events.Run"));
            assert!(run.profiles(kind).into_iter().flatten().any(in_events), "{framework}: {kind}");
        }
        let compiled: u32 = std::fs::read_to_string(&count).unwrap().parse().unwrap();
        assert!(compiled > 20, "{framework}: the other one saw {compiled} methods");
    });
}

/// Whether each frame of `Chains` was called by the one whose name its own begins with.
fn is_whole(functions: &[String]) -> bool {
    let of_chains = functions.iter().filter_map(|function| {
        let name = function.strip_prefix("NativeApp.Chains.")?;
        let name = &name[..name.find('<').unwrap_or(name.len())];
        // An instance method between two of the chain; the recursive one and the one with lambdas call themselves.
        (name != "Square.Area").then_some(name)
    });
    let mut caller = "";
    for name in of_chains {
        let is_right = match name {
            "Run" => caller.is_empty(),
            "C" => caller == "Run",
            "C_7_2" | "C_8_2" if caller == name => true,
            _ => name.rsplit_once('_').is_some_and(|(expected, _)| expected == caller),
        };
        if !is_right {
            return false;
        }
        caller = name;
    }
    true
}

#[test]
fn a_chain_with_a_hole_is_not_whole() {
    let is_whole =
        |names: &[&str]| is_whole(&names.iter().map(|name| format!("NativeApp.Chains.{name}")).collect::<Vec<_>>());
    assert!(is_whole(&["Run", "C", "C_8", "C_8_2", "C_8_2"]));
    assert!(is_whole(&["Run", "C", "C_5", "Square.Area", "C_5_1", "C_5_1_1<String>"]));
    assert!(!is_whole(&["Run", "C_1"]));
    assert!(!is_whole(&["Run", "C", "C_1", "C_1_2_1"]));
    assert!(!is_whole(&["Run", "Run", "C"]));
}

fn on_each_runtime(test: impl Fn(&str)) {
    let there = output(dotnet().arg("--list-runtimes"));
    let there: Vec<&str> = there.lines().filter(|line| line.starts_with("Microsoft.NETCore.App ")).collect();
    let found: Vec<&str> = FRAMEWORKS
        .iter()
        .filter(|(_, version)| there.iter().any(|line| line.contains(version)))
        .map(|(framework, _)| *framework)
        .collect();
    assert!(!found.is_empty(), "no runtime 8 or 10: {there:?}");
    found.into_iter().for_each(test);
}

/// A run of the program.
struct Run {
    output: String,
    profiles: PathBuf,
}

impl Run {
    fn new(framework: &str, scenario: &str, seconds: u32, settings: &[&str]) -> Self {
        Self::within(&[], framework, scenario, seconds, settings)
    }

    fn within(environment: &[(&str, &Path)], framework: &str, scenario: &str, seconds: u32, settings: &[&str]) -> Self {
        let program = program().join(format!("bin/native-app/release_{framework}/native-app.dll"));
        let profiles = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{scenario}-{framework}"));
        let _ = std::fs::remove_dir_all(&profiles);
        let address = format!("server_address=file://{}", profiles.display());
        let mut run = dotnet();
        run.arg(program).args([scenario, &seconds.to_string(), "application_name=native-app", &address]).args(settings);
        run.envs(environment.iter().copied());
        Self { output: output(&mut run), profiles }
    }

    /// The name-and-number pairs of lines that begin with `prefix`.
    fn numbers(&self, prefix: &str) -> HashMap<String, f64> {
        let words = self.output.lines().filter_map(|line| line.strip_prefix(prefix)).flat_map(str::split_whitespace);
        let words: Vec<&str> = words.collect();
        words.as_chunks::<2>().0.iter().map(|[name, number]| ((*name).to_owned(), number.parse().unwrap())).collect()
    }

    /// Profiles of a kind, oldest first.
    fn profiles(&self, kind: &str) -> Vec<Vec<Sample>> {
        let files = std::fs::read_dir(&self.profiles).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<PathBuf> =
            files.filter(|file| file.to_str().unwrap().contains(&format!("-{kind}-"))).collect();
        files.sort();
        files.iter().map(|file| read(file)).collect()
    }
}

/// Builds the program once, with the library that this test was built with.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let library = std::env::current_exe().unwrap().with_file_name("libspanprof.so");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("native-app");
        let project = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/native-app/native-app.csproj");
        let mut build = dotnet();
        build.args(["build", project, "-c", "Release", "--nologo", "-v", "q", "-p:UseSharedCompilation=false"]);
        build.arg(format!("-p:ArtifactsPath={}", folder.display()));
        build.arg(format!("-p:NativeLibrary={}", library.display()));
        output(&mut build);
        folder
    })
}

fn dotnet() -> Command {
    let mut dotnet = Command::new("dotnet");
    dotnet.env("DOTNET_CLI_TELEMETRY_OPTOUT", "1").env("DOTNET_NOLOGO", "1").env("MSBUILDDISABLENODEREUSE", "1");
    dotnet
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("dotnet on the path");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn read(file: &Path) -> Vec<Sample> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_end(&mut bytes).unwrap();
    let profile = Profile::decode(&bytes[..]).unwrap();
    let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].clone();
    let functions: HashMap<u64, String> =
        profile.function.iter().map(|function| (function.id, text(function.name))).collect();
    let locations: HashMap<u64, String> =
        profile.location.iter().map(|place| (place.id, functions[&place.line[0].function_id].clone())).collect();
    let sample = |sample: &spanprof_core::wire::pprof::Sample| Sample {
        functions: sample.location_id.iter().rev().map(|id| locations[id].clone()).collect(),
        values: sample.value.clone(),
        span_id: sample
            .label
            .iter()
            .find(|label| text(label.key) == "span_id")
            .map(|label| text(label.str))
            .unwrap_or_default(),
    };
    profile.sample.iter().map(sample).collect()
}
