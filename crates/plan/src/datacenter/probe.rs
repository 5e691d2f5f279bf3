//! Probes of the containers of a node.

use k8s_openapi::{
    api::core::v1::{HTTPGetAction, Probe, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};

/// The longest time between two probes of a container, in seconds.
///
/// A shorter one notices sooner that a node is ready, and asks more often. A node whose probes are refused at once is restarted
/// after the same time as before; one whose probes are answered late, or not at all, is restarted later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePeriod(i32);

impl ProbePeriod {
    /// The period that applies where no other one was set, in seconds.
    pub const DEFAULT_SECONDS: u8 = 10;

    /// A period of so many seconds.
    pub fn from_seconds(seconds: std::num::NonZeroU8) -> Self {
        Self(seconds.get().into())
    }

    /// A GET of `path`.
    pub(super) fn http(self, path: &str, port: i32, limits: Limits) -> Probe {
        let get = HTTPGetAction { path: Some(path.into()), port: IntOrString::Int(port), ..HTTPGetAction::default() };
        Probe { http_get: Some(get), ..self.within(limits) }
    }

    /// A connection to `port`.
    pub(super) fn tcp(self, port: i32, limits: Limits) -> Probe {
        Probe { tcp_socket: connect(port), ..self.within(limits) }
    }

    /// A connection to `port`, with the limits that the API server sets by itself where the period is the default one.
    pub(super) fn tcp_with_defaults(self, port: i32) -> Probe {
        const API_SERVER: Limits = Limits { failures: 3, period: 10, timeout: 1 };
        if self.0 >= API_SERVER.period {
            return Probe { tcp_socket: connect(port), ..Probe::default() };
        }
        self.tcp(port, API_SERVER)
    }

    fn within(self, Limits { failures, period, timeout }: Limits) -> Probe {
        let shorter = period.min(self.0);
        // A container that a single failure makes unready is so at any period; others have as much time as before.
        let failures = if failures == 1 { 1 } else { (failures * period + shorter - 1) / shorter };
        Probe {
            failure_threshold: Some(failures),
            period_seconds: Some(shorter),
            timeout_seconds: Some(timeout),
            ..Probe::default()
        }
    }
}

impl Default for ProbePeriod {
    fn default() -> Self {
        Self(Self::DEFAULT_SECONDS.into())
    }
}

/// The limits of a probe at the default period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How many failures in a row count.
    pub(super) failures: i32,
    /// Seconds between two probes.
    pub(super) period: i32,
    /// Seconds after which a probe without an answer has failed.
    pub(super) timeout: i32,
}

fn connect(port: i32) -> Option<TCPSocketAction> {
    Some(TCPSocketAction { port: IntOrString::Int(port), host: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_period_leaves_the_time_until_a_restart_as_it_is() {
        let second = ProbePeriod(1);
        for (limits, expected) in [
            (Limits { failures: 40, period: 10, timeout: 30 }, [400, 1, 30]),
            (Limits { failures: 12, period: 10, timeout: 10 }, [120, 1, 10]),
            (Limits { failures: 1, period: 5, timeout: 30 }, [1, 1, 30]),
        ] {
            let Probe { failure_threshold, period_seconds, timeout_seconds, .. } = second.http("/", 1, limits);
            assert_eq!([failure_threshold, period_seconds, timeout_seconds], expected.map(Some), "{limits:?}");
        }
        assert_eq!(second.tcp_with_defaults(1).period_seconds, Some(1));
    }

    #[test]
    fn the_default_period_changes_no_limit() {
        let limits = Limits { failures: 1, period: 5, timeout: 30 };
        let probe = ProbePeriod::default().tcp(1, limits);
        assert_eq!([probe.failure_threshold, probe.period_seconds, probe.timeout_seconds], [1, 5, 30].map(Some));
        assert_eq!(ProbePeriod::default().tcp_with_defaults(1).period_seconds, None);
    }
}
