//! What /proc/self/maps says of code: native libraries, images of assemblies, and all memory that is executable.

use std::collections::HashMap;

/// A line of /proc/self/maps.
#[derive(Debug)]
pub(crate) struct Map<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    offset: u64,
    pub(crate) is_executable: bool,
    pub(crate) path: &'a str,
}

/// A library where it is mapped; from `start` to `end` it is executable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) path: String,
    pub(crate) base: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Mapped {
    pub(crate) fn contains(&self, pc: u64) -> bool {
        pc >= self.start && pc < self.end
    }
}

/// The lines; those that are none are left out.
pub(crate) fn parse(maps: &str) -> Vec<Map<'_>> {
    let line = |line: &'_ str| -> Option<(u64, u64, bool, u64)> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let access = words.next()?;
        Some((
            u64::from_str_radix(start, 16).ok()?,
            u64::from_str_radix(end, 16).ok()?,
            access.contains('x'),
            u64::from_str_radix(words.next()?, 16).ok()?,
        ))
    };
    let parsed = maps.lines().filter_map(|text| {
        let (start, end, is_executable, offset) = line(text)?;
        let path = text.find(['/', '[']).map_or("", |at| &text[at..]);
        Some(Map { start, end, offset, is_executable, path })
    });
    parsed.collect()
}

/// Ranges, neighbours merged.
pub(crate) fn merged<'a>(maps: impl Iterator<Item = &'a Map<'a>>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for map in maps {
        match merged.last_mut() {
            Some(last) if last.1 == map.start => last.1 = map.end,
            _ => merged.push((map.start, map.end)),
        }
    }
    merged
}

/// Executable parts of ELF files. Managed assemblies are mapped too, some of them executable, and are none; in a program
/// of a single file they are parts of that, mapped elsewhere.
pub(crate) fn libraries(maps: &[Map<'_>]) -> Vec<Mapped> {
    /// The segments of one ELF file lie as in the file, but for some pages.
    const SHIFT: u64 = 1 << 20;
    let mut found: HashMap<&str, Mapped> = HashMap::new();
    for map in maps.iter().filter(|map| map.is_executable && is_library(map.path)) {
        let first = maps.iter().find(|other| other.path == map.path).map_or(map.start, |first| first.start);
        if map.start.wrapping_sub(map.offset).wrapping_sub(first) > SHIFT {
            continue;
        }
        let new = Mapped { path: map.path.to_owned(), base: first, start: map.start, end: map.end };
        let known = found.entry(map.path).or_insert(new);
        known.end = known.end.max(map.end);
    }
    let mut libraries: Vec<Mapped> = found.into_values().collect();
    libraries.sort_by_key(|module| module.start);
    libraries
}

fn is_library(path: &str) -> bool {
    path == "[vdso]" || is_file(path) && !path.ends_with(".dll")
}

fn is_file(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("/memfd:")
}

/// Code that was mapped from files that are no libraries, sorted.
pub(crate) fn images(maps: &[Map<'_>], libraries: &[Mapped]) -> Vec<(u64, u64)> {
    let in_library = |map: &Map<'_>| libraries.iter().any(|module| module.contains(map.start));
    merged(maps.iter().filter(|map| map.is_executable && is_file(map.path) && !in_library(map)))
}

/// Executable parts of assemblies, whose headers are in the mapping before that begins with the file: code may be in the file's first page too.
pub(crate) fn assemblies(maps: &[Map<'_>]) -> Vec<Mapped> {
    let mut base = None;
    let mut found = Vec::new();
    for map in maps.iter().filter(|map| map.path.ends_with(".dll")) {
        if map.offset == 0 && !map.is_executable {
            base = Some((map.path, map.start));
        }
        if map.is_executable
            && let Some((path, base)) = base.filter(|(path, _)| *path == map.path)
        {
            found.push(Mapped { path: path.to_owned(), base, start: map.start, end: map.end });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0000-55e0000 r--p 00000000 fe:00 1 /usr/bin/dotnet
55e0000-55f0000 r-xp 0000f000 fe:00 1 /usr/bin/dotnet
6600000-6610000 r-xp 00100000 fe:00 1 /usr/bin/dotnet
7000000-7100000 r-xp 00000000 00:01 9 /memfd:doublemapper (deleted)
7100000-7200000 r-xp 00000000 fe:00 2 /opt/System.Private.CoreLib.dll
8000000-8100000 rw-p 00000000 00:00 0 [stack]
9000000-9010000 r-xp 00000000 00:00 0 [vdso]
broken line
";

    #[test]
    fn libraries_are_elf_files_and_the_vdso() {
        let maps = parse(MAPS);
        assert_eq!(maps.len(), 7);
        let libraries = libraries(&maps);
        let found: Vec<_> = libraries.iter().map(|module| (module.path.as_str(), module.base, module.start)).collect();
        assert_eq!(found, [("/usr/bin/dotnet", 0x55d_0000, 0x55e_0000), ("[vdso]", 0x900_0000, 0x900_0000)]);
        let code = merged(maps.iter().filter(|map| map.is_executable));
        let expected =
            [(0x55e_0000, 0x55f_0000), (0x660_0000, 0x661_0000), (0x700_0000, 0x720_0000), (0x900_0000, 0x901_0000)];
        assert_eq!(code, expected);
        let found = assemblies(&parse(
            "8000-9000 r--p 00000000 fe:00 3 /a.dll\n9000-a000 r-xp 00000000 fe:00 3 /a.dll\nb000-c000 r-xp 0001000 fe:00 4 /b.dll",
        ));
        let path = "/a.dll".to_owned();
        assert_eq!(
            found,
            [Mapped { path, base: 0x8000, start: 0x9000, end: 0xa000 }],
            "of the other one the begin is not there"
        );
        let images = images(&maps, &libraries);
        assert_eq!(images, [(0x660_0000, 0x661_0000), (0x710_0000, 0x720_0000)], "also those within a single file");
    }
}
