//! How a span ended.

/// How a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// Not said.
    Unset,
    /// Said to be well.
    Ok,
    /// Said to have failed.
    Error,
}

impl Status {
    /// The number in a column, which is OTLP's.
    pub(crate) fn to_column(self) -> i64 {
        match self {
            Self::Unset => 0,
            Self::Ok => 1,
            Self::Error => 2,
        }
    }

    /// Reads the number of OTLP; unknown ones are unset.
    pub(crate) fn from_number(number: i64) -> Self {
        match number {
            1 => Self::Ok,
            2 => Self::Error,
            _ => Self::Unset,
        }
    }
}
