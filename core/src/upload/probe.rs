//! A server as profilers see it, for tools that look into why one does not work.
//!
//! Requests take the way of every upload: the same headers, proxies, certificates, redirects, and the same judgement of
//! what comes back. Calls wait for the network, so this is nothing for a profiled host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limits::Limits;
use super::outcome::{Failure, Verdict};
use super::queue::Item;
use super::transport::push::Push;
use super::{random, server_version};
use crate::config::{Config, Settings, Target};
use crate::error::Error;
use crate::messages::Messages;
use crate::os::clock;
use crate::profile::labels::LabelOptions;
use crate::profile::pprof::{EncodeOptions, encode};
use crate::profile::window::{Window, WindowSample, WindowSpan};
use crate::profile_type::{ProfileType, ProfileTypeId};
use crate::sample::frames::Frame;
use crate::wait_state::State;

/// A server that profiles can be sent to.
#[derive(Debug)]
pub struct Server {
    push: Push,
    base: String,
    period_ns: i64,
    timeout: Duration,
}

impl Server {
    /// The server that `config` names; nothing is sent yet. Reads the proxies' environment variables.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for settings that a profiler would not take, and for
    /// a `server_address` that is none of HTTP.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let settings: Settings = config.validate()?;
        let Target::Http(target) = &settings.target else {
            return Err(Error::invalid(
                "server_address",
                config.server_address.trim(),
                "a server: http://host[:port][/path], https://… or host:port",
            ));
        };
        Ok(Self {
            push: Push::new(target, &settings, &Messages::default()),
            base: target.base.clone(),
            period_ns: settings.period_ns,
            timeout: Limits::default().request,
        })
    }

    /// Scheme, host, port and base path, without credentials.
    pub fn address(&self) -> &str {
        &self.base
    }

    /// The value of a sample of [`send_profile`](Self::send_profile), nanoseconds.
    pub fn period_ns(&self) -> i64 {
        self.period_ns
    }

    /// Status and body (16 KiB of it at most) of what is under `path`; waits for 10 s at most.
    ///
    /// # Errors
    /// No answer came.
    pub fn get(&self, path: &str) -> Result<(u16, String), Failure> {
        self.push.ask(path, None, self.timeout)
    }

    /// As [`get`](Self::get), with a body of this content type in a POST.
    ///
    /// # Errors
    /// No answer came.
    pub fn post(&self, path: &str, content_type: &str, body: &[u8]) -> Result<(u16, String), Failure> {
        self.push.ask(path, Some((content_type, body)), self.timeout)
    }

    /// The version that the answer to the question of profilers names, if it is too old for trace ids.
    pub fn too_old(answer: &str) -> Option<String> {
        server_version::too_old(answer)
    }

    /// Sends one profile: `samples` samples in a span, each of a function of its own and of one period. Waits for 10 s at most
    /// a request; tries once.
    ///
    /// # Errors
    /// The server did not take it.
    pub fn send_profile(&self, span_id: u64, span_name: &str, samples: u32) -> Result<(), Failure> {
        let frame = |number| {
            let function = Arc::from(format!("test_{number}"));
            Arc::new(Frame { function, file: "spanprof".into(), line: 1, first_line: 1 })
        };
        let sample = |stack| WindowSample {
            state: State::Cpu,
            profile_type: ProfileTypeId::TIMER,
            stack,
            concurrent: None,
            span: Some(0),
            tags: 0,
            value: self.period_ns,
            count: 1,
            samples: 1,
        };
        let window = Window {
            start_unix_nanos: clock::unix_nanos(),
            duration: Duration::from_secs(1),
            profile_types: vec![ProfileType::process_cpu(self.period_ns)],
            samples: (0..samples).map(sample).collect(),
            stacks: (0..samples).map(|number| [number].into()).collect(),
            frames: (0..samples).map(frame).collect(),
            comment: String::new(),
            spans: vec![WindowSpan { span_id, trace_id: [0, 0], name: span_name.into() }],
            tag_sets: vec![Arc::new([])],
        };
        let labels = LabelOptions { trace_ids: false, ..LabelOptions::default() };
        for (number, encoded) in (0..).zip(encode(&window, &EncodeOptions { labels, ..EncodeOptions::default() })) {
            let item = Item {
                encoded,
                id: random::uuid(),
                number,
                since: Instant::now(),
                tries: 0,
                unknown: 0,
                unanswered: false,
                is_half: false,
            };
            let outcome = self.push.send(&item, self.timeout);
            if outcome.verdict != Verdict::Accepted {
                let settings = outcome.blame.settings();
                return Err(Failure { status: outcome.status, reason: outcome.reason, settings });
            }
        }
        Ok(())
    }
}
