//! Stage 4: send.
//!
//! One thread, which sleeps unless there is something to do: no profiles, no wake-ups. Who calls the [`Uploader`](uploader::Uploader) never
//! waits for the network, but in [`flush`](uploader::Uploader::flush) and [`stop`](uploader::Uploader::stop), and there no
//! longer than said.
//!
//! A profile is held until a round is due (`upload_interval` after the last one), then tried; a failure delays all
//! profiles, as it is the server that failed, and one that fails goes behind the others, as it may be the profile. What
//! ends somewhere is counted there under the same lock that moves it.

mod backoff;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod limits;
pub(crate) mod outcome;
pub(crate) mod probe;
#[cfg(test)]
mod properties;
mod queue;
mod random;
mod server_version;
mod shared;
#[cfg(test)]
mod test_server;
mod transport;
pub(crate) mod uploader;
mod worker;
