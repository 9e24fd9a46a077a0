//! The program `spanprof`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    spanprof::run()
}
