//! The ways to the target: a server, or a folder.

mod file;
pub(super) mod push;
mod secrets;

use std::time::Duration;

use self::push::Push;
use super::outcome::Outcome;
use super::queue::Item;
use crate::config::{Settings, Target};
use crate::messages::Messages;

/// The way to the target.
pub(in crate::upload) enum Sender {
    Http(Box<Push>),
    File,
    None,
    /// What a test does with a profile.
    #[cfg(test)]
    Test(Box<dyn Fn() -> Outcome + Send>),
}

impl Sender {
    pub(in crate::upload) fn new(settings: &Settings, messages: &Messages) -> Self {
        match &settings.target {
            Target::Http(target) => Self::Http(Box::new(Push::new(target, settings, messages))),
            Target::File(_) => Self::File,
            Target::None => Self::None,
        }
    }

    pub(in crate::upload) fn send(&self, settings: &Settings, item: &Item, timeout: Duration) -> Outcome {
        match (self, &settings.target) {
            (Self::Http(push), _) => push.send(item, timeout),
            (Self::File, Target::File(folder)) => file::write(folder, &settings.application_name, &item.encoded),
            #[cfg(test)]
            (Self::Test(outcome), _) => outcome(),
            _ => Outcome::accepted(),
        }
    }
}
