//! Whether the server can take the label `trace_id`: before Pyroscope 2.1.0 each trace became a series.

use serde_json::Value;

pub(super) const PATH: &str = "/api/v1/status/buildinfo";

/// The first version that keeps trace ids out of its index.
const FIRST: [u64; 3] = [2, 1, 0];

/// The version that an answer names, if that is too old. What cannot be read counts as new: development builds have
/// no number, and Grafana's own packages send the label without asking.
pub(super) fn too_old(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let data = answer.get("data")?;
    // The viewer keeps trace ids too, and counts its versions from 0.
    if data.get("application").and_then(Value::as_str) == Some("spanprof") {
        return None;
    }
    let version = data.get("version")?.as_str()?;
    (numbers(version)? < FIRST).then(|| version.to_owned())
}

fn numbers(version: &str) -> Option<[u64; 3]> {
    let version = version.trim().trim_start_matches('v');
    let version = version.split(['-', '+']).next()?;
    let mut parts = version.split('.').map(str::parse);
    Some([parts.next()?.ok()?, parts.next()?.ok()?, parts.next().and_then(Result::ok).unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(version: &str, application: &str) -> String {
        format!(r#"{{"status":"success","data":{{"version":"{version}","application":"{application}"}}}}"#)
    }

    #[test]
    fn only_a_version_below_2_1_0_is_too_old() {
        for old in ["1.14.0", "2.0.9", "v2.0.0", "2.0.0-rc.1", "0.37"] {
            assert_eq!(too_old(&answer(old, "Pyroscope")).as_deref(), Some(old));
        }
        for new in ["2.1.0", "2.1.0-rc.1", "2.10.0", "v3.0.0+build", "main-0ab12cd", ""] {
            assert_eq!(too_old(&answer(new, "Pyroscope")), None, "{new}");
        }
    }

    #[test]
    fn the_viewer_takes_trace_ids_whatever_its_version() {
        assert_eq!(too_old(&answer("0.1.0", "spanprof")), None);
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_no_reason() {
        for text in ["", "404 page not found", "{}", r#"{"data":{"version":2}}"#] {
            assert_eq!(too_old(text), None, "{text}");
        }
    }
}
