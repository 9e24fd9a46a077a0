//! The program `spanprof`.

#![deny(unsafe_code)]

#[cfg(target_env = "gnu")]
mod allocator;

fn main() -> std::process::ExitCode {
    #[cfg(target_env = "gnu")]
    allocator::give_back();
    spanprof::run()
}
