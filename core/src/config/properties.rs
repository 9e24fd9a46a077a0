//! Whatever is in the environment: a setting or an error that names its variable, and never a panic or a credential.

use proptest::prelude::*;

use super::options::Config;

const VARIABLES: [&str; 12] = [
    "PYROSCOPE_APPLICATION_NAME",
    "PYROSCOPE_SERVER_ADDRESS",
    "PYROSCOPE_BASIC_AUTH_USER",
    "PYROSCOPE_TENANT_ID",
    "PYROSCOPE_HTTP_HEADERS",
    "PYROSCOPE_LABELS",
    "PYROSCOPE_UPLOAD_INTERVAL",
    "PYROSCOPE_SAMPLE_RATE",
    "PYROSCOPE_PROFILING_ENABLED",
    "PYROSCOPE_PROFILING_INTERVAL",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_PYROSCOPE_ADD_SPAN_NAME",
];

/// Text that is nearly right more often than not.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9]{0,25}(ms|s|m|h)?",
        "(https?|file|ftp|none)?(://)?[a-z:@/%\\[\\]0-9.]{0,30}",
        "([a-z_.]{0,6}[:=][a-z%0-9]{0,6},?){0,5}",
        r#"\{("[a-zA-Z-]{0,5}": ?"[^"]{0,5}",?){0,3}\}"#,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_environment_gives_settings_or_an_error_that_names_the_variable(at in 0..VARIABLES.len(), value in value()) {
        let variable = VARIABLES[at];
        let lookup = |name: &str| match name {
            _ if name == variable => Some(value.clone()),
            "PYROSCOPE_APPLICATION_NAME" => Some("shop".to_owned()),
            _ => None,
        };
        match Config::from_environment(lookup) {
            // What parses may still not be allowed; then it is said, and nothing panics.
            Ok(config) => drop(config.validate()),
            Err(error) => prop_assert!(error.message().starts_with(variable), "{}", error),
        }
    }

    #[test]
    fn a_credential_is_in_no_message(at in 0..8_usize, before in "[a-z:/@ ]{0,8}", after in "[a-z:/@\\n\" ]{0,8}") {
        let secret = format!("{before}hunter2{after}");
        let value = match at {
            0 => format!("http://user:{secret}@host"),
            1 => format!(r#"{{"Authorization": "{secret}"}}"#),
            4 => format!("http://host/?token={secret}"),
            5 => format!("host?{secret}"),
            6 => format!("user:{secret}"),
            7 => format!("team\n{secret}"),
            _ => secret,
        };
        let variable = [
            "PYROSCOPE_SERVER_ADDRESS",
            "PYROSCOPE_HTTP_HEADERS",
            "PYROSCOPE_HTTP_HEADERS",
            "PYROSCOPE_BASIC_AUTH_PASSWORD",
            "PYROSCOPE_SERVER_ADDRESS",
            "PYROSCOPE_SERVER_ADDRESS",
            "PYROSCOPE_BASIC_AUTH_USER",
            "PYROSCOPE_TENANT_ID",
        ][at];
        let lookup = |name: &str| (name == variable).then(|| value.clone());
        let said = match Config::from_environment(lookup) {
            Ok(mut config) => {
                config.application_name = "shop".to_owned();
                let settings = config.validate();
                // A user and a tenant are no credentials; what is none of them may be one.
                let shown = if at < 6 { format!("{config:?}") } else { String::new() };
                format!("{shown} {settings:?}")
            }
            Err(error) => error.to_string(),
        };
        prop_assert!(!said.contains("hunter2"), "{}", said);
    }
}
