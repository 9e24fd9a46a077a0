//! Which kind of profiler or SDK a service sends with, as far as it says so; what pages advise must fit it.

use serde::Serialize;

/// A profiler, or the language of an SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sender {
    /// A profiler of this project's, or one that takes the same settings: Python, Ruby, .NET.
    Ours,
    /// Grafana's for .NET.
    DotnetOfGrafana,
    /// Go: pyroscope-go and otel-profiling-go.
    Go,
    /// Java: Pyroscope's agent, or async-profiler.
    Java,
    /// Node: Grafana's client.
    Node,
    /// Programs in machine code, which eBPF profilers and perf sample from outside.
    Native,
}

impl Sender {
    /// By the label `pyroscope_spy`, which /ingest calls spyName.
    pub(crate) fn of_spy(spy: &str) -> Option<Self> {
        match spy {
            "gospy" => Some(Self::Go),
            "javaspy" => Some(Self::Java),
            "nodespy" => Some(Self::Node),
            "dotnetspy" => Some(Self::DotnetOfGrafana),
            "pyspy" | "rbspy" => Some(Self::Ours),
            "ebpfspy" | "perf_script" | "pyroscope-rs" => Some(Self::Native),
            spy if spy.starts_with("spanprof-") => Some(Self::Ours),
            _ => None,
        }
    }

    /// By the resource attribute `telemetry.sdk.language`.
    pub(crate) fn of_language(language: &str) -> Option<Self> {
        match language {
            "go" => Some(Self::Go),
            "java" => Some(Self::Java),
            "nodejs" => Some(Self::Node),
            "python" | "ruby" | "dotnet" => Some(Self::Ours),
            "cpp" | "rust" | "swift" => Some(Self::Native),
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
        let known = [Sender::Go, Sender::Java, Sender::Node, Sender::DotnetOfGrafana, Sender::Ours].map(Some);
        assert_eq!(spies[..5], known);
        assert_eq!(spies[5], None);
        let languages = ["go", "java", "nodejs", "dotnet", "cpp", "php"].map(Sender::of_language);
        let known = [Sender::Go, Sender::Java, Sender::Node, Sender::Ours, Sender::Native].map(Some);
        assert_eq!(languages[..5], known);
        assert_eq!(languages[5], None);
    }
}
