//! How many bytes of an answer a row of a table takes while its page is made, where anyone may name what is in it.

/// Bytes of a row beside what anyone named.
pub(super) const ROW: usize = 2_560;

/// What stands twice in memory, as the table does until it is in its page.
pub(super) fn twice(bytes: usize) -> usize {
    bytes.saturating_mul(2)
}

/// Bytes of a text in HTML; in JSON a row is shorter, as it has no links.
pub(super) fn in_html(text: &str) -> usize {
    let escaped = |byte| match byte {
        b'"' => 6,
        b'&' => 5,
        b'<' | b'>' => 4,
        _ => 1,
    };
    text.bytes().map(escaped).sum()
}
