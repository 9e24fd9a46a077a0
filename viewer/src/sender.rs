//! Which kind of profiler or SDK a service sends with, as far as it says so; what pages advise must fit it.

use serde::{Serialize, Serializer};

/// A profiler, or the language of an SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sender {
    /// A profiler of this project's, or one that takes the same settings, and its language where that is said.
    Ours(Option<Language>),
    /// Grafana's for .NET.
    DotnetOfGrafana,
    /// Go: pyroscope-go and otel-profiling-go.
    Go,
    /// Java: Pyroscope's agent, or async-profiler.
    Java,
    /// Node: Grafana's client.
    Node,
    /// Programs in machine code, and all that eBPF profilers and perf sample from outside.
    Native,
    /// A profiler that sends OTLP and says no more of itself.
    Otlp,
}

/// Its name in the API, which says no language.
impl Serialize for Sender {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Ours(_) => "ours",
            Self::DotnetOfGrafana => "dotnet_of_grafana",
            Self::Go => "go",
            Self::Java => "java",
            Self::Node => "node",
            Self::Native => "native",
            Self::Otlp => "otlp",
        })
    }
}

/// A language that this project has a profiler for; each writes settings in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Language {
    Python,
    Ruby,
    Dotnet,
}

/// How the eBPF profiler names the scope of its profiles: by its own command, or by the package that is in a Collector.
const EBPF: &str = "ebpf-profiler";

impl Sender {
    /// By the label `pyroscope_spy`, which /ingest calls spyName.
    pub(crate) fn of_spy(spy: &str) -> Option<Self> {
        match spy {
            "gospy" => Some(Self::Go),
            "javaspy" | "alloy.java" | "grafana-agent.java" => Some(Self::Java),
            "nodespy" => Some(Self::Node),
            "dotnetspy" => Some(Self::DotnetOfGrafana),
            "pyspy" => Some(Self::Ours(Some(Language::Python))),
            "rbspy" => Some(Self::Ours(Some(Language::Ruby))),
            "ebpfspy" | "perf_script" | "pyroscope-rs" => Some(Self::Native),
            spy => spy.strip_prefix("spanprof-").map(|language| Self::Ours(Language::of(language))),
        }
    }

    /// By the resource attribute `telemetry.sdk.language`.
    pub(crate) fn of_language(language: &str) -> Option<Self> {
        match language {
            "go" => Some(Self::Go),
            "java" => Some(Self::Java),
            "nodejs" => Some(Self::Node),
            "cpp" | "rust" | "swift" => Some(Self::Native),
            language => Language::of(language).map(|language| Self::Ours(Some(language))),
        }
    }

    /// Of profiles in OTLP: by the name of their scope, and by what they say with it and with their resource. Only of Go and Java does
    /// the language say what to do: the profilers of the others that this project and Grafana have send no OTLP.
    pub(crate) fn of_otlp<'a>(scope: &str, attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        if scope.contains(EBPF) {
            return Self::Native;
        }
        let mut known = attributes.filter_map(|(name, value)| match name {
            "pyroscope_spy" => Self::of_spy(value),
            "telemetry.sdk.language" => Self::of_language(value),
            "process.runtime.name" => Self::of_runtime(value),
            _ => None,
        });
        known.find(|sender| matches!(sender, Self::Go | Self::Java)).unwrap_or(Self::Otlp)
    }

    /// Whether a service may have a profiler of its own beside this one.
    pub(crate) fn is_beside(self) -> bool {
        matches!(self, Self::Native | Self::Otlp)
    }

    /// By the resource attribute `process.runtime.name`.
    fn of_runtime(runtime: &str) -> Option<Self> {
        match runtime {
            "go" | "gc" | "gccgo" => Some(Self::Go),
            runtime if runtime.ends_with("Runtime Environment") => Some(Self::Java),
            _ => None,
        }
    }
}

impl Language {
    /// By what OpenTelemetry calls it, and the names of this project's profilers.
    fn of(text: &str) -> Option<Self> {
        match text {
            "python" => Some(Self::Python),
            "ruby" => Some(Self::Ruby),
            "dotnet" => Some(Self::Dotnet),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_known_by_what_they_call_themselves() {
        let spies = ["gospy", "javaspy", "nodespy", "dotnetspy", "spanprof-ruby", "unknown"].map(Sender::of_spy);
        let ours = |language| Sender::Ours(Some(language));
        let known = [Sender::Go, Sender::Java, Sender::Node, Sender::DotnetOfGrafana, ours(Language::Ruby)].map(Some);
        assert_eq!(spies[..5], known);
        assert_eq!(spies[5], None);
        let languages = ["go", "java", "nodejs", "dotnet", "cpp", "php"].map(Sender::of_language);
        let known = [Sender::Go, Sender::Java, Sender::Node, ours(Language::Dotnet), Sender::Native].map(Some);
        assert_eq!(languages[..5], known);
        assert_eq!(languages[5], None);
        // A profiler of ours that is newer than this viewer.
        assert_eq!(Sender::of_spy("spanprof-lua"), Some(Sender::Ours(None)));
    }

    #[test]
    fn senders_of_otlp_are_known_by_their_scope_and_what_they_say_of_their_process() {
        let of = |scope, name, value| Sender::of_otlp(scope, [("host.name", "go"), (name, value)].into_iter());
        for (scope, name, value, sender) in [
            ("/usr/local/bin/ebpf-profiler", "telemetry.sdk.language", "java", Sender::Native),
            ("go.opentelemetry.io/ebpf-profiler/collector", "", "", Sender::Native),
            ("", "telemetry.sdk.language", "go", Sender::Go),
            ("", "process.runtime.name", "go", Sender::Go),
            ("", "process.runtime.name", "OpenJDK Runtime Environment", Sender::Java),
            ("", "telemetry.sdk.language", "java", Sender::Java),
            ("", "telemetry.sdk.language", "python", Sender::Otlp),
            ("profiler", "process.runtime.name", "nodejs", Sender::Otlp),
        ] {
            assert_eq!(of(scope, name, value), sender, "{scope} {name} {value}");
        }
    }
}
