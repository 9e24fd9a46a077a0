//! The tables. Names, functions, stacks and label sets stand once; everything else refers to them by number.

use rusqlite::{Connection, ErrorCode};

/// The name of spans that samples name by id only and no trace was received of.
const UNNAMED: &str = "(unnamed span)";
/// Its number among the strings.
pub(super) const UNNAMED_ID: i64 = 1;

/// Raised with every change of the tables, so that a file of another version is refused and not misread.
const VERSION: i64 = 5;
/// "spnp": what tells our files from other SQLite files.
const APPLICATION: i64 = 0x7370_6e70;

const TABLES: &str = "
    CREATE TABLE strings (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE);
    CREATE TABLE functions (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER NOT NULL, file INTEGER NOT NULL, UNIQUE (name, file));
    -- A trie: a stack is its caller's stack plus one line of a function. Parent 0 is the empty stack. A number is never
    -- used again, so whoever remembers what it meant is right; callers have lower numbers than what they call.
    CREATE TABLE stacks (
        id INTEGER PRIMARY KEY AUTOINCREMENT, parent INTEGER NOT NULL, function INTEGER NOT NULL, line INTEGER NOT NULL,
        UNIQUE (parent, function, line));
    -- What was measured. text = name:sample type:unit:period type:period unit; main = what the bare name means.
    CREATE TABLE kinds (
        id INTEGER PRIMARY KEY, text TEXT NOT NULL, name TEXT NOT NULL, unit TEXT NOT NULL, main INTEGER NOT NULL,
        UNIQUE (text, name, unit, main));
    -- A label set. span_name 0 = the samples carry none; labels is JSON, sorted by name.
    CREATE TABLE series (
        id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, service INTEGER NOT NULL, span_name INTEGER NOT NULL,
        period INTEGER NOT NULL, labels TEXT NOT NULL, UNIQUE (kind, period, labels, service, span_name));
    -- A profile as it was received; its parts are what it holds of each series. mark tells its bytes from others'.
    CREATE TABLE profiles (
        id INTEGER PRIMARY KEY, service INTEGER NOT NULL, time INTEGER NOT NULL, received INTEGER NOT NULL, mark INTEGER);
    CREATE INDEX profiles_by_mark ON profiles (mark) WHERE mark IS NOT NULL;
    CREATE INDEX profiles_by_time ON profiles (time);
    CREATE TABLE parts (
        id INTEGER PRIMARY KEY, profile INTEGER NOT NULL, series INTEGER NOT NULL, time INTEGER NOT NULL,
        value INTEGER NOT NULL);
    CREATE INDEX parts_by_series ON parts (series, time);
    CREATE INDEX parts_by_profile ON parts (profile);
    CREATE INDEX parts_by_time ON parts (time);
    -- The samples of a part, by span: 0 = outside of spans. name = the span's final name, 0 = outside, 1 = not known.
    -- count = periods, which is what a sampling error is made from. stacks says what value and count are made of.
    -- joined: samples are of the span by time alone.
    CREATE TABLE span_sums (
        part INTEGER NOT NULL, span INTEGER NOT NULL, name INTEGER NOT NULL, value INTEGER NOT NULL, count INTEGER NOT NULL,
        stacks BLOB NOT NULL, joined INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (part, span)) WITHOUT ROWID;
    CREATE INDEX span_sums_joined ON span_sums (part) WHERE joined;
    CREATE INDEX span_sums_by_span ON span_sums (span) WHERE span != 0;
    -- The same summed over all spans of a name, by ten seconds.
    CREATE TABLE stack_sums (
        series INTEGER NOT NULL, bucket INTEGER NOT NULL, name INTEGER NOT NULL, value INTEGER NOT NULL, count INTEGER NOT NULL,
        stacks BLOB NOT NULL, PRIMARY KEY (series, bucket, name)) WITHOUT ROWID;
    CREATE INDEX stack_sums_by_time ON stack_sums (bucket);
    -- The traces of the spans that a profile's samples name with theirs, by label span_name: all that is known of a span
    -- that no trace was received of. Packed by profile_traces.rs: an index by trace would take more time than all else.
    CREATE TABLE profile_traces (
        profile INTEGER NOT NULL, name INTEGER NOT NULL, spans BLOB NOT NULL, PRIMARY KEY (profile, name)) WITHOUT ROWID;
    -- parent 0 = none. root: 1 = entered its service from outside, 0 = not, NULL = its sender did not say.
    -- profiled: it carries pyroscope.profile.id, so its own samples are labelled with it. Rows are in order of arrival, as
    -- ids are random: where they stood in order of these, each would change a page of its own.
    CREATE TABLE spans (
        id INTEGER PRIMARY KEY, trace BLOB NOT NULL, span INTEGER NOT NULL, parent INTEGER NOT NULL, service INTEGER NOT NULL,
        name INTEGER NOT NULL, start INTEGER NOT NULL, duration INTEGER NOT NULL, status INTEGER NOT NULL, root INTEGER,
        profiled INTEGER NOT NULL, attributes TEXT NOT NULL, place INTEGER, told BLOB);
    CREATE UNIQUE INDEX spans_by_span ON spans (span, trace, service);
    CREATE INDEX spans_by_trace ON spans (trace);
    CREATE INDEX spans_by_service ON spans (service, start, name, duration, status, root); -- all that a table of names needs
    CREATE INDEX spans_by_time ON spans (start + duration);
    CREATE INDEX spans_by_place ON spans (place, start + duration) WHERE place IS NOT NULL;
    -- Samples that wait for the span of their time: place = process and thread as one number, also of spans, and told = what else is
    -- said of the process.
    CREATE TABLE timed_samples (
        id INTEGER PRIMARY KEY, place INTEGER NOT NULL, told BLOB NOT NULL, part INTEGER NOT NULL, first INTEGER NOT NULL,
        last INTEGER NOT NULL, received INTEGER NOT NULL, samples BLOB NOT NULL);
    CREATE INDEX timed_samples_by_place ON timed_samples (place, last);
    CREATE INDEX timed_samples_by_part ON timed_samples (part);
    CREATE INDEX timed_samples_by_received ON timed_samples (received);
