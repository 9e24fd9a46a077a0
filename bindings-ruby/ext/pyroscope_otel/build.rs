//! Builds the C shim against the headers of the Ruby in use, and tells which Ruby that is.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ruby = rb_sys_env::activate()?;
    println!("cargo:rerun-if-changed=shim/guard.c");
    let mut shim = cc::Build::new();
    for name in ["rubyarchhdrdir", "rubyhdrdir"] {
        if let Some(directory) = ruby.get(name) {
            shim.include(directory);
        }
    }
    // Eight bytes of thread-local storage, read in signal handlers: without initial-exec the first read may allocate.
    shim.file("shim/guard.c").flag("-ftls-model=initial-exec").warnings(true).compile("pyroscope_guard");
    Ok(())
}
