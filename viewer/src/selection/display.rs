//! How the stacks of a selection are shown: what is merged, what is folded.

use crate::params::{BadParameter, Params};

/// Parameters beside the selection, the same for graphs, tables and downloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StackDisplay {
    /// Lines of a function stand apart.
    pub(crate) lines: bool,
    /// Frames of the runtime and of libraries are one.
    pub(crate) fold: bool,
}

impl StackDisplay {
    /// Takes `lines` and `fold`.
    pub(crate) fn take(params: &mut Params) -> Result<Self, BadParameter> {
        Ok(Self { lines: params.take_flag("lines")?, fold: params.take_flag("fold")? })
    }

    /// The parameters that parse to this display.
    pub(crate) fn pairs(self) -> Vec<(String, String)> {
        let flags = [("lines", self.lines), ("fold", self.fold)];
        flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name.to_owned(), "1".to_owned())).collect()
    }
}
