//! Which states of profiles of type `wall` are chosen: the one that a sample's label `state` says.

use crate::params::BadParameter;
use crate::states::State;

/// The states that are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StateChoice {
    /// All, CPU and waits.
    #[default]
    All,
    /// All that are known to be on no CPU, see [`State::is_wait`].
    Waits,
    /// One of them.
    One(State),
}

impl StateChoice {
    /// Those that a graph is switched between.
    pub(crate) const SWITCHES: [Self; 3] = [Self::One(State::Cpu), Self::Waits, Self::All];

    /// Reads `all`, `waits`, `cpu` or any other state.
    pub(super) fn parse(text: &str) -> Result<Self, BadParameter> {
        match text {
            "all" => Ok(Self::All),
            "waits" => Ok(Self::Waits),
            state => State::parse(state).map(Self::One).ok_or_else(|| {
                let states = State::ALL.map(State::label).join(", ");
                BadParameter::new("state", text, format!("allowed are all, waits, and one of {states}"))
            }),
        }
    }

    /// The text that parses to it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Waits => "waits",
            Self::One(state) => state.label(),
        }
    }
}