";

/// What to do about a file that cannot be used.
const INSTEAD: &str = "move it away to start anew, or give another file";

/// Makes the tables, or checks that they are ours.
pub(super) fn prepare(connection: &Connection) -> Result<(), String> {
    let failed = |error: rusqlite::Error| error.to_string();
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(failed);
    let tables = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
    let tables = tables.map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => format!("it is no file of spanprof's; {INSTEAD}"),
        _ => error.to_string(),
    })?;
    if tables == 0 {
        let marks = format!("PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};");
        let unnamed = format!("INSERT INTO strings (id, text) VALUES ({UNNAMED_ID}, '{UNNAMED}');");
        return connection.execute_batch(&format!("BEGIN; {TABLES} {unnamed} {marks} COMMIT;")).map_err(failed);
    }
    if pragma("application_id")? != APPLICATION {
        return Err(format!("it is an SQLite file, but not one of spanprof; {INSTEAD}"));
    }
    match pragma("user_version")? {
        VERSION => Ok(()),
        other => Err(format!(
            "it was written by another version of spanprof (format {other}, and this one reads {VERSION}), which still reads it; {INSTEAD}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_others_is_refused() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE theirs (id)").unwrap();
        assert!(
            prepare(&connection)
                .unwrap_err()
                .ends_with("not one of spanprof; move it away to start anew, or give another file")
        );
    }

    #[test]
    fn a_file_of_another_version_is_refused_and_our_own_is_not() {
        let connection = Connection::open_in_memory().unwrap();
        prepare(&connection).unwrap();
        prepare(&connection).unwrap();
        connection.execute_batch("PRAGMA user_version = 99").unwrap();
        let refused = prepare(&connection).unwrap_err();
        assert!(
            refused.contains("format 99") && refused.ends_with("; move it away to start anew, or give another file"),
            "{refused}"
        );
    }
}
