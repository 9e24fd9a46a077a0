//! Whatever a server answers is read without a panic.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::transport::push;
use super::{backoff, outcome, server_version};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_answer_is_judged(status in 100..1_000_u16, body in any::<String>(), seconds in any::<u64>()) {
        let (code, message) = push::said(&body, str::to_owned);
        prop_assert!(message.chars().count() <= 300 && !message.contains('\n'), "{}", message);
        let (verdict, _) = outcome::judge(status, &code, Some(Duration::from_secs(seconds)));
        prop_assert_eq!(verdict == outcome::Verdict::Accepted, (200..300).contains(&status));
    }

    #[test]
    fn any_connect_error_is_judged(code in "[a-z_]{0,12}", message in any::<String>()) {
        let body = serde_json::json!({ "code": code, "message": message }).to_string();
        prop_assert_eq!(push::said(&body, str::to_owned).0, code);
        drop(server_version::too_old(&body));
        drop(server_version::too_old(&serde_json::json!({ "data": { "version": message } }).to_string()));
    }

    #[test]
    fn any_retry_after_is_seconds_a_date_or_nothing(text in prop_oneof![
        any::<String>(),
        "[A-Z][a-z]{2}, [0-9]{1,3} (Jan|Feb|Dec|Foo) [0-9]{1,6} [0-9]{1,3}:[0-9]{1,3}:[0-9]{1,3} (GMT|CET)",
        "[0-9]{0,25}",
    ]) {
        let _ = backoff::retry_after(&text, SystemTime::now());
    }
}
