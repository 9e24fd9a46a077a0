//! Which functions come with a language or a library, as far as their file and name tell.

use crate::store::Function;

/// Pieces of paths where languages keep what comes with them and what was installed.
const PLACES: [&str; 12] = [
    "/lib/python",
    "/site-packages/",
    "/dist-packages/",
    "/lib/ruby/",
    "/gems/",
    "/node_modules/",
    "/pkg/mod/",
    "/vendor/golang.org/",
    "/.cargo/registry/",
    "/rustc/",
    "/usr/include/",
    ".jar/",
];
/// How files begin that are part of a runtime, or of the system.
const BEGINNINGS: [&str; 15] = [
    "<frozen ",
    "<internal:",
    "<built-in",
    "node:",
    "internal/deps/",
    "/usr/local/go/src/",
    "/usr/lib/",
    "/usr/lib64/",
    "/lib/",
    "/lib64/",
    "[kernel",
    "[vdso",
    "[vsyscall",
    "vmlinux",
    "linux-vdso",
];
/// How libraries begin that runtimes and systems consist of, by whatever path; what follows is no letter.
const LIBRARIES: [&str; 20] = [
    "libc",
    "libm",
    "libpthread",
    "libdl",
    "librt",
    "ld-linux",
    "ld-musl",
    "libstdc++",
    "libgcc_s",
    "libjvm",
    "libjava",
    "libpython",
    "libruby",
    "libcoreclr",
    "libclrjit",
    "libnode",
    "libuv",
    "libssl",
    "libcrypto",
    "libz",
];
/// How functions begin whose file is not known, or is an assembly.
const NAMESPACES: [&str; 3] = ["System.", "Microsoft.", "Interop."];
/// The same of C++ and Rust, in whatever file.
const NATIVE: [&str; 8] = ["std::", "__gnu_cxx::", "core::", "alloc::", "<std::", "<core::", "<alloc::", "__rust_"];
/// Functions by their whole name: those that start programs and threads, and what V8 says beside functions.
const NAMES: [&str; 11] = [
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "start_thread",
    "clone3",
    "__clone3",
    "(garbage collector)",
    "(program)",
    "Garbage Collection",
    "Node.js",
    "Non JS threads activity",
];
/// The first elements of the paths of Go's own packages. Those of all others are hosts, or a module that was never published.
const GO_PACKAGES: [&str; 51] = [
    "archive",
    "bufio",
    "builtin",
    "bytes",
    "cmp",
    "compress",
    "container",
    "context",
    "crypto",
    "database",
    "debug",
    "embed",
    "encoding",
    "errors",
    "expvar",
    "flag",
    "fmt",
    "go",
    "hash",
    "html",
    "image",
    "index",
    "internal",
    "io",
    "iter",
    "log",
    "maps",
    "math",
    "mime",
    "net",
    "os",
    "path",
    "plugin",
    "reflect",
    "regexp",
    "runtime",
    "slices",
    "sort",
    "strconv",
    "strings",
    "structs",
    "sync",
    "syscall",
    "testing",
    "text",
    "time",
    "unicode",
    "unique",
    "unsafe",
    "vendor",
    "weak",
];
/// How the classes begin that come with Java, its other languages and the frameworks that most services stand on.
const CLASSES: [&str; 48] = [
    "java.",
    "javax.",
    "jdk.",
    "sun.",
    "com.sun.",
    "jakarta.",
    "kotlin.",
    "kotlinx.",
    "scala.",
    "groovy.",
    "clojure.",
    "org.codehaus.groovy.",
    "org.springframework.",
    "org.apache.",
    "org.eclipse.jetty.",
    "org.glassfish.",
    "org.hibernate.",
    "org.jboss.",
    "org.slf4j.",
    "org.postgresql.",
    "org.mariadb.",
    "org.reactivestreams.",
    "org.aspectj.",
    "org.objectweb.",
    "com.fasterxml.",
    "com.google.common.",
    "com.google.protobuf.",
    "com.google.gson.",
    "com.google.inject.",
    "com.mysql.",
    "com.zaxxer.",
    "com.mongodb.",
    "com.squareup.",
    "ch.qos.logback.",
    "akka.",
    "reactor.",
    "io.grpc.",
    "io.ktor.",
    "io.lettuce.",
    "io.micrometer.",
    "io.micronaut.",
    "io.netty.",
    "io.opentelemetry.",
    "io.pyroscope.",
    "io.quarkus.",
    "io.undertow.",
    "io.vertx.",
    "okhttp3.",
];

/// Whether a function comes with the language or with a library, as far as its file and name tell.
pub(super) fn is_runtime(function: &Function) -> bool {
    let (name, file) = (&*function.name, &*function.file);
    PLACES.iter().any(|place| file.contains(place))
        || BEGINNINGS.iter().any(|beginning| file.starts_with(beginning))
        || NAMESPACES.iter().any(|namespace| name.starts_with(namespace))
        || NATIVE.iter().any(|namespace| name.starts_with(namespace))
        || NAMES.contains(&name)
        || is_library(file)
        || is_of_go(name, file)
        || is_of_java(name, file)
        || is_of_node(name, file)
}

