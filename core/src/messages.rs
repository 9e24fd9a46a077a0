//! What a user must know, kept until a binding asks for it. The core never prints and never calls the host.
//!
//! Every sentence that the core can say stands in this file, once; docs/messages.md says what to do about each.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much a message matters, in every logging library's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Data is lost or late, or a setting should be changed.
    Warning,
}

/// One sentence for the host's logger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// How much it matters.
    pub level: Level,
    /// The sentence. Never holds credentials.
    pub text: String,
}

/// Declares the causes with their level and their sentence, in which `{}` stands for what is reported with it.
macro_rules! causes {
    ($($name:ident, $level:ident, $text:literal;)*) => {
        /// Why a message is given. Each is reported once a minute at most.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Cause {
            $($name,)*
        }

        impl Cause {
            const COUNT: usize = [$(Cause::$name),*].len();

            #[cfg(test)]
            const ALL: [Self; Self::COUNT] = [$(Cause::$name),*];

            fn level(self) -> Level {
                match self {
                    $(Cause::$name => Level::$level,)*
                }
            }

            fn sentence(self) -> &'static str {
                match self {
                    $(Cause::$name => $text,)*
                }
            }
        }
    };
}

causes! {
    LabelTruncated, Info, "The value of the label {} was cut at {} bytes.";
    OtherName, Warning, "PYROSCOPE_PROFILING_WALL_TIME_ENABLED is not read; did you mean PYROSCOPE_PROFILING_WALLTIME_ENABLED?";
    OldServer, Info, "{} has version {}. Samples carry no trace_id, of which servers before 2.1.0 make a series each.";
    BadProxy, Warning, "{}: the value (not shown) is no proxy's address, so requests go to {} directly.";
    Retry, Warning, "{} Profiles are kept for an hour and tried again.";
    TakenAgain, Warning, "{} takes profiles again. Tries that failed before: {}.";
    LastTry, Warning, "{} Profiles were dropped, as uploading ends.";
    Refused, Warning, "A profile was dropped. {}";
    Old, Warning, "Profiles were dropped as they could not be sent for an hour.";
    QueueFull, Warning, "The queue of profiles is full, so the oldest were dropped.";
    NoUploads, Warning, "Uploading has ended: {}.";
    SignalLost, Warning, "Another library replaced the profiler's handler of signal {}; signal {} is used now.";
    NoSignal, Warning, "Sampling by timers has ended: {}.";
    FaultsLost, Warning, "Another library replaced the handler of SIGSEGV or SIGBUS, so stacks are read in a slower way.";
    NoTimer, Warning, "Threads without samples: {}, as timer_create failed: {}. Check ulimit -i and seccomp.";
    NoSignals, Warning, "Threads without samples: {}, as each needs one of the signals that may be pending, and the last of them are left to the program. Check ulimit -i.";
    NoRing, Warning, "Threads without samples: {}, as all rings together may take 64 MiB: there are too many threads.";
    NoThreadList, Warning, "/proc/self/task cannot be read: {}. Threads that do not announce themselves are not sampled.";
    RingFull, Warning, "Samples lost: {}, as the rings of their threads were full.";
    WaitsLost, Warning, "Waits were lost, as their threads were not known yet or took a sample just then: {} of {} until now.";
    FewWaitsLost, Info, "A few waits were lost, as their threads were not known yet or took a sample just then: {} of {} until now.";
    NoWaits, Warning, "Waits are not measured: {}.";
    WaitsUnseen, Warning, "{} calls from libraries to libc are not seen, as the kernel refuses to write to /proc/self/mem: what waits there is in other.";
    NoAwaits, Warning, "The time that is awaited is not measured: {}.";
    StackSmall, Warning, "Samples lost: {}, as the alternate signal stacks of their threads have no room for one.";
    NoMemory, Warning, "Samples lost: {}, as the program had used up its memory.";
    WindowFull, Warning, "Samples lost: {}, as there were too many different stacks, spans and tags.";
    NamesCut, Warning, "Spans have more than 2048 different names, so some are called (other): {} until now.";
    TooManyLabels, Warning, "A series may have 30 labels, which leaves {} for tags of blocks and threads; further ones were left out.";
    TagSetsLost, Warning, "More than 1024 sets of tags were in use within two upload windows, so some were left out: {} until now.";
    ThreadTagsLost, Warning, "More than 8192 threads had tags of their own within two upload windows, so some were left out: {} until now.";
}

