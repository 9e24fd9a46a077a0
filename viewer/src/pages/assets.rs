//! The files that pages load: in the binary, served from our own origin, as the content security policy demands.

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::routing::get;

const FILES: [(&str, &str, &str); 4] = [
    ("/assets/style.css", "text/css; charset=utf-8", include_str!("assets/style.css")),
    ("/assets/flame.js", "text/javascript; charset=utf-8", include_str!("assets/flame.js")),
    ("/assets/page.js", "text/javascript; charset=utf-8", include_str!("assets/page.js")),
    ("/assets/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

/// One route a file.
pub(super) fn routes() -> Router {
    FILES.into_iter().fold(Router::new(), |routes, (path, kind, text)| {
        // Asked for anew by each page, so that a newer spanprof on the same port never meets an old script.
        routes.route(path, get(move || async move { ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], text) }))
    })
}
