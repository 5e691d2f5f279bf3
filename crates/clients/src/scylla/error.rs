//! Calls that failed.

use std::time::Duration;

use thiserror::Error;

/// A call that failed. `call` says which, such as `GET /storage_service/operation_mode`.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the fields say what their names say")]
pub enum Error {
    /// Nobody listens, or not there.
    #[error("{call} cannot reach ScyllaDB at {address}")]
    Unreachable { call: String, address: String, source: std::io::Error },
    /// The connection broke.
    #[error("{call} was cut off")]
    Broken { call: String, source: hyper::Error },
    /// The request cannot be written down.
    #[error("{call} is no valid request")]
    Invalid { call: String, source: http::Error },
    /// No answer came in time.
    #[error("{call} got no answer within {time_limit:?}")]
    TimedOut { call: String, time_limit: Duration },
    /// ScyllaDB says no, in these words.
    #[error("{call} was answered with {status}: {message}")]
    Refused { call: String, status: http::StatusCode, message: String },
    /// The answer is longer than any that ScyllaDB gives.
    #[error("{call} was answered with more than {limit} bytes")]
    TooLong { call: String, limit: usize },
    /// The answer is not of the form that it has.
    #[error("{call} was answered with what is not expected there")]
    Unexpected { call: String, source: serde_json::Error },
}
