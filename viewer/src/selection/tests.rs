use super::*;

fn parse(query: &str) -> Result<Selection, BadParameter> {
    let mut params = Params::parse(query);
    let selection = Selection::take(&mut params)?;
    params.finish()?;
    Ok(selection)
}

#[test]
fn a_query_string_survives() {
    for query in [
        "",
        "service=checkout&name=GET%20/cart",
        "name~=cart&attr.http.route=/cart&attr.user=7&dur%3E=200ms&dur%3C=p95&status=error&label.region=eu",
        "trace=4bf92f3577b34da6a3ce929d0e0e4736",
        "span=00f067aa0ba902b7",
        "span=00f067aa0ba902b7&below=1&since=5m",
        "service=a%26b&outside=1&since=15m",
        "type=memory&from=1000&to=2000",
        "service=a&attr.user=&label.flow=",
        "service=a&type=wall&state=waits",
        "type=wall:wall:nanoseconds:wall:nanoseconds&state=io",
        "service=a&since=all",
    ] {
        assert_eq!(super::query(&parse(query).unwrap().pairs()), query);
    }
}

#[test]
fn what_people_and_forms_write_is_the_same_selection() {
    let written = parse("name=a&dur>p95&attr.k=v&from=2023-11-14T22:13:20Z&to=1700000001000").unwrap();
    let sent =
        parse("name=a&name~=&attr=k%3Dv&dur%3E=p95&dur%3C=&status=&label=&from=1700000000000&to=1700000001000&since=")
            .unwrap();
    assert_eq!(written, sent);
    assert_eq!((written.least, written.most), (Some(Bound::Percentile(95)), None));
    assert_eq!(written.time_range, TimeRange::Between(1_700_000_000_000, 1_700_000_001_000));
}

#[test]
fn a_bad_parameter_is_named_with_its_value() {
    for (query, says) in [
        ("span=xyz", "\"span\" = \"xyz\": allowed are 16 hex"),
        ("span=0000000000000000", "not all zeros"),
        ("trace=4bf92f3577b34da6", "32 hex"),
        ("since=yesterday", "\"since\" = \"yesterday\""),
        ("since=1h&from=1&to=2", "together"),
        ("from=5", "needs to"),
        ("from=5&to=x", "Unix milliseconds, or a time such as"),
        ("from=5&to=4", "after"),
        ("from=-1&to=4", "\"from\" = \"-1\": allowed are Unix milliseconds"),
        ("inside=1&outside=1", "contradicts"),
        ("outside=1&name=a", "contradicts"),
        ("outside=1&status=ok", "contradicts"),
        ("inside=2", "\"inside\" = \"2\": allowed is 1, or no value; leave it out for no"),
        ("below=1", "needs span"),
        ("type=a:b", "\"type\""),
        ("state=waits", "\"state\" = \"waits\": needs type=wall"),
        ("type=wall&state=idle", "\"state\" = \"idle\": allowed are all, waits, and one of cpu, lock, gil"),
        ("dur>fast", "\"dur>\" = \"fast\": allowed is a time such as"),
        ("dur>2s&dur<1s", "\"dur>\" = \"2s\": is more than dur<"),
        ("dur>p95&dur<p50", "\"dur>\" = \"p95\": is more than dur<"),
        ("status=bad", "\"status\" = \"bad\": allowed are error, ok and unset"),
        ("attr=route", "\"attr\" = \"route\": allowed is KEY=VALUE, such as region=eu, or KEY= for what has none"),
        ("attr.=x", "needs a key"),
        ("attributes=x", "not known here; allowed are service, name, name~, attr.KEY, attr, dur>, dur<, status"),
    ] {
        let refused = parse(query).expect_err(query).to_string();
        assert!(refused.contains(says), "{query}: {refused}");
    }
}

#[test]
fn sentences_read_well() {
    for (query, sentence) in [
        ("service=checkout&name=GET /cart", "GET /cart of checkout, last hour"),
        ("service=checkout&outside", "everything outside spans of checkout, last hour"),
        ("span=00f067aa0ba902b7", "span 00f067aa0ba902b7"),
        ("span=00f067aa0ba902b7&below", "span 00f067aa0ba902b7 and all below it"),
        (
            "service=s&name~=car&dur>p95&status=error&attr.user=7",
            "spans named like \"car\" of s, user = 7, at least p95, status error, last hour",
        ),
        (
            "name=a&dur>1ms&dur<20ms&from=1700000000000&to=1700000060000",
            "a, 1ms to 20ms, 2023-11-14 22:13:20 to 2023-11-14 22:14:20 UTC",
        ),
        ("service=s&since=all", "everything of s, all that is stored"),
        ("name=a&attr.user=&label.flow=", "a, without user, without flow, last hour"),
        ("service=s&type=wall&state=waits", "everything of s, wall, state waits, last hour"),
        ("service=s&type=wall&state=all", "everything of s, wall, last hour"),
    ] {
        assert_eq!(parse(query).unwrap().sentence(), sentence);
    }
}

#[test]
fn the_range_before_is_as_long() {
    assert_eq!(TimeRange::Between(5_000, 7_000).before(), Some(TimeRange::Between(3_000, 5_000)));
    assert_eq!(TimeRange::Stored.before(), None);
}

#[test]
fn another_profile_type_has_all_its_states() {
    let waits = parse("type=wall&state=waits").unwrap();
    assert_eq!(waits.clone().profile_type(CPU), Selection::everything());
    assert!(waits.is_wall() && !Selection::everything().is_wall());
    assert!(
        parse("type=wall:wait_count:count:wall:nanoseconds").unwrap().is_wall()
            && !parse("type=wallet").unwrap().is_wall()
    );
}

#[test]
fn a_selection_is_no_longer_than_links_may_be() {
    // The longest name of a span, of a service and of a profile type are together.
    let words = [4_096, 2_048, 1_024 - 7].map(|length| "x".repeat(length));
    let longest = format!("name={}&service={}&type=a:b:c:d:{}", words[0], words[1], words[2]);
    parse(&longest).unwrap();
    let labels: Vec<String> = (0..5).map(|n| format!("label.{n}={}", &words[1][..1_640])).collect();
    let refused = parse(&labels.join("&")).unwrap_err().to_string();
    assert!(refused.contains("label.") && refused.contains("allowed are 8192 for all its parameters"), "{refused}");
    assert!(parse(&labels[1..].join("&")).is_ok());
}
