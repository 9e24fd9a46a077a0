//! The upload thread: what it does next, and what it does with the outcome of a try.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::outcome::{Blame, Outcome, Verdict};
use super::queue::{Item, Lost};
use super::shared::{InFlight, Shared, State};
use super::transport::Sender;
use super::transport::push::Push;
use super::{backoff, server_version};
use crate::config::{HttpTarget, Target, TraceIdLabel};
use crate::messages::Cause;
use crate::os::{allocator, fork, panics};
use crate::profile::halves;
use crate::stats::{Fate, Tally};

/// A profile is tried this often again after an answer that it cannot be read.
const UNKNOWN_RETRIES: u32 = 2;

/// What the thread does next.
#[derive(Debug)]
enum Step {
    /// Send this, within this time.
    Send(Box<Item>, Duration),
    /// Wait until something is queued or asked for, or until this time.
    Wait(Option<Instant>),
    End,
}

impl Shared {
    /// Waits for the next profile that may be sent, and says how long that may take. `None`: it is time to end.
    fn next(&self) -> Option<(Item, Duration)> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            state = match self.step(&mut state, now) {
                Step::Send(item, timeout) => return Some((*item, timeout)),
                Step::End => return None,
                Step::Wait(Some(until)) => {
                    let wait = until.saturating_duration_since(now);
                    self.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                Step::Wait(None) => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// What is to be done at `now`.
    fn step(&self, state: &mut State, now: Instant) -> Step {
        let old = state.queue.take_old(now, self.limits.max_age);
        if old != Lost::default() {
            self.lose(old, Fate::DroppedOld);
            self.messages.report(Cause::Old, &[]);
            self.changed.notify_all();
        }
        if state.ended {
            return Step::End;
        }
        if let Some(stop_by) = state.stop_by {
            let left = stop_by.saturating_duration_since(now);
            let item = if left.is_zero() { None } else { state.queue.take(u64::MAX) };
            return match item {
                Some(item) => Self::send_off(state, item, left.min(self.limits.request)),
                None => Step::End,
            };
        }
        if now >= state.next_round && state.queue.has_from(state.release) {
            state.release = state.queue.next_number();
            state.next_round = now + self.settings.upload_interval;
        }
        let release = state.release;
        let not_before = state.backed_off.max(state.held).filter(|at| now < *at);
        if not_before.is_none()
            && let Some(item) = state.queue.take(release)
        {
            return Self::send_off(state, item, self.limits.request);
        }
        let until = [
            not_before.filter(|_| state.queue.has_below(release)),
            state.queue.has_from(release).then_some(state.next_round),
            state.queue.oldest().map(|since| since + self.limits.max_age),
        ];
        Step::Wait(until.into_iter().flatten().min())
    }

    fn send_off(state: &mut State, item: Item, timeout: Duration) -> Step {
        let is_last = state.stop_by.is_some();
        state.in_flight = Some(InFlight { number: item.number, tally: item.encoded.tally, is_last });
        Step::Send(Box::new(item), timeout)
    }

    /// Does with a profile what the outcome of its try demands.
    fn settle(&self, mut item: Item, outcome: &Outcome) {
        let mut state = self.lock();
        // Nothing in flight: [`end`](Self::end) came first and has counted it.
        let Some(InFlight { is_last, .. }) = state.in_flight.take() else { return };
        let tally = item.encoded.tally;
        if outcome.verdict != Verdict::Accepted {
            self.counters.set_last_error(&self.sentence(outcome));
        }
        item.tries += 1;
        item.unanswered |= outcome.unanswered;
        match outcome.verdict {
            Verdict::Accepted => {
                if state.said_failures > 0 {
                    let tries = state.said_failures.to_string();
                    self.messages.add(Cause::TakenAgain.message(&[&self.address(), &tries]));
                    state.said_failures = 0;
                }
                state.answered();
                self.counters.profiles_uploaded.fetch_add(1, Ordering::Relaxed);
                self.counters.bytes_uploaded.fetch_add(item.encoded.body.len() as u64, Ordering::Relaxed);
                self.counters.settle(tally, Fate::Uploaded);
            }
            Verdict::Retry { after } => self.retry(&mut state, item, after.unwrap_or_default(), outcome, is_last),
            Verdict::RetryTwice if item.unknown < UNKNOWN_RETRIES => {
                item.unknown += 1;
                self.retry(&mut state, item, Duration::ZERO, outcome, is_last);
            }
            Verdict::Halve if !item.is_half => match halves::split(&item.encoded) {
                Some(halves) => {
                    state.answered();
                    self.counters.profiles_encoded.fetch_add(1, Ordering::Relaxed);
                    for half in halves {
                        let dropped = state.queue.put(item.half(half));
                        self.drop_for_room(dropped);
                    }
                }
                // It may be that there was no memory for them.
                None if allocator::was_short() => self.retry(&mut state, item, Duration::ZERO, outcome, is_last),
                None => self.refuse(&mut state, tally, outcome),
            },
            Verdict::RetryTwice | Verdict::Halve | Verdict::Refused => self.refuse(&mut state, tally, outcome),
        }
        self.changed.notify_all();
    }

    fn refuse(&self, state: &mut State, tally: Tally, outcome: &Outcome) {
        state.answered();
        let why = match outcome.blame {
            Blame::Nothing => &self.counters.refused_profiles,
            Blame::Credentials => &self.counters.refused_credentials,
            Blame::Address | Blame::Proxy | Blame::Certificates => &self.counters.refused_address,
        };
        why.fetch_add(1, Ordering::Relaxed);
        self.counters.profiles_refused.fetch_add(1, Ordering::Relaxed);
        self.counters.settle(tally, Fate::Refused);
        self.messages.report(Cause::Refused, &[&self.sentence(outcome)]);
    }

    fn retry(&self, state: &mut State, item: Item, after: Duration, outcome: &Outcome, is_last: bool) {
        state.failures = state.failures.saturating_add(1);
        let wait = backoff::backoff(state.failures, self.limits.backoff, self.limits.max_backoff);
        state.backed_off = Some(Instant::now() + wait);
        state.held = Some(Instant::now() + after.min(self.limits.max_age));
        let cause = if is_last {
            let mut lost = Lost::default();
            lost.add(item.encoded.tally, item.unanswered);
            self.lose(lost, Fate::DroppedQueue);
            Cause::LastTry
        } else {
            let dropped = state.queue.put(item);
            self.drop_for_room(dropped);
            Cause::Retry
        };
        let said = self.messages.report(cause, &[&self.sentence(outcome)]);
        if !is_last && (said || state.said_failures > 0) {
            state.said_failures = state.said_failures.saturating_add(1);
        }
    }

    /// When the server is asked for its version, unless there is something to do before, in a process that has so many that it was
    /// forked from.
    fn first_question(&self, generation: u32, now: Instant) -> Instant {
        if generation > 0 { now + self.limits.child_rest } else { now }
    }

    /// Until then, or until there is something to do.
    fn rest(&self, until: Instant) {
        let mut state = self.lock();
        while let Some(left) = state.rests(until, Instant::now()) {
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks the server once whether it is too old for trace ids.
    fn ask_version(&self, push: &Push, target: &HttpTarget) {
        let answer = push.get(server_version::PATH, self.limits.question);
        if let Some(version) = answer.as_deref().and_then(server_version::too_old) {
            self.trace_ids.store(false, Ordering::Relaxed);
            self.messages.report(Cause::OldServer, &[&target.base, &version]);
        }
    }
}

/// Counts what is left and lets waiters go however the thread ends, also where telling of a panic panics.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The upload thread. A panic outside of a request ends uploading and is told as that.
pub(super) fn run(shared: &Shared, sender: &Sender) {
    let _end = End(shared);
    if let Err(panic) = panics::caught(|| upload_until_stopped(shared, sender)) {
        shared.give_up(&panic);
    }
}

fn upload_until_stopped(shared: &Shared, sender: &Sender) {
    if let (Sender::Http(push), Target::Http(target), TraceIdLabel::Auto) =
        (sender, &shared.settings.target, shared.settings.trace_id)
    {
        shared.rest(shared.first_question(fork::generation(), Instant::now()));
        // Where that panics the server counts as one that did not say.
        let _ = panics::caught(|| shared.ask_version(push, target));
    }
    while let Some((item, timeout)) = shared.next() {
        if item.tries > 0 {
            shared.counters.retries.fetch_add(1, Ordering::Relaxed);
        }
        if item.unanswered {
            shared.counters.retries_unanswered.fetch_add(1, Ordering::Relaxed);
        }
        // A request may need a thread, to look an address up, and panics where there is none for want of memory or by a limit.
        let sent = panics::caught(|| sender.send(&shared.settings, &item, timeout));
        let outcome = sent.unwrap_or_else(|panic| Outcome::panicked(&panic, shared.asks_servers()));
        shared.settle(item, &outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::limits::Limits;
    use super::*;
    use crate::config::Config;
    use crate::profile::pprof::Encoded;
    use crate::profile_type::ProfileType;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn shared() -> Shared {
        let config = Config { application_name: "shop".to_owned(), upload_interval: INTERVAL, ..Config::default() };
        let settings = Arc::new(config.validate().expect("settings"));
        Shared::new(settings, Arc::default(), Arc::default(), Limits::default())
    }

    fn profile() -> Encoded {
        let tally = Tally { samples: 1, weight: 10 };
        Encoded { profile_type: ProfileType::process_cpu(1), start_unix_nanos: 0, body: vec![0; 100], tally }
    }

    /// What the thread would do at a time: "send", "end", or the seconds that it would wait from then.
    fn at(shared: &Shared, now: Instant) -> String {
        match shared.step(&mut shared.lock(), now) {
            Step::Send(..) => "send".to_owned(),
            Step::End => "end".to_owned(),
            Step::Wait(None) => "wait".to_owned(),
            Step::Wait(Some(until)) => format!("wait {}", (until - now).as_secs_f64().round()),
        }
    }

    fn failed(after: Option<Duration>) -> Outcome {
        Outcome { verdict: Verdict::Retry { after }, reason: "HTTP 429".to_owned(), ..Outcome::accepted() }
    }

    fn send_and_fail(shared: &Shared, now: Instant, after: Option<Duration>) {
        let step = shared.step(&mut shared.lock(), now);
        let Step::Send(item, _) = step else { panic!("{step:?}") };
        shared.settle(*item, &failed(after));
    }

    #[test]
    fn an_idle_uploader_sleeps_until_it_is_woken() {
        let shared = shared();
        assert_eq!(at(&shared, Instant::now() + INTERVAL * 5), "wait");
    }

    #[test]
    fn a_forked_child_asks_nothing_for_a_second_unless_there_is_something_to_do() {
        let (shared, start) = (shared(), Instant::now());
        assert_eq!(shared.lock().rests(shared.first_question(0, start), start), None, "no child");
        let until = shared.first_question(1, start);
        assert_eq!(shared.lock().rests(until, start), Some(Duration::from_secs(1)));
        assert_eq!(shared.lock().rests(until, start + Duration::from_secs(1)), None);
        shared.add(vec![profile()]);
        assert!(shared.lock().rests(until, start).is_some(), "a profile that is not due yet");
        let release = shared.lock().queue.next_number();
        shared.lock().release = release;
        assert_eq!(shared.lock().rests(until, start), None, "somebody flushes");
        let stopped = self::shared();
        stopped.lock().stop_by = Some(start);
        assert_eq!(stopped.lock().rests(until, start), None, "somebody stops");
    }

    #[test]
    fn profiles_are_held_until_a_round_is_due_and_then_go_together() {
        let (shared, start) = (shared(), Instant::now());
        shared.add(vec![profile(), profile()]);
        assert_eq!(at(&shared, start + Duration::from_secs(4)), "wait 6");
        let round = start + Duration::from_secs(11);
        assert_eq!([at(&shared, round), at(&shared, round), at(&shared, round)], ["send", "send", "wait"]);
        shared.add(vec![profile()]);
        assert_eq!(at(&shared, round + Duration::from_secs(1)), "wait 9");
        assert_eq!(at(&shared, round + INTERVAL), "send");
    }

    #[test]
    fn a_server_that_says_when_is_not_asked_before() {
        let (shared, start) = (shared(), Instant::now());
        shared.add(vec![profile()]);
        send_and_fail(&shared, start + INTERVAL * 2, Some(Duration::from_secs(100)));
        assert_eq!(at(&shared, start + Duration::from_secs(60)), "wait 40");
        assert_eq!(at(&shared, start + Duration::from_secs(102)), "send");
    }

    #[test]
    fn a_failure_delays_everything_and_the_next_profile_is_tried_first() {
        let (shared, start) = (shared(), Instant::now());
        shared.add(vec![profile(), profile()]);
        let round = start + INTERVAL * 2;
        send_and_fail(&shared, round, Some(Duration::from_secs(100)));
        assert!(at(&shared, round).starts_with("wait"), "the second profile goes to a server that failed");
        let step = shared.step(&mut shared.lock(), start + Duration::from_secs(102));
        let Step::Send(item, _) = step else { panic!("{step:?}") };
        assert_eq!((item.number, item.tries), (1, 0));
    }

    #[test]
    fn a_server_that_is_back_is_told() {
        let (shared, start) = (shared(), Instant::now());
        let send = |after: u32, outcome: &Outcome| {
            shared.lock().backed_off = None;
            let step = shared.step(&mut shared.lock(), start + INTERVAL * after);
            let Step::Send(item, _) = step else { panic!("{step:?}") };
            shared.settle(*item, outcome);
        };
        shared.add(vec![profile(), profile(), profile(), profile()]);
        for after in [2, 20, 40] {
            send(after, &failed(None));
        }
        let refused = Outcome { verdict: Verdict::Refused, reason: "HTTP 400".to_owned(), ..Outcome::accepted() };
        send(50, &refused);
        send(60, &Outcome::accepted());
        send(80, &Outcome::accepted());
        send(100, &failed(None));
        send(120, &Outcome::accepted());
        let texts: Vec<_> = shared.messages.take().into_iter().map(|message| message.text).collect();
        let [failed, refused, back] = &texts[..] else { panic!("{texts:?}") };
        assert!(failed.ends_with("Profiles are kept for an hour and tried again."), "{failed}");
        assert!(refused.starts_with("A profile was dropped."), "{refused}");
        assert_eq!(
            back, "http://localhost:4040 takes profiles again. Tries that failed before: 3.",
            "what was not said is not taken back"
        );
    }

    #[test]
    fn a_profile_that_cannot_be_sent_for_an_hour_is_dropped_as_old() {
        let (shared, start) = (shared(), Instant::now());
        shared.add(vec![profile()]);
        send_and_fail(&shared, start + INTERVAL * 2, Some(Duration::from_secs(7200)));
        assert_eq!(at(&shared, start + Duration::from_secs(3000)), "wait 540");
        assert_eq!(at(&shared, start + Duration::from_secs(3600)), "wait");
        assert_eq!(shared.counters.dropped_old.get(), profile().tally);
        assert_eq!(shared.counters.queued.get(), Tally::default());
        assert!(shared.messages.take().iter().any(|message| message.text.contains("an hour")));
    }

    #[test]
    fn stopping_tries_each_profile_once_more_whatever_it_waited_for() {
        let (shared, start) = (shared(), Instant::now());
        shared.add(vec![profile(), profile()]);
        shared.lock().stop_by = Some(start + Duration::from_secs(5));
        let step = shared.step(&mut shared.lock(), start + Duration::from_secs(2));
        let Step::Send(item, timeout) = step else { panic!("{step:?}") };
        assert_eq!(timeout, Duration::from_secs(3));
        shared.settle(*item, &failed(Some(Duration::from_secs(100))));
        send_and_fail(&shared, start + Duration::from_secs(4), None);
        assert_eq!(at(&shared, start + Duration::from_secs(4)), "end");
        assert_eq!(shared.counters.dropped_queue.get(), Tally { samples: 2, weight: 20 });
        shared.add(vec![profile()]);
        assert_eq!(at(&shared, start + Duration::from_secs(5)), "end");
    }

    #[test]
    fn the_same_warning_comes_once_a_minute() {
        let (shared, start) = (shared(), Instant::now());
        for _ in 0..3 {
            shared.add(vec![profile()]);
            let Step::Send(item, _) = shared.step(&mut shared.lock(), start + INTERVAL * 2) else {
                panic!("no profile")
            };
            let outcome =
                Outcome { verdict: Verdict::Refused, reason: "HTTP 400: bad".to_owned(), ..Outcome::accepted() };
            shared.settle(*item, &outcome);
            shared.lock().next_round = start;
        }
        let texts: Vec<_> = shared.messages.take().into_iter().map(|message| message.text).collect();
        assert_eq!(texts, ["A profile was dropped. http://localhost:4040: HTTP 400: bad."]);
        assert_eq!(shared.counters.profiles_refused.load(Ordering::Relaxed), 3);
    }
}
