//! What a request says: whose it is, its body, its parameters; and why it is refused.

pub(crate) mod allowed;
pub(crate) mod body;
pub(crate) mod refusal;
pub(crate) mod request;
pub(crate) mod tenant;
