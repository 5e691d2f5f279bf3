//! Settings of the operator for all datacenters.

/// The maximum `periodSeconds` of probes.
///
/// With a shorter period, the kubelet notices sooner that a node is ready, and probes more often. A node whose probes
/// fail at once is restarted after the same time; one whose probes time out is restarted later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePeriod(pub(crate) i32);

impl ProbePeriod {
    /// The default period, in seconds.
    pub const DEFAULT_SECONDS: u8 = 10;

    /// Returns a period of this many seconds.
    pub fn from_seconds(seconds: std::num::NonZeroU8) -> Self {
        Self(seconds.get().into())
    }
}

impl Default for ProbePeriod {
    fn default() -> Self {
        Self(Self::DEFAULT_SECONDS.into())
    }
}

/// Feature gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// `AutomaticTLSCertificates`: the operator signs and renews certificates for CQL.
    pub automatic_tls_certificates: bool,
    /// `BootstrapSynchronisation`: new nodes wait until all nodes see each other up.
    pub bootstrap_synchronisation: bool,
}
