//! Builds the wrappers of libc's functions that can wait, where there are such: on x86-64.

fn main() {
    println!("cargo:rerun-if-changed=src/sample/waits/calls.c");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return;
    }
    cc::Build::new()
        .file("src/sample/waits/calls.c")
        // The first touch of a thread's block must not allocate; threads may end within a call.
        .flags(["-ftls-model=initial-exec", "-fno-omit-frame-pointer", "-fexceptions"])
        .flag_if_supported("-Wno-cast-function-type")
        .opt_level(2)
        .compile("spanprof_waits");
}
