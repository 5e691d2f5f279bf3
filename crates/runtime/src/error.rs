//! Errors of a reconcile: their messages for people, and their reasons for conditions, events and metrics.

use std::{error::Error as StdError, sync::Arc};

use kube::core::Status;
use messina_text::Reason;

use crate::{fence::NotLeading, queue::ObjectKey, reasons, store::Unreadable};

/// Longest part of the API server's message that is kept, in characters.
const LONGEST: usize = 2048;

/// Why an object could not be reconciled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// This process is not the leader.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// A required object is in the cluster, but does not match the type of its kind.
    #[error(transparent)]
    Unreadable(#[from] Arc<Unreadable>),
    /// The API server did not answer, so the request may or may not have been executed.
    #[error("{doing}: no answer from the API server")]
    NoAnswer {
        /// The operation.
        doing: String,
        /// Why there was no answer.
        #[source]
        source: Arc<kube::Error>,
    },
    /// The object was changed or recreated since it was observed.
    #[error("{doing}: conflict, the object has changed since it was observed")]
    Conflict {
        /// The operation.
        doing: String,
    },
    /// The API server refused the request.
    #[error("{doing}: the API server refused it: {}", status.message)]
    Refused {
        /// The operation.
        doing: String,
        /// The API server's response.
        status: Box<Status>,
    },
    /// An object that another owner has, or that has no owner, already has the name.
    #[error("{kind} {key} already exists and {remedy}")]
    NameTaken {
        /// The kind of the object.
        kind: String,
        /// The name that is taken.
        key: ObjectKey,
        /// Who owns it, and what the operator or the user does next.
        remedy: String,
    },
    /// An owned object exists without the labels that the watch selects: another program removes them.
    #[error(
        "{named} exists, but lacks the labels by which the operator selects it. Add the labels that the operator's other \
         objects have, and stop the program that removes them"
    )]
    NotFoundByLabels {
        /// The object.
        named: String,
    },
    /// The object's specification is invalid, or an object that it depends on is.
    #[error("{message}")]
    Invalid {
        /// The reason of the condition, in CamelCase.
        reason: Reason,
        /// Which field is wrong, why, and what the user has to do.
        message: String,
    },
    /// A panic in the operator.
    #[error("the operator failed with an internal error: {message}. It retries; please report this as a bug")]
    Internal {
        /// The text of the panic.
        message: String,
    },
    /// An object cannot be serialized as JSON.
    #[error("{doing}: the object cannot be serialized as JSON")]
    NotJson {
        /// The object.
        doing: String,
        /// Why not.
        #[source]
        source: Arc<serde_json::Error>,
    },
}

impl Error {
    /// Converts the error of a request. `doing` describes the operation.
    pub(crate) fn of(doing: impl FnOnce() -> String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.is_conflict() && !status.is_already_exists() => {
                Self::Conflict { doing: doing() }
            }
            kube::Error::Api(mut status) => {
                // Admission webhooks write this text.
                status.message = messina_text::line(&status.message, LONGEST);
                Self::Refused { doing: doing(), status }
            }
            kube::Error::Service(source) if source.is::<NotLeading>() => Self::NotLeading(NotLeading),
            source => Self::NoAnswer { doing: doing(), source: Arc::new(source) },
        }
    }

    /// Returns the reason in CamelCase, for the condition, the event and the metric's label.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotLeading(_) => reasons::NOT_LEADING,
            Self::Unreadable(_) => reasons::UNREADABLE,
            Self::NoAnswer { .. } => reasons::NO_ANSWER,
            Self::Conflict { .. } => reasons::CONFLICT,
            Self::Refused { status, .. } if status.is_forbidden() => reasons::FORBIDDEN,
            Self::Refused { status, .. } if status.code == 422 || status.code == 400 => reasons::REJECTED,
            Self::Refused { .. } => reasons::REFUSED,
            Self::NameTaken { .. } => reasons::NAME_TAKEN,
            Self::NotFoundByLabels { .. } => reasons::NOT_FOUND_BY_LABELS,
            Self::Invalid { reason, .. } => *reason,
            Self::Internal { .. } => reasons::INTERNAL_ERROR,
            Self::NotJson { .. } => reasons::NOT_JSON,
        }
    }

    /// Whether a retry is useless until an object changes.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::NotLeading(_) | Self::Unreadable(_) | Self::Invalid { .. } | Self::NotJson { .. })
    }

    /// Whether the error needs no warning for this object: it is reported once for the whole process, or a retry
    /// resolves it.
    pub(crate) fn is_reported_elsewhere(&self) -> bool {
        match self {
            Self::NotLeading(_) | Self::Conflict { .. } => true,
            Self::NoAnswer { source, .. } => crate::connectivity::is_reported_elsewhere(source.as_ref()),
            Self::Refused { status, .. } => status.code == 401,
            _ => false,
        }
    }

    /// Whether the current state of the object is unknown, so that it must be read before the next decision.
    pub(crate) fn leaves_state_unknown(&self) -> bool {
        matches!(self, Self::NoAnswer { .. } | Self::Conflict { .. })
    }

    /// Whether another writer was faster: nothing was written, and the object is reconciled again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

/// Formats an error with all its causes, in one line.
pub fn chain(error: &dyn StdError) -> String {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some errors include the text of their cause.
        if !texts.last().is_some_and(|last| last.ends_with(&text)) {
            texts.push(text);
        }
        cause = error.source();
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_the_api_server_is_one_line_of_bounded_length() {
        let message = format!("denied:\u{1b}[2J\nspec\u{202e}{}", "x".repeat(10_000));
        let status = Status { message, code: 422, ..Status::default() };
        let error = Error::of(|| "creating Service a/b".into(), kube::Error::Api(Box::new(status))).to_string();
        assert!(error.starts_with("creating Service a/b: the API server refused it: denied: specxxx"), "{error}");
        assert!(error.ends_with("xxx...") && error.len() < LONGEST + 100, "{}", error.len());
    }
}