impl Cause {
    /// The message with `details` in the places that its sentence has for them.
    pub(crate) fn message(self, details: &[&str]) -> Message {
        Message { level: self.level(), text: self.text(details) }
    }

    /// The sentence with `details` in the places it has for them.
    pub(crate) fn text(self, details: &[&str]) -> String {
        let mut details = details.iter();
        let mut parts = self.sentence().split("{}");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            text.push_str(details.next().unwrap_or(&""));
            text.push_str(part);
        }
        text
    }
}

/// At most this many wait; then the oldest goes.
const KEPT: usize = 64;
/// Between two messages of the same cause.
const EVERY: Duration = Duration::from_secs(60);

/// The queue of messages. Any thread of the profiler adds, a binding takes.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Message>,
    /// When a cause was last reported.
    last_reported: [Option<Instant>; Cause::COUNT],
}

impl Default for State {
    fn default() -> Self {
        Self { queue: VecDeque::new(), last_reported: [None; Cause::COUNT] }
    }
}

impl Messages {
    /// Reports a cause, unless that was done within the last minute: then false.
    pub(crate) fn report(&self, cause: Cause, details: &[&str]) -> bool {
        self.report_at(cause, details, Instant::now())
    }

    fn report_at(&self, cause: Cause, details: &[&str], now: Instant) -> bool {
        let mut state = self.lock();
        if let Some(last) = state.last_reported.get_mut(cause as usize)
            && last.is_none_or(|last| now.duration_since(last) >= EVERY)
        {
            *last = Some(now);
            state.add(cause.message(details));
            return true;
        }
        false
    }

    /// Passes on what validation of the settings noted; there is a sentence a setting, and they come once.
    pub(crate) fn add(&self, message: Message) {
        self.lock().add(message);
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        self.lock().queue.drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, message: Message) {
        if self.queue.iter().any(|waiting| waiting.text == message.text) {
            return;
        }
        if self.queue.len() == KEPT {
            self.queue.pop_front();
        }
        self.queue.push_back(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_reported_once_a_minute() {
        let (messages, start) = (Messages::default(), Instant::now());
        for (seconds, reason) in [(0, "a"), (1, "b"), (59, "c"), (60, "d"), (61, "e")] {
            messages.report_at(Cause::Refused, &[reason], start + Duration::from_secs(seconds));
            messages.report_at(Cause::Old, &[], start + Duration::from_secs(seconds));
        }
        let texts: Vec<_> = messages.take().into_iter().map(|message| message.text).collect();
        assert_eq!(
            texts,
            ["A profile was dropped. a", &Cause::Old.text(&[]), "A profile was dropped. d"],
            "an equal sentence that still waits is not added again"
        );
    }

    #[test]
    fn details_take_their_places() {
        assert_eq!(Cause::LabelTruncated.text(&["zone", "9"]), "The value of the label zone was cut at 9 bytes.");
    }

    #[test]
    fn waiting_messages_are_bounded_and_the_oldest_goes() {
        let messages = Messages::default();
        (0..=KEPT).for_each(|number| messages.add(Message { level: Level::Info, text: number.to_string() }));
        let taken = messages.take();
        assert_eq!((taken.len(), taken[0].text.as_str()), (KEPT, "1"));
    }

    /// The first column of the table in docs/messages.md, where `…` stands for `{}`.
    #[test]
    fn the_documented_messages_are_all_there_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/messages.md");
        let page = std::fs::read_to_string(path).expect(path);
        let core = page.split("## ").find(|part| part.starts_with("From the engine")).expect("the engine's section");
        let rows = core.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let documented: Vec<_> = rows.map(|(text, rest)| format!("{text} {}", &rest[..4])).collect();
        let level = |cause: Cause| if cause.level() == Level::Info { "info" } else { "warn" };
        let said = Cause::ALL.map(|cause| format!("{} {}", cause.sentence().replace("{}", "…"), level(cause)));
        assert_eq!(documented, said);
    }
}
