use std::fmt;

use http::StatusCode;

/// The status code of a gRPC call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of gRPC")]
pub enum Code {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    /// Returns the code with this number: none for 0, which is success, and `Unknown` for an unknown number.
    pub(super) fn numbered(number: &[u8]) -> Option<Self> {
        Some(match number {
            b"0" => return None,
            b"1" => Self::Cancelled,
            b"3" => Self::InvalidArgument,
            b"4" => Self::DeadlineExceeded,
            b"5" => Self::NotFound,
            b"6" => Self::AlreadyExists,
            b"7" => Self::PermissionDenied,
            b"8" => Self::ResourceExhausted,
            b"9" => Self::FailedPrecondition,
            b"10" => Self::Aborted,
            b"11" => Self::OutOfRange,
            b"12" => Self::Unimplemented,
            b"13" => Self::Internal,
            b"14" => Self::Unavailable,
            b"15" => Self::DataLoss,
            b"16" => Self::Unauthenticated,
            _ => Self::Unknown,
        })
    }

    /// Returns the code that gRPC defines for the HTTP status of a response without a gRPC status, such as that of a
    /// proxy.
    pub(super) fn of_http(status: StatusCode) -> Self {
        match status.as_u16() {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502 | 503 | 504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// Whether a retry of the call would return the same code.
    pub(super) fn is_permanent(self) -> bool {
        matches!(
            self,
            Self::InvalidArgument
                | Self::NotFound
                | Self::AlreadyExists
                | Self::PermissionDenied
                | Self::OutOfRange
                | Self::Unimplemented
                | Self::Unauthenticated
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}
