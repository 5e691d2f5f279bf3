//! Errors of calls.

use std::time::Duration;

use thiserror::Error;

/// A call that failed. `call` names it, such as `GET /storage_service/operation_mode`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields say what their names say")]
pub enum Error {
    /// Connecting failed.
    #[error("{call} cannot reach ScyllaDB at {address}")]
    Unreachable { call: String, address: String, source: std::io::Error },
    /// The connection broke.
    #[error("{call} failed because the connection broke")]
    Broken { call: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The request is invalid.
    #[error("{call} is not a valid request")]
    Invalid { call: String, source: http::Error },
    /// No response arrived in time.
    #[error("{call} got no response within {time_limit:?}")]
    TimedOut { call: String, time_limit: Duration },
    /// ScyllaDB returned an error.
    #[error("{call} returned {status}: {message}")]
    Refused { call: String, status: http::StatusCode, message: String },
    /// The response is too long.
    #[error("{call} returned more than {limit} bytes")]
    TooLong { call: String, limit: usize },
    /// The response cannot be decoded.
    #[error("{call} returned a response that cannot be decoded")]
    Unexpected { call: String, source: serde_json::Error },
}
