//! Builds the C shim, and tells which Ruby this is for.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    rb_sys_env::activate()?;
    println!("cargo:rerun-if-changed=shim/guard.c");
    // Two words of thread-local storage, read in signal handlers: without initial-exec the first read may allocate.
    cc::Build::new()
        .file("shim/guard.c")
        .flag("-ftls-model=initial-exec")
        .flag("-Werror=implicit-function-declaration")
        .compile("pyroscope_guard");
    Ok(())
}
