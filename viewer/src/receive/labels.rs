//! The labels of a series, which its profiles' samples add theirs to.

use std::collections::BTreeMap;

use spanprof_core::wire::push::LabelPair;

use super::refusal::{Refusal, invalid};

/// Labels of a series, and the longest of their names and values, as in Pyroscope.
pub(super) const MOST_LABELS: usize = 30;
const LONGEST_NAME: usize = 1_024;
const LONGEST_VALUE: usize = 2_048;

/// The labels of a pushed series.
#[derive(Debug)]
pub(super) struct Labels {
    /// All of them, service_name added where it is missing.
    pub(super) all: BTreeMap<String, String>,
    /// Label `__name__`.
    pub(super) kind: String,
    /// Label service_name.
    pub(super) service: String,
}

impl Labels {
    /// Checks the labels; `__name__` must be there.
    pub(super) fn read(pairs: &[LabelPair]) -> Result<Self, Refusal> {
        let mut all: BTreeMap<_, _> = pairs.iter().map(|pair| (pair.name.clone(), pair.value.clone())).collect();
        check_labels(&all)?;
        let kind = all.get("__name__").filter(|name| !name.is_empty()).cloned();
        let kind = kind
            .ok_or_else(|| invalid("the label __name__ is missing; it says what was measured, such as process_cpu"))?;
        // What Pyroscope calls it; the pages show it under this name.
        let service = all.entry("service_name".into()).or_insert_with(|| "unknown_service".into()).clone();
        Ok(Self { all, kind, service })
    }
}

/// Refuses too many labels, and names and values that are too long.
pub(super) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if labels.len() > MOST_LABELS {
        return Err(invalid(format!("there are {} labels and at most {MOST_LABELS} are taken", labels.len())));
    }
    for (name, value) in labels {
        if name.is_empty() || name.len() > LONGEST_NAME || value.len() > LONGEST_VALUE {
            let name: String = name.chars().take(60).collect();
            return Err(invalid(format!(
                "label {name:?}: names have 1 to {LONGEST_NAME} bytes, values at most {LONGEST_VALUE}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Labels, Refusal> {
        let pair = |(name, value): &(&str, &str)| LabelPair { name: (*name).into(), value: (*value).into() };
        Labels::read(&pairs.iter().map(pair).collect::<Vec<_>>())
    }

    #[test]
    fn a_series_without_a_service_is_taken_under_pyroscopes_name_for_it() {
        assert_eq!(read(&[("__name__", "process_cpu")]).unwrap().service, "unknown_service");
    }

    #[test]
    fn bounds_are_said() {
        let name = "n".repeat(LONGEST_NAME + 1);
        assert!(read(&[("__name__", "x"), (&name, "")]).unwrap_err().message().contains("1 to 1024 bytes"));
        let value = "v".repeat(LONGEST_VALUE + 1);
        assert!(read(&[("__name__", "x"), ("a", &value)]).unwrap_err().message().contains("at most 2048"));
        let names: Vec<String> = (0..=MOST_LABELS).map(|n| n.to_string()).collect();
        let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert!(read(&many).unwrap_err().message().contains("31 labels and at most 30"));
        assert!(read(&[("__name__", "")]).unwrap_err().message().contains("__name__ is missing"));
    }
}
