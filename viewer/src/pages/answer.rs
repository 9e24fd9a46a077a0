//! A page as an answer, or an error as one.

use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use maud::html;

use super::layout::{self, Page};
use crate::show::ShowError;

/// The way from a page to where its links start: most lie beside the services, a trace's one deeper. So no page needs to
/// know under which address its tenant is shown.
pub(super) const BESIDE: &str = "./";
pub(super) const BELOW: &str = "../";

/// A page, or the error as one.
pub(super) fn answer(made: Result<Page, ShowError>, base: &str) -> Response {
    match made {
        Ok(page) => send(StatusCode::OK, &page, base),
        Err(error) => {
            let title = match error {
                ShowError::Bad(_) => "Not understood",
                ShowError::NotFound(_) => "Not found",
                ShowError::Busy(_) => "Too much at once",
                ShowError::TooLarge(_) => "Too large",
                ShowError::Failed(_) => "Failed",
            };
            let body = html! {
                h1 { (title) }
                p.state { (error.to_string()) }
                p { a href="./" { "See all services" } }
            };
            send(error.status(), &layout::page(title, &[], body), base)
        }
    }
}

fn send(status: StatusCode, page: &Page, base: &str) -> Response {
    (status, [(CONTENT_TYPE, "text/html; charset=utf-8"), (CACHE_CONTROL, "no-store")], page.html(base).into_string())
        .into_response()
}
