//! `perftools.profiles.Profile`, the format that `go tool pprof` reads.

/// A profile: samples over a table of locations, functions and strings.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Profile {
    /// What each sample's values mean, in order.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Binaries; may be empty.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Places in code that samples refer to by id.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions that locations refer to by id.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// Every string, once; entry 0 is "".
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// Regular expression of frames to drop (string index).
    #[prost(int64, tag = "7")]
    pub drop_frames: i64,
    /// Regular expression of frames to keep (string index).
    #[prost(int64, tag = "8")]
    pub keep_frames: i64,
    /// Start, nanoseconds since the epoch.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// Length in nanoseconds.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What a period counts; servers store a profile without it as a type nobody asks for.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// Units of `period_type` between two samples.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Free text (string indices).
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The sample type to show first (string index).
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// A kind of value and its unit, both string indices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct ValueType {
    /// For example `cpu`.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// For example `nanoseconds`.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack with its values and labels.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Sample {
    /// Location ids, leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One value for each of the profile's sample types.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Labels of this sample.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label: a string value, or a number with a unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Label {
    /// Name (string index).
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Value (string index), 0 for a numeric label.
    #[prost(int64, tag = "2")]
    pub str: i64,
    /// Numeric value.
    #[prost(int64, tag = "3")]
    pub num: i64,
    /// Unit of `num` (string index).
    #[prost(int64, tag = "4")]
    pub num_unit: i64,
}

/// A binary in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Mapping {
    /// Unique, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// Address after the last.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Offset in the file.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// File (string index).
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Build id (string index).
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Function names are known.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// File names are known.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Line numbers are known.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// Inlined frames are known.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// A place in code.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Location {
    /// Unique, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Mapping id, 0 for none.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// Instruction address, 0 if lines say it all.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Innermost inlined function first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
    /// Folded by the linker with others.
    #[prost(bool, tag = "5")]
    pub is_folded: bool,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Line {
    /// Function id.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Line, from 1.
    #[prost(int64, tag = "2")]
    pub line: i64,
    /// Column, from 1.
    #[prost(int64, tag = "3")]
    pub column: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Function {
    /// Unique, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name for people (string index).
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Name for the system, such as a mangled one (string index).
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Source file (string index).
    #[prost(int64, tag = "4")]
    pub filename: i64,
    /// First line of the function.
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}
