//! `push.v1.PusherService/Push`, the request that carries profiles to a Pyroscope server.

/// A request of one or more series; the profiler sends one series a request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PushRequest {
    /// The series and their profiles.
    #[prost(message, repeated, tag = "1")]
    pub series: Vec<RawProfileSeries>,
}

/// Profiles that share one set of series labels.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RawProfileSeries {
    /// `__name__` and `service_name` are required; at most 30 labels.
    #[prost(message, repeated, tag = "1")]
    pub labels: Vec<LabelPair>,
    /// The profiles.
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<RawSample>,
}

/// One label of a series.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Message)]
pub struct LabelPair {
    /// At most 1,024 characters.
    #[prost(string, tag = "1")]
    pub name: String,
    /// At most 2,048 characters.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// One pprof profile.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RawSample {
    /// An encoded [`Profile`](super::pprof::Profile), plain or gzip.
    #[prost(bytes = "vec", tag = "1")]
    pub raw_profile: Vec<u8>,
    /// An identifier of the profile, for logs; a UUID by convention.
    #[prost(string, tag = "2")]
    pub id: String,
}
