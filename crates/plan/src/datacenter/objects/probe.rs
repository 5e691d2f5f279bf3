//! Probes of the containers of a node.

use k8s_openapi::{
    api::core::v1::{HTTPGetAction, Probe, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::datacenter::model::settings::ProbePeriod;

impl ProbePeriod {
    /// Returns an HTTP probe of `path`.
    pub(crate) fn http(self, path: &str, port: i32, limits: Limits) -> Probe {
        let get = HTTPGetAction { path: Some(path.into()), port: IntOrString::Int(port), ..HTTPGetAction::default() };
        Probe { http_get: Some(get), ..self.within(limits) }
    }

    /// Returns a TCP probe of `port`.
    pub(crate) fn tcp(self, port: i32, limits: Limits) -> Probe {
        Probe { tcp_socket: connect(port), ..self.within(limits) }
    }

    /// Returns a TCP probe of `port` with the API server's default limits.
    pub(crate) fn tcp_with_defaults(self, port: i32) -> Probe {
        const API_SERVER: Limits = Limits { failures: 3, period: 10, timeout: 1 };
        if self.0 >= API_SERVER.period {
            return Probe { tcp_socket: connect(port), ..Probe::default() };
        }
        self.tcp(port, API_SERVER)
    }

    fn within(self, Limits { failures, period, timeout }: Limits) -> Probe {
        let shorter = period.min(self.0);
        // A threshold of one failure applies at any period; other thresholds rise, so that the time until they are
        // reached stays.
        let failures = if failures == 1 { 1 } else { (failures * period + shorter - 1) / shorter };
        Probe {
            failure_threshold: Some(failures),
            period_seconds: Some(shorter),
            timeout_seconds: Some(timeout),
            ..Probe::default()
        }
    }
}

/// The limits of a probe at the default period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The failure threshold.
    pub(crate) failures: i32,
    /// Seconds between two probes.
    pub(crate) period: i32,
    /// Seconds until a probe times out.
    pub(crate) timeout: i32,
}

pub(crate) fn connect(port: i32) -> Option<TCPSocketAction> {
    Some(TCPSocketAction { port: IntOrString::Int(port), host: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_period_does_not_change_the_time_until_a_restart() {
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
    fn default_period_changes_no_limit() {
        let limits = Limits { failures: 1, period: 5, timeout: 30 };
        let probe = ProbePeriod::default().tcp(1, limits);
        assert_eq!([probe.failure_threshold, probe.period_seconds, probe.timeout_seconds], [1, 5, 30].map(Some));
        assert_eq!(ProbePeriod::default().tcp_with_defaults(1).period_seconds, None);
    }
}
