//! The upload thread and a server: what is sent, kept, tried again and counted.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

use super::super::outcome::Outcome;
use super::super::test_server::{Answer, Request, Server, answer};
use super::*;
use crate::config::{Config, Secret, TraceIdLabel};
use crate::profile::pprof::gzip;
use crate::profile_type::ProfileType;
use crate::stats::{Stats, Tally};
use crate::wire::pprof::{Profile, Sample};
use prost::Message;

const PUSH: &str = "POST /push.v1.PusherService/Push";
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(30);

fn config(address: &str) -> Config {
    Config {
        application_name: "shop".to_owned(),
        server_address: address.to_owned(),
        trace_id: TraceIdLabel::Always,
        upload_interval: Duration::from_secs(600),
        ..Config::default()
    }
}

struct Running {
    uploader: Uploader,
    counters: Arc<Counters>,
    messages: Arc<Messages>,
}

impl Running {
    /// One that does this with each profile.
    fn sending(outcome: impl Fn() -> Outcome + Send + 'static, limits: Limits) -> Self {
        let settings = Arc::new(config("http://127.0.0.1:9").validate().expect("settings"));
        let (counters, messages) = (Arc::<Counters>::default(), Arc::<Messages>::default());
        let sender = Sender::Test(Box::new(outcome));
        let uploader = Uploader::start_to(sender, settings, Arc::clone(&counters), Arc::clone(&messages), limits);
        Self { uploader: uploader.expect("uploader"), counters, messages }
    }

    fn start(config: &Config, limits: Limits) -> Self {
        let settings = Arc::new(config.validate().expect("settings"));
        let (counters, messages) = (Arc::<Counters>::default(), Arc::<Messages>::default());
        let uploader = Uploader::start_with(settings, Arc::clone(&counters), Arc::clone(&messages), limits);
        Self { uploader: uploader.expect("uploader"), counters, messages }
    }

    /// Stats whose sums were checked.
    fn stats(&self) -> Stats {
        let stats = self.counters.snapshot();
        let mut sum = Tally::default();
        for part in
            [stats.queued, stats.uploaded, stats.refused, stats.dropped_queue, stats.dropped_old, stats.discarded]
        {
            sum += part;
        }
        assert_eq!(stats.encoded, sum, "{stats:?}");
        stats
    }

    fn messages(&self) -> String {
        self.messages.take().into_iter().map(|message| message.text + "\n").collect()
    }
}

fn impatient() -> Limits {
    Limits { backoff: Duration::ZERO, max_backoff: Duration::ZERO, ..Limits::default() }
}

fn tally(samples: u64, weight: u64) -> Tally {
    Tally { samples, weight }
}

/// A profile with halves of 40 and 60, each of two stacks.
fn profile() -> Encoded {
    let sample = |value| Sample { location_id: Vec::new(), value: vec![value], label: Vec::new() };
    let profile = Profile {
        sample: vec![sample(10), sample(30), sample(25), sample(35)],
        string_table: vec![String::new()],
        ..Profile::default()
    };
    Encoded {
        profile_type: ProfileType::process_cpu(1),
        start_unix_nanos: 77,
        body: gzip(&profile.encode_to_vec()).unwrap(),
        tally: tally(2, 100),
    }
}

