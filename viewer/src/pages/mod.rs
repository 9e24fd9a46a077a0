//! The pages.
use crate::show::Shown;
use axum::Router;
use std::sync::Arc;
pub(crate) fn routes(_shown: Arc<Shown>) -> Router {
    Router::new()
}
