//! Pyroscope's query API, so that Grafana's data source, Profiles Drilldown and profilecli find here what they find at a
//! Pyroscope server: `querier.v1.QuerierService` as Connect unary in protobuf and JSON and by gRPC-web, and the older render paths.

mod dot;
mod error;
mod framed;
mod heatmap;
mod heatmap_messages;
mod json;
mod labels;
mod messages;
mod points;
mod points_messages;
mod querier;
mod render;
mod selector;
mod stacktraces;
mod tree;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;

use error::QueryError;
use framed::Framed;
use querier::{Querier, on_pool};

use crate::budget::{Budget, Held};
use crate::http::body::{self, Format};
use crate::queries::Queries;
use crate::store::Store;

const PROTOBUF: &[&str] = &["application/proto", "application/protobuf", "application/x-protobuf"];
/// The largest question; those of Grafana have less than a thousand bytes.
const LONGEST: usize = 256 << 10;
/// The most values of one in JSON, each of which may take some 600 bytes when it is read.
const MOST_VALUES: usize = 10_000;

/// What the bodies of all questions take their bytes from: each as it was sent, and unpacked.
pub(crate) fn bodies(bytes: usize) -> Arc<Budget> {
    Budget::new(bytes, 2 * LONGEST + 1)
}

/// The service's methods and the render paths.
pub(crate) fn routes(store: Arc<Store>, queries: Queries, bodies: &Arc<Budget>) -> Router {
    let bodies = Arc::clone(bodies);
    let call = move |querier, method, headers, body| async move { call(querier, method, headers, body, &bodies).await };
    Router::new()
        .route("/querier.v1.QuerierService/{method}", post(call))
        .route("/pyroscope/label-values", get(render::label_values))
        .route("/pyroscope/render", get(render::render))
        .route("/pyroscope/render-diff", get(render::render_diff))
        .with_state(Querier { store, queries })
}

async fn call(
    State(querier): State<Querier>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Body,
    bodies: &Arc<Budget>,
) -> Response {
    // What clients say that read names such as http.route.
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    let dots = accept.replace(' ', "").contains("allow-utf8-labelnames=true");
    let framed = Framed::of(&headers);
    let refused = |error: QueryError| match framed {
        Some(framed) => framed.answer(Err(error)),
        None => error.into_response(),
    };
    let question = match Question::read(headers, framed, body, bodies).await {
        Ok(question) => question,
        Err(error) => return refused(error),
    };
    let answered = match method.as_str() {
        "ProfileTypes" => question.answer(querier, |store, request| labels::profile_types(store, &request)).await,
        "LabelNames" => question.answer(querier, move |store, request| labels::names(store, &request, dots)).await,
        "LabelValues" => question.answer(querier, |store, request| labels::values(store, &request)).await,
        "Series" => question.answer(querier, move |store, request| labels::series(store, &request, dots)).await,
        "SelectMergeStacktraces" => {
            question.answer(querier, |store, request| stacktraces::merge(store, &request)).await
        }
        "SelectMergeSpanProfile" => question.answer(querier, stacktraces::merge_spans).await,
        "SelectMergeProfile" => {
            let merge = |store: &Store, request| stacktraces::merge_profile(store, request).map(json::PlainProfile);
            question.answer(querier, merge).await
        }
        "SelectSeries" => question.answer(querier, |store, request| points::select(store, &request)).await,
        "Diff" => question.answer(querier, |store, request| stacktraces::diff(store, &request)).await,
        "GetProfileStats" => {
            question.answer(querier, |store, _: messages::GetProfileStatsRequest| labels::stats(store)).await
        }
        "SelectHeatmap" => question.answer(querier, |store, request| heatmap::select(store, &request)).await,
        "AnalyzeQuery" => {
            let none = |_: &Store, _: messages::AnalyzeQueryRequest| Ok(messages::AnalyzeQueryResponse {});
            question.answer(querier, none).await
        }
        _ => return (StatusCode::NOT_FOUND, format!("there is no method {method:?}\n")).into_response(),
    };
    answered.unwrap_or_else(refused)
}

/// A request that was read, and the format that it is answered in.
struct Question {
    format: Format,
    /// Whether both are in frames.
    framed: Option<Framed>,
    headers: HeaderMap,
    bytes: Vec<u8>,
    held: Held,
}

impl Question {
    async fn read(
        headers: HeaderMap,
        framed: Option<Framed>,
        body: Body,
        bodies: &Arc<Budget>,
    ) -> Result<Self, QueryError> {
        // Not those of uploads, so that neither keeps the other out.
        let (bytes, held) = body::read(body, bodies, None).await?;
        let format = match framed {
            Some(framed) => framed.format,
            None => Format::of(&headers, PROTOBUF)?,
        };
        Ok(Self { format, framed, headers, bytes, held })
    }

    /// Decodes the request, asks on a thread that may wait, encodes the answer.
    async fn answer<Q, A>(
        mut self,
        querier: Querier,
        ask: impl FnOnce(&Store, Q) -> Result<A, QueryError> + Send + 'static,
    ) -> Result<Response, QueryError>
    where
        Q: prost::Message + Default + DeserializeOwned + Send + 'static,
        A: Answer + Send + 'static,
    {
        on_pool(querier, move |store| {
            if self.framed.is_some() {
                (self.bytes, self.headers) = Framed::open(&self.bytes, &self.headers)?;
            }
            let bytes = body::unpack_short(self.bytes, &self.headers, LONGEST, &mut self.held)?;
            let request: Q = match self.format {
                Format::Protobuf => Q::decode(bytes.as_slice())
                    .map_err(|error| QueryError::invalid(format!("the request does not decode: {error}")))?,
                Format::Json => decode_json(&bytes)?,
            };
            let answer = ask(store, request)?;
            Ok(match (self.framed, self.format) {
                (Some(framed), Format::Protobuf) => framed.answer(Ok(answer.protobuf())),
                (Some(framed), Format::Json) => framed.answer(answer.json().map(String::into_bytes)),
                (None, Format::Protobuf) => ([(CONTENT_TYPE, "application/proto")], answer.protobuf()).into_response(),
                (None, Format::Json) => ([(CONTENT_TYPE, "application/json")], answer.json()?).into_response(),
            })
        })
        .await
    }
}

/// A message that is sent in either format.
trait Answer {
    fn protobuf(&self) -> Vec<u8>;
    fn json(&self) -> Result<String, QueryError>;
}

impl<M: prost::Message + Serialize> Answer for M {
    fn protobuf(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn json(&self) -> Result<String, QueryError> {
        serde_json::to_string(self).map_err(QueryError::failed)
    }
}

impl Answer for json::PlainProfile {
    fn protobuf(&self) -> Vec<u8> {
        prost::Message::encode_to_vec(&self.0)
    }

    fn json(&self) -> Result<String, QueryError> {
        serde_json::to_string(&json::InJson(&self.0)).map_err(QueryError::failed)
    }
}

fn decode_json<Q: DeserializeOwned + Default>(bytes: &[u8]) -> Result<Q, QueryError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Q::default());
    }
    let invalid = |error: serde_json::Error| QueryError::invalid(format!("the request is not understood: {error}"));
    if bytes.iter().filter(|byte| b",:[{".contains(byte)).count() > MOST_VALUES {
        return Err(QueryError::invalid(format!("the request has more than {MOST_VALUES} values")));
    }
    let mut value: serde_json::Value = serde_json::from_slice(bytes).map_err(invalid)?;
    json::without_nulls(&mut value);
    serde_json::from_value(value).map_err(invalid)
}