/// Sends one profile to a server that answers like this, until it is settled. Returns what came of it.
fn sent(answers: impl IntoIterator<Item = Answer>) -> (Stats, String, Vec<Request>) {
    let server = Server::start(answers);
    let running = Running::start(&config(&server.address), impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    (running.stats(), running.messages(), server.so_far())
}

#[test]
fn a_push_is_what_the_protocol_says() {
    let server = Server::start([]);
    let config = Config {
        server_address: format!("{}/base/", server.address).replace("http://", "http://user:pw@"),
        tenant_id: "tenant".to_owned(),
        http_headers: vec![("X-Mine".to_owned(), Secret("mine".to_owned()))],
        tags: vec![("zone".to_owned(), "a".to_owned())],
        runtime: ("cpython".to_owned(), "3.13".to_owned()),
        package: ("pyroscope-otel".to_owned(), "2.0.0".to_owned()),
        spy: "spanprof-python".to_owned(),
        ..config("")
    };
    let running = Running::start(&config, impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    let request = server.request();
    assert_eq!(request.line, "POST /base/push.v1.PusherService/Push");
    for (name, value) in [
        ("content-type", "application/proto"),
        ("content-encoding", "gzip"),
        ("user-agent", "pyroscope-otel/2.0.0 spanprof"),
        ("x-scope-orgid", "tenant"),
        ("authorization", "Basic dXNlcjpwdw=="),
        ("x-mine", "mine"),
    ] {
        assert_eq!(request.header(name), [value], "{name}");
    }
    let series = request.series();
    let labels: Vec<_> = series.labels.iter().map(|label| (label.name.as_str(), label.value.as_str())).collect();
    assert_eq!(
        labels,
        [
            ("__name__", "process_cpu"),
            ("otel.scope.name", "pyroscope-otel"),
            ("otel.scope.version", "2.0.0"),
            ("process.runtime.name", "cpython"),
            ("process.runtime.version", "3.13"),
            ("pyroscope_spy", "spanprof-python"),
            ("service_name", "shop"),
            ("zone", "a"),
        ]
    );
    assert_eq!(series.samples.len(), 1);
    assert_eq!(request.profile(), profile().body);
    let stats = running.stats();
    assert_eq!((stats.uploaded, stats.profiles_uploaded, stats.retries), (tally(2, 100), 1, 0));
}

#[test]
fn a_server_that_comes_back_gets_the_profile() {
    let (stats, messages, requests) = sent([answer(503, ""), Answer::Close, answer(429, "slow down")]);
    assert_eq!((stats.uploaded, stats.retries), (tally(2, 100), 3));
    let ids: Vec<_> = requests.iter().map(|request| request.series().samples[0].id.clone()).collect();
    assert!(ids.len() == 4 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let lines: Vec<_> = messages.lines().collect();
    let [failed, back] = lines[..] else { panic!("{messages}") };
    assert!(failed.ends_with("HTTP 503. Profiles are kept for an hour and tried again."), "{failed}");
    assert!(back.ends_with(" takes profiles again. Tries that failed before: 3."), "{back}");
}

#[test]
fn a_server_that_asks_for_time_gets_it_even_from_flush() {
    let later = Answer::Text(429, "Retry-After: 100\r\n".to_owned(), String::new());
    let server = Server::start([later]);
    let running = Running::start(&config(&server.address), impatient());
    running.uploader.send(vec![profile()]);
    assert!(!running.uploader.flush(Duration::ZERO));
    server.request();
    assert!(!running.uploader.flush(Duration::from_millis(50)));
    assert!(server.so_far().is_empty());
    assert_eq!(running.stats().queued, tally(2, 100));
}

#[test]
fn a_refused_profile_is_reported_with_the_server_s_words_and_the_setting() {
    let (stats, messages, requests) = sent([answer(401, r#"{"code":"unauthenticated","message":"no org id"}"#)]);
    assert_eq!((stats.refused, stats.profiles_refused, requests.len()), (tally(2, 100), 1, 1));
    assert!(messages.contains("HTTP 401: no org id") && messages.contains("tenant_id"), "{messages}");
    let (_, messages, _) = sent([answer(404, "")]);
    assert!(messages.contains("HTTP 404") && messages.contains("server_address"), "{messages}");
}

#[test]
fn a_server_that_repeats_credentials_does_not_bring_them_into_messages() {
    let server = Server::start([answer(403, "bad header Bearer hunter2, token hunter2")]);
    let http_headers = vec![("Authorization".to_owned(), Secret("Bearer hunter2".to_owned()))];
    let running = Running::start(&Config { http_headers, ..config(&server.address) }, impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    let said = running.messages() + &running.counters.last_error() + &format!("{:?}", running.uploader);
    assert!(said.contains("bad header") && !said.contains("hunter2"), "{said}");
}

#[test]
fn a_password_that_a_server_repeats_is_masked_before_the_answer_is_truncated() {
    // At the end of what is shown, where truncation would leave half of it.
    let server = Server::start([answer(401, &format!("{}bad password carol:hunter2-pass", "x".repeat(270)))]);
    let (basic_auth_user, basic_auth_password) = ("carol".to_owned(), Secret("hunter2-pass".to_owned()));
    let config = Config { basic_auth_user, basic_auth_password, ..config(&server.address) };
    let running = Running::start(&config, impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    let said = running.messages() + &running.counters.last_error();
    assert!(said.contains("bad password"), "{said}");
    assert!(!said.contains("carol") && !said.contains("hunt"), "{said}");
}

#[test]
fn a_redirect_to_another_port_carries_no_credentials() {
    let other = Server::start([answer(401, "who are you")]);
    let server = Server::start([Answer::Text(307, format!("Location: {}/x\r\n", other.address), String::new())]);
    let http_headers = vec![("Authorization".to_owned(), Secret("Bearer hunter2".to_owned()))];
    let running = Running::start(&Config { http_headers, ..config(&server.address) }, impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    assert_eq!(server.request().header("authorization"), ["Bearer hunter2"]);
    assert_eq!(other.request().header("authorization"), [""; 0]);
    let messages = running.messages();
    assert!(messages.contains("to which no credentials are sent"), "{messages}");
}

#[test]
fn a_profile_that_cannot_be_read_is_tried_three_times_and_holds_up_no_other() {
    let unknown = || answer(500, r#"{"code":"unknown","message":"gzip: invalid header"}"#);
    let server = Server::start([unknown(), answer(200, ""), unknown(), unknown()]);
    let running = Running::start(&config(&server.address), impatient());
    running.uploader.send(vec![profile(), profile()]);
    assert!(running.uploader.flush(LONG));
    let stats = running.stats();
    assert_eq!((stats.uploaded, stats.refused, stats.retries), (tally(2, 100), tally(2, 100), 2));
    assert_eq!(server.so_far().len(), 4);
}

#[test]
fn a_body_too_large_for_a_proxy_goes_in_halves_and_no_smaller() {
    let (stats, _, requests) = sent([answer(413, ""), answer(413, ""), answer(200, "")]);
    assert_eq!((stats.refused, stats.uploaded), (tally(1, 40), tally(1, 60)));
    assert_eq!(requests.len(), 3);
    assert_ne!(requests[1].series().samples[0].id, requests[2].series().samples[0].id);
}

#[test]
fn a_redirect_to_another_host_is_not_followed() {
    let other = Server::start([]);
    let to = other.address.replace("127.0.0.1", "localhost");
    let (stats, messages, _) = sent([Answer::Text(308, format!("Location: {to}/x\r\n"), String::new())]);
    assert_eq!(stats.refused, tally(2, 100));
    assert!(messages.contains(&to) && messages.contains("server_address"), "{messages}");
    assert!(other.so_far().is_empty());
}

#[test]
fn what_a_redirect_carries_to_a_login_is_in_no_message() {
    let login = "https://me:hunter2@login.example/start?state=hunter2";
    let (_, messages, _) = sent([Answer::Text(302, format!("Location: {login}\r\n"), String::new())]);
    assert!(messages.contains("HTTP 302 to https://(secret)@login.example/start?(secret)"), "{messages}");
}

#[test]
fn a_redirect_on_the_same_host_is_followed_with_the_profile() {
    let (stats, _, requests) = sent([Answer::Text(308, "Location: /moved\r\n".to_owned(), String::new())]);
    assert_eq!((stats.uploaded, stats.retries), (tally(2, 100), 0));
    assert_eq!(requests[1].line, "POST /moved");
    assert_eq!(requests[1].profile(), profile().body);
}

#[test]
fn a_due_round_sends_without_being_asked() {
    let server = Server::start([]);
    let mut settings = config(&server.address).validate().expect("settings");
    settings.upload_interval = Duration::ZERO;
    let uploader = Uploader::start(Arc::new(settings), Arc::default(), Arc::default()).expect("uploader");
    uploader.send(vec![profile()]);
    assert_eq!(server.request().line, PUSH);
}

#[test]
fn flush_says_when_a_server_does_not_answer_in_time_and_the_profile_stays() {
    let (release, hang) = channel();
    let server = Server::start([Answer::Hang(hang)]);
    let running = Running::start(&config(&server.address), impatient());
    assert!(running.uploader.flush(Duration::ZERO), "nothing was queued");
    running.uploader.send(vec![profile()]);
    assert!(!running.uploader.flush(Duration::from_millis(20)));
    assert_eq!(running.stats().queued, tally(2, 100));
    drop(release);
    assert!(running.uploader.flush(LONG));
    assert_eq!(running.stats().uploaded, tally(2, 100));
}

#[test]
fn stop_sends_what_is_queued_and_tries_once() {
    let server = Server::start([answer(200, ""), answer(503, "")]);
    let running = Running::start(&config(&server.address), Limits::default());
    running.uploader.send(vec![profile(), profile()]);
    assert!(!running.uploader.stop(LONG), "the second one was not delivered");
    let stats = running.stats();
    assert_eq!((stats.uploaded, stats.dropped_queue), (tally(2, 100), tally(2, 100)));
    assert_eq!(server.so_far().len(), 2);
    assert!(!running.uploader.stop(LONG), "a second time says the same");
}

/// What a stop says that has one profile to send, of which the server answers this.
fn delivers(last: Answer) -> bool {
    let server = Server::start([last]);
    let running = Running::start(&config(&server.address), Limits::default());
    running.uploader.send(vec![profile()]);
    let delivered = running.uploader.stop(LONG);
    assert_eq!(running.uploader.stop(LONG), delivered, "a second time says the same");
    assert_eq!(running.stats().uploaded, if delivered { tally(2, 100) } else { Tally::default() });
    delivered
}

#[test]
fn stop_says_whether_the_last_profiles_were_delivered() {
    assert!(delivers(answer(200, "")));
    assert!(!delivers(Answer::Close), "its connection was reset");
    assert!(!delivers(answer(503, "")));
    assert!(!delivers(answer(400, "")), "refused");
}

#[test]
fn what_was_lost_before_a_stop_is_no_matter_of_it() {
    let server = Server::start([answer(400, "")]);
    let running = Running::start(&config(&server.address), impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.stop(LONG));
    assert_eq!((running.stats().refused, running.stats().uploaded), (tally(2, 100), tally(2, 100)));
}

#[test]
fn what_the_last_rotation_loses_is_a_matter_of_the_stop() {
    for (queue_bytes, without_memory) in [(profile().body.len(), 0), (1 << 20, 1)] {
        let server = Server::start([]);
        let running = Running::start(&config(&server.address), Limits { queue_bytes, ..impatient() });
        running.uploader.begin_stop();
        running.counters.drop_without_memory(tally(without_memory, without_memory));
        running.uploader.send(if without_memory > 0 { vec![profile()] } else { vec![profile(), profile()] });
        assert!(!running.uploader.stop(LONG), "{queue_bytes} bytes");
        running.uploader.begin_stop();
        assert!(!running.uploader.stop(LONG), "a second time says the same");
    }
}

#[test]
fn stop_is_bounded_when_a_server_hangs() {
    let (_release, hang) = channel();
    let server = Server::start([Answer::Hang(hang)]);
    let running = Running::start(&config(&server.address), Limits::default());
    running.uploader.send(vec![profile(), profile()]);
    assert!(!running.uploader.flush(Duration::ZERO));
    server.request();
    let start = Instant::now();
    assert!(!running.uploader.stop(Duration::from_millis(50)));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let stats = running.stats();
    assert_eq!((stats.dropped_queue, stats.queued), (tally(4, 200), Tally::default()));
    let said = format!("{}: not all was taken within the time that a stop has. Check server_address.", server.address);
    assert_eq!(stats.last_error, said);
    assert_eq!(running.messages(), format!("{said} Profiles were dropped, as uploading ends.\n"));
}

#[test]
fn a_full_queue_loses_its_oldest_profile() {
    let (release, hang) = channel();
    let server = Server::start([Answer::Hang(hang)]);
    let limits = Limits { queue_bytes: 2 * profile().body.len(), ..impatient() };
    let running = Running::start(&config(&server.address), limits);
    running.uploader.send(vec![profile()]);
    assert!(!running.uploader.flush(Duration::ZERO));
    server.request();
    let with_start = |start_unix_nanos| Encoded { tally: tally(1, start_unix_nanos), ..profile() };
    running.uploader.send(vec![with_start(1), with_start(2), with_start(4)]);
    assert_eq!(running.stats().dropped_queue, tally(1, 1));
    drop(release);
    assert!(running.uploader.flush(LONG));
    assert_eq!(running.stats().uploaded, tally(4, 106));
    assert!(running.messages().contains("full"));
}

/// The setting Auto against a server that answers like this.
fn asks(answers: impl IntoIterator<Item = Answer>) -> (bool, String, Vec<Request>) {
    let server = Server::start(answers);
    let config = Config { trace_id: TraceIdLabel::Auto, ..config(&server.address) };
    let running = Running::start(&config, impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    (running.uploader.trace_ids(), running.messages(), server.so_far())
}

#[test]
fn an_old_server_gets_no_trace_ids_and_one_message_says_so() {
    let (trace_ids, messages, requests) = asks([answer(200, r#"{"data":{"version":"2.0.3"}}"#)]);
    assert!(!trace_ids);
    assert!(messages.contains("2.0.3") && messages.lines().count() == 1, "{messages}");
    let lines: Vec<_> = requests.iter().map(|request| request.line.as_str()).collect();
    assert_eq!(lines, ["GET /api/v1/status/buildinfo", PUSH]);
}

#[test]
fn other_servers_get_trace_ids() {
    assert!(asks([answer(200, r#"{"data":{"version":"2.1.0"}}"#)]).0);
    assert!(asks([answer(404, r#"{"data":{"version":"2.0.3"}}"#)]).0);
    assert!(asks([Answer::Close]).0);
}

#[test]
fn a_set_choice_asks_nobody() {
    let server = Server::start([]);
    let running = Running::start(&Config { trace_id: TraceIdLabel::Never, ..config(&server.address) }, impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    assert!(!running.uploader.trace_ids());
    assert_eq!(server.request().line, PUSH);
}

#[test]
fn without_a_target_profiles_are_discarded_and_counted() {
    let running = Running::start(&config("none"), Limits::default());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(Duration::ZERO));
    let stats = running.stats();
    assert_eq!((stats.encoded, stats.discarded), (tally(2, 100), tally(2, 100)));
    assert!(running.uploader.stop(Duration::ZERO));
}

#[test]
fn a_folder_gets_a_file_of_each_profile() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let running = Running::start(&config(&format!("file://{}", folder.path().display())), impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.stop(LONG));
    let files: Vec<_> = fs::read_dir(folder.path()).expect("folder").flatten().collect();
    assert_eq!(files.len(), 1);
    assert_eq!(fs::read(files[0].path()).expect("file"), profile().body);
    assert_eq!(running.stats().uploaded, tally(2, 100));
}

#[test]
fn what_is_sent_after_the_end_is_counted_as_dropped() {
    let running = Running::start(&config("http://127.0.0.1:9"), impatient());
    assert!(running.uploader.stop(LONG));
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    assert_eq!(running.stats().dropped_queue, tally(2, 100));
}

#[test]
fn a_request_that_panics_is_tried_again_and_told() {
    let tries = AtomicU32::new(0);
    let once = move || match tries.fetch_add(1, Ordering::Relaxed) {
        0 => panic!("failed to spawn thread"),
        _ => Outcome::accepted(),
    };
    let running = Running::sending(once, impatient());
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.flush(LONG));
    let stats = running.stats();
    assert_eq!((stats.uploaded, stats.retries), (tally(2, 100), 1));
    let said = "http://127.0.0.1:9: the upload met an error of its own: failed to spawn thread.";
    let again = "http://127.0.0.1:9 takes profiles again. Tries that failed before: 1.";
    assert_eq!(running.messages(), format!("{said} Profiles are kept for an hour and tried again.\n{again}\n"));
    running.uploader.send(vec![profile()]);
    assert!(running.uploader.stop(LONG));
    assert_eq!((running.stats().uploaded, running.stats().last_error), (tally(4, 200), said.to_owned()));
}

#[test]
fn requests_that_always_panic_keep_the_profile_and_let_no_flush_or_stop_say_yes() {
    let running = Running::sending(|| panic!("no thread"), Limits::default());
    running.uploader.send(vec![profile()]);
    assert!(!running.uploader.flush(Duration::from_millis(50)));
    assert_eq!(running.stats().queued, tally(2, 100));
    assert!(!running.uploader.stop(LONG));
    assert_eq!(running.stats().dropped_queue, tally(2, 100));
}

#[test]
fn an_upload_thread_that_panics_outside_of_a_request_says_so_and_no_flush_or_stop_says_yes() {
    // No instant is that late.
    let running = Running::start(&config("http://127.0.0.1:9"), Limits { max_age: Duration::MAX, ..impatient() });
    running.uploader.send(vec![profile()]);
    let mut state = running.uploader.shared.lock();
    while !state.ended {
        let waited = running.uploader.shared.changed.wait_timeout(state, LONG);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(state);
    assert!(!running.uploader.flush(LONG));
    running.uploader.send(vec![profile()]);
    assert!(!running.uploader.flush(LONG));
    assert!(!running.uploader.stop(LONG));
    assert_eq!(running.stats().dropped_queue, tally(4, 200));
    let messages = running.messages();
    assert!(messages.starts_with("Uploading has ended: the upload thread met an error of its own"), "{messages}");
    assert_eq!(messages.lines().count(), 1, "{messages}");
}
