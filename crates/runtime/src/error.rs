//! What can go wrong between a controller and the API server, in words for people and for metrics.

use std::{error::Error as StdError, sync::Arc};

use kube::core::Status;

use crate::{fence::NotLeading, queue::ObjectKey, store::Unreadable};

/// How much of what the API server says is kept, in characters.
const LONGEST: usize = 2048;

/// Why an object could not be brought to where it should be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// This process does not lead.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// An object that is needed cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Arc<Unreadable>),
    /// The API server did not answer, so the request may or may not have been carried out.
    #[error("{doing}: no answer from the API server")]
    NoAnswer {
        /// What was asked for.
        doing: String,
        /// Why there was no answer.
        #[source]
        source: Arc<kube::Error>,
    },
    /// The object has changed, or has been replaced by another of its name, since it was looked at.
    #[error("{doing}: it has changed meanwhile")]
    Conflict {
        /// What was asked for.
        doing: String,
    },
    /// The API server does not want it.
    #[error("{doing}: the API server says: {}", status.message)]
    Refused {
        /// What was asked for.
        doing: String,
        /// The API server's own words.
        status: Box<Status>,
    },
    /// The name is taken by an object that is not ours.
    #[error("{kind} {key} is there already, and {remedy}")]
    Taken {
        /// The kind of the object.
        kind: String,
        /// The name that is taken.
        key: ObjectKey,
        /// Whose it is, and what to do.
        remedy: String,
    },
    /// An object of ours is there and has not the labels by which it is found: another program takes them away.
    #[error(
        "{named} is there, but it has not the labels by which it is found: give it those that the others have, and let no other \
         program take them away"
    )]
    NotFoundByLabels {
        /// The object.
        named: String,
    },
    /// What was given makes no sense.
    #[error("{message}")]
    Invalid {
        /// One word.
        reason: &'static str,
        /// What is wrong, where, and what to do.
        message: String,
    },
    /// A fault of this program.
    #[error("the operator failed with an internal error: {message}. It tries again; please report this")]
    Internal {
        /// The text of the panic.
        message: String,
    },
    /// A value that cannot be written as JSON.
    #[error("{doing}: it cannot be written as JSON")]
    NotJson {
        /// What was to be written.
        doing: String,
        /// Why not.
        #[source]
        source: Arc<serde_json::Error>,
    },
}

impl Error {
    /// What came of a request.
    pub(crate) fn of(doing: impl FnOnce() -> String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.is_conflict() && !status.is_already_exists() => {
                Self::Conflict { doing: doing() }
            }
            kube::Error::Api(mut status) => {
                // Webhooks write it.
                status.message = messina_text::line(&status.message, LONGEST);
                Self::Refused { doing: doing(), status }
            }
            kube::Error::Service(source) if source.is::<NotLeading>() => Self::NotLeading(NotLeading),
            source => Self::NoAnswer { doing: doing(), source: Arc::new(source) },
        }
    }

    /// One word: the condition's reason, the event's reason and the metric's label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotLeading(_) => "NotLeading",
            Self::Unreadable(_) => "Unreadable",
            Self::NoAnswer { .. } => "NoAnswer",
            Self::Conflict { .. } => "Conflict",
            Self::Refused { status, .. } if status.is_forbidden() => "Forbidden",
            Self::Refused { status, .. } if status.code == 422 || status.code == 400 => "Rejected",
            Self::Refused { .. } => "Refused",
            Self::Taken { .. } => "NameTaken",
            Self::NotFoundByLabels { .. } => "NotFoundByLabels",
            Self::Invalid { reason, .. } => reason,
            Self::Internal { .. } => "InternalError",
            Self::NotJson { .. } => "NotJson",
        }
    }

    /// Whether it is no use to try again before something changes.
    pub fn needs_a_change(&self) -> bool {
        matches!(self, Self::NotLeading(_) | Self::Unreadable(_) | Self::Invalid { .. } | Self::NotJson { .. })
    }

    /// Whether it is told elsewhere, for all at once, or is nothing to tell.
    pub(crate) fn is_told(&self) -> bool {
        match self {
            Self::NotLeading(_) | Self::Conflict { .. } => true,
            Self::NoAnswer { source, .. } => crate::contact::is_told(source.as_ref()),
            Self::Refused { status, .. } => status.code == 401,
            _ => false,
        }
    }

    /// Whether it is not known what the object is like now.
    pub(crate) fn leaves_doubt(&self) -> bool {
        matches!(self, Self::NoAnswer { .. } | Self::Conflict { .. })
    }

    /// Whether the object was not even harmed: somebody was faster, and it is simply looked at again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

/// An error with all its causes, in one line.
pub fn chain(error: &dyn StdError) -> String {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some errors say what their cause says.
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
    fn what_the_api_server_says_is_one_line_of_bounded_length() {
        let said = format!("denied:\u{1b}[2J\nspec\u{202e}{}", "x".repeat(10_000));
        let status = Status { message: said, code: 422, ..Status::default() };
        let error = Error::of(|| "creating Service a/b".into(), kube::Error::Api(Box::new(status))).to_string();
        assert!(error.starts_with("creating Service a/b: the API server says: denied: specxxx"), "{error}");
        assert!(error.ends_with("xxx...") && error.len() < LONGEST + 100, "{}", error.len());
    }
}
