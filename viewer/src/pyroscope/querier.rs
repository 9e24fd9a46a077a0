//! What questions are put to, and where they wait for it.

use std::sync::Arc;

use super::error::QueryError;
use crate::queries::{NotRun, Queries};
use crate::store::Store;

/// What questions are put to.
#[derive(Clone, Debug)]
pub(super) struct Querier {
    /// What is asked.
    pub(super) store: Arc<Store>,
    /// How many ask at once.
    pub(super) queries: Queries,
}

/// Asks the store on a thread that may wait.
pub(super) async fn on_pool<T: Send + 'static>(
    Querier { store, queries }: Querier,
    work: impl FnOnce(&Store) -> Result<T, QueryError> + Send + 'static,
) -> Result<T, QueryError> {
    queries.run(move || work(&store)).await.unwrap_or_else(|error| match error {
        NotRun::Busy(_) => Err(QueryError::unavailable(error.to_string())),
        NotRun::Failed(reason) => Err(QueryError::failed(reason)),
    })
}
