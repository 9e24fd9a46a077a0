//! What runs in the signal handler: the walk, and the tables that it searches. All else of this library fills these tables or
//! reads what the walk wrote, and nothing here uses any of it.

pub(crate) mod call_sites;
pub(crate) mod eh_frame;
pub(crate) mod modules;
pub(crate) mod range_set;
pub(crate) mod sample_header;
pub(crate) mod unwind;

#[cfg(test)]
mod tests {
    /// What follows `crate::` outside of comments.
    fn used_of_the_crate(source: &str) -> impl Iterator<Item = &str> {
        let code = source.lines().map(|line| line.split("//").next().unwrap_or_default());
        code.flat_map(|line| line.split("crate::").skip(1))
    }

    #[test]
    fn handler_code_uses_handler_code_alone() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/stack");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("mod.rs") {
                continue;
            }
            files += 1;
            let source = std::fs::read_to_string(&path).unwrap();
            let outside: Vec<&str> = used_of_the_crate(&source).filter(|used| !used.starts_with("stack::")).collect();
            assert!(outside.is_empty(), "{} uses {outside:?}", path.display());
        }
        assert_eq!(files, 6);
    }
}
