//! What holds for all datacenters of an operator.

/// The longest time between two probes of a container, in seconds.
///
/// A shorter one notices sooner that a node is ready, and asks more often. A node whose probes are refused at once is restarted
/// after the same time as before; one whose probes are answered late, or not at all, is restarted later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePeriod(pub(crate) i32);

impl ProbePeriod {
    /// The period that applies where no other one was set, in seconds.
    pub const DEFAULT_SECONDS: u8 = 10;

    /// A period of so many seconds.
    pub fn from_seconds(seconds: std::num::NonZeroU8) -> Self {
        Self(seconds.get().into())
    }
}

impl Default for ProbePeriod {
    fn default() -> Self {
        Self(Self::DEFAULT_SECONDS.into())
    }
}

/// Features that can be switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// Certificates for CQL are made and renewed.
    pub automatic_tls_certificates: bool,
    /// New nodes wait until all nodes see each other up.
    pub bootstrap_synchronisation: bool,
}
