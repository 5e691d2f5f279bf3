//! Reasons of conditions and events.

use std::fmt;

/// The reason of a condition or of an event: one word in CamelCase.
///
/// Users and alerts match on reasons, so each is declared once, by [`reasons!`](crate::reasons), with its meaning, and a page of the
/// documentation lists them all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason(&'static str);

impl Reason {
    /// For [`reasons!`](crate::reasons) alone: a reason that is made elsewhere is on no list.
    #[doc(hidden)]
    pub const fn declare(word: &'static str) -> Self {
        Self(word)
    }

    /// Returns the word.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.0)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, formatter)
    }
}

impl PartialEq<&str> for Reason {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.0.to_owned()
    }
}

/// Declares reasons: their documentation is their meaning, which the list `ALL` holds as well.
#[macro_export]
macro_rules! reasons {
    ($($(#[doc = $meaning:literal])+ $name:ident = $word:literal;)+) => {
        $($(#[doc = $meaning])+ pub const $name: $crate::Reason = $crate::Reason::declare($word);)+

        /// All reasons that are declared here, with their meanings.
        pub const ALL: &[($crate::Reason, &str)] = &[$(($name, concat!($($meaning),+))),+];
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn reasons_are_listed_with_their_meanings() {
        #[expect(unreachable_pub, reason = "the macro declares for other crates")]
        mod declared {
            crate::reasons! {
                /// The first one,
                /// in two lines.
                FIRST_ONE = "FirstOne";
                /// The second one.
                SECOND = "Second";
            }
        }
        assert_eq!(declared::ALL.len(), 2);
        assert_eq!(declared::ALL[0], (declared::FIRST_ONE, " The first one, in two lines."));
        assert_eq!(declared::SECOND, "Second");
        assert_eq!(format!("{:?} {:>8}", declared::SECOND, declared::SECOND), "\"Second\"   Second");
    }
}