/// `libc.so.6`, `libpython3.13.so.1.0`, `libm-2.36.so`.
fn is_library(file: &str) -> bool {
    let file = file.rsplit('/').next().unwrap_or(file);
    let is_one = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphabetic()) && rest.contains(".so");
    LIBRARIES.iter().any(|library| file.strip_prefix(library).is_some_and(is_one))
}

/// Of the version of a module, or of a package of Go's own: `-trimpath` leaves nothing else of their paths.
fn is_of_go(name: &str, file: &str) -> bool {
    if !file.ends_with(".go") && !file.ends_with(".s") {
        return false;
    }
    let is_version = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let package = name.split(['/', '.']).next().unwrap_or("");
    file.split("@v").skip(1).any(is_version) || GO_PACKAGES.contains(&package)
}

/// By its class, `java.util.HashMap.get` or `java/util/HashMap.get`.
fn is_of_java(name: &str, file: &str) -> bool {
    let is_known = [".java", ".kt", ".scala", ".groovy", ".clj"].iter().any(|ending| file.ends_with(ending));
    if !is_known && !file.is_empty() {
        return false;
    }
    let begins = |class: &str| {
        let same = |(a, b): (u8, u8)| a == b || (a == b'/' && b == b'.');
        name.len() >= class.len() && name.bytes().zip(class.bytes()).all(same)
    };
    CLASSES.iter().any(|class| begins(class))
}

/// `:update:0`, as Grafana's client writes what has no file, and what V8 says beside functions.
fn is_of_node(name: &str, file: &str) -> bool {
    file.is_empty() && ((name.starts_with(':') && name.ends_with(":0")) || name.starts_with("node:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_folded(name: &str, file: &str) -> bool {
        is_runtime(&Function { name: name.into(), file: file.into() })
    }

    #[test]
    fn what_comes_with_a_language_or_a_library_is_known() {
        for (name, file) in [
            ("run", "/opt/python/lib/python3.12/threading.py"),
            ("a", "/usr/lib/ruby/3.3.0/json/common.rb"),
            ("a", "/var/bundle/gems/rack-3.1/lib/rack.rb"),
            ("loop", "<internal:kernel>"),
            ("System.Threading.Thread.StartCallback()", ""),
            ("Microsoft.AspNetCore.Server.Kestrel.X()", "Kestrel.dll"),
            ("read", "node:fs"),
            ("listOnTimeout", "node:internal/timers"),
            ("handle", "/app/node_modules/express/lib/router.js"),
            ("(garbage collector)", ""),
            (":Garbage Collection:0", ""),
            (":digest:0", ""),
            ("node:internal/crypto/hash:digest:150", "node:internal/crypto/hash"),
            // As Go's compiler writes paths, and with -trimpath.
            ("runtime.mcall", "/usr/local/go/src/runtime/asm_amd64.s"),
            ("net/http.(*conn).serve", "/opt/hostedtoolcache/go/1.26.0/x64/src/net/http/server.go"),
            ("net/http.(*conn).serve", "net/http/server.go"),
            ("slices.SortFunc[...]", "slices/sort.go"),
            ("github.com/gin-gonic/gin.(*Engine).ServeHTTP", "github.com/gin-gonic/gin@v1.10.0/gin.go"),
            (
                "github.com/gin-gonic/gin.(*Engine).ServeHTTP",
                "/home/ci/go/pkg/mod/github.com/gin-gonic/gin@v1.10.0/gin.go",
            ),
            ("java.util.HashMap.get", "HashMap.java"),
            ("java/lang/Thread.run", ""),
            ("org/springframework/web/servlet/FrameworkServlet.service", ""),
            ("kotlinx.coroutines.DispatchedTask.run", "DispatchedTask.kt"),
            ("malloc", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
            ("malloc", "libc.so.6"),
            ("_PyEval_EvalFrameDefault", "/opt/py/lib/libpython3.13.so.1.0"),
            ("do_syscall_64", "[kernel.kallsyms]"),
            ("std::vector<int>::push_back", "/srv/shop/cart.cc"),
            ("<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend", ""),
            ("memchr::memmem::find", "/home/ci/.cargo/registry/src/index-1949cf8c6b5b557f/memchr-2.7.4/src/memmem.rs"),
        ] {
            assert!(is_folded(name, file), "{name} {file}");
        }
    }

    #[test]
    fn the_applications_own_frames_are_known_too() {
        for (name, file) in [
            ("cart", "/srv/shop/checkout.py"),
            ("Shop.Cart.Sum()", "Shop.dll"),
            ("main", ""),
            ("lib", "/srv/lib/a.rb"),
            ("main.burn", "/src/shop/main.go"),
            ("main.burn", "example.com/shop/main.go"),
            ("example.com/shop/cart.Sum", "example.com/shop/cart/cart.go"),
            ("shop/cart.Sum", "shop/cart/cart.go"),
            ("com.example.shop.Cart.sum", "Cart.java"),
            ("com/google/shop/Cart.sum", ""),
            ("javascript", ""),
            ("reactor.run", "/srv/shop/reactor.py"),
            ("handle", "/app/server.js"),
            ("./shop.mjs:burn:25", "/srv/shop/shop.mjs"),
            ("(idle)", ""),
            ("shop::cart::sum", "/srv/shop/src/cart.rs"),
            ("sum", "/opt/shop/libcart.so"),
            ("sum", "/opt/shop/libmath.so"),
        ] {
            assert!(!is_folded(name, file), "{name} {file}");
        }
    }
}
