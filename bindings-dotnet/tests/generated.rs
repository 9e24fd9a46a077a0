//! `Native.g.cs` is what the interface says. `UPDATE=1 cargo test -p pyroscope-otel-dotnet` writes it.

use interoptopus::lang::meta::FileEmission;
use interoptopus_csharp::RustLibrary;
use interoptopus_csharp::config::HeaderConfig;
use interoptopus_csharp::dispatch::Dispatch;
use interoptopus_csharp::output::Target;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Pyroscope.OpenTelemetry/Interop/Native.g.cs");

#[test]
fn the_generated_interface_is_up_to_date() {
    let output = RustLibrary::builder(spanprof::inventory())
        .dll_name("spanprof")
        .dispatch(Dispatch::custom(|item, _| match item.emission {
            FileEmission::Common | FileEmission::Default | FileEmission::CustomModule(_) => {
                Target::new("Native.g.cs", "Pyroscope.Interop")
            }
        }))
        .headers(HeaderConfig { emit_version: false })
        .build()
        .process()
        .expect("an inventory that C# can be written of");
    let text = as_ours(output.buffer("Native.g.cs").expect("the one file that was asked for"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(FILE, &text).expect(FILE);
    }
    let known = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(known == text, "{FILE} is out of date: UPDATE=1 cargo test -p pyroscope-otel-dotnet writes it");
}

/// What the generator has no option for. Nothing generated is part of the package's interface: its types begin at the
/// first column, or right behind the brace that ends the one before. And what is called a few times in a process's life
/// is to be compiled quickly, not well.
fn as_ours(text: &str) -> String {
    let lines = text.lines().filter(|line| line.trim() != "[MethodImpl(MethodImplOptions.AggressiveOptimization)]");
    let lines = lines.map(|line| {
        let line = line.strip_prefix("public ").map_or_else(|| line.to_owned(), |rest| format!("internal {rest}"));
        match line.strip_prefix("}public ") {
            Some(rest) => format!("}}internal {rest}"),
            None => line,
        }
    });
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}
