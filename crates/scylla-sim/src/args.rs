//! Arguments of the image's entrypoint and of ScyllaDB itself.

use std::{collections::BTreeMap, time::Duration};

use thiserror::Error;

/// Invalid arguments.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ArgumentError {
    /// An unknown option.
    #[error("error: unrecognised option '--{0}'\n\nTry --help.")]
    Unknown(String),
    /// A positional argument.
    #[error("error: too many positional options have been specified on the command line: '{0}'")]
    Positional(String),
    /// The value of the option is missing.
    #[error("error: the required argument for option '--{0}' is missing")]
    NoValue(String),
    /// The value of the option is invalid.
    #[error("error: the argument ('{value}') for option '--{option}' is invalid{}", hint(.expected))]
    Invalid {
        /// The option.
        option: String,
        /// The value.
        value: String,
        /// The valid values, if they are few.
        expected: &'static str,
    },
}

fn hint(expected: &str) -> String {
    if expected.is_empty() { String::new() } else { format!(" (choose from {expected})") }
}

/// The type of an option's value.
#[derive(Clone, Copy, PartialEq)]
enum ValueType {
    Value,
    /// `0` or `1`; `1` if it is omitted.
    Switch,
    Number,
    Address,
    Duration,
    HostId,
    Step,
}

use ValueType::{Address, Duration as Time, HostId, Number, Step, Switch, Value};

/// All known options, by name. Options of ScyllaDB without a meaning for the simulation are ignored.
const OPTIONS: &[(&str, ValueType)] = &[
    // The image's entrypoint.
    ("developer-mode", Switch),
    ("experimental-features", Value),
    ("seeds", Value),
    ("cpuset", Value),
    ("smp", Number),
    ("memory", Value),
    ("reserve-memory", Value),
    ("overprovisioned", Switch),
    ("io-setup", Switch),
    ("listen-address", Address),
    ("rpc-address", Address),
    ("broadcast-address", Address),
    ("broadcast-rpc-address", Address),
    ("api-address", Address),
    ("alternator-address", Address),
    ("alternator-port", Number),
    ("alternator-https-port", Number),
    ("alternator-write-isolation", Value),
    ("alternator-enforce-authorization", Switch),
    ("alternator-encryption-options", Value),
    ("disable-version-check", Switch),
    ("authenticator", Value),
    ("authorizer", Value),
    ("cluster-name", Value),
    ("endpoint-snitch", Value),
    ("replace-node-first-boot", HostId),
    ("dc", Value),
    ("rack", Value),
    // ScyllaDB.
    ("options-file", Value),
    ("workdir", Value),
    ("data-file-directories", Value),
    ("seed-provider-parameters", Value),
    ("prometheus-address", Address),
    ("prometheus-port", Number),
    ("api-port", Number),
    ("storage-port", Number),
    ("native-transport-port", Number),
    ("native-transport-port-ssl", Number),
    ("native-shard-aware-transport-port", Number),
    ("native-shard-aware-transport-port-ssl", Number),
    ("num-tokens", Number),
    ("start-native-transport", Switch),
    ("auto-bootstrap", Switch),
    ("enable-tablets", Switch),
    ("io-properties-file", Value),
    ("io-properties", Value),
    ("logger-log-level", Value),
    ("default-log-level", Value),
    ("log-to-stdout", Switch),
    ("log-to-syslog", Switch),
    ("blocked-reactor-notify-ms", Number),
    ("abort-on-lsa-bad-alloc", Switch),
    ("abort-on-seastar-bad-alloc", Switch),
    ("abort-on-ebadf", Switch),
    ("abort-on-internal-error", Switch),
    ("unsafe-bypass-fsync", Switch),
    ("kernel-page-cache", Switch),
    ("max-networking-io-control-blocks", Number),
    ("reactor-backend", Value),
    ("ring-delay-ms", Number),
    ("skip-wait-for-gossip-to-settle", Number),
    ("enable-repair-based-node-ops", Switch),
    ("ignore-dead-nodes-for-replace", Value),
    ("maintenance-mode", Switch),
    // The simulation.
    ("sim-rackdc-file", Value),
    ("sim-gossip-interval", Time),
    ("sim-failure-timeout", Time),
    ("sim-join-timeout", Time),
    ("sim-bootstrap-duration", Time),
    ("sim-decommission-duration", Time),
    ("sim-keyspace", Value),
    ("sim-release-version", Value),
    ("sim-alternator-user", Value),
    ("sim-crash-at", Step),
    ("sim-refuse-from", Value),
    ("sim-refuse-to", Value),
    ("sim-full-disk", Switch),
    ("sim-paused", Switch),
];

/// The arguments of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    values: BTreeMap<String, Vec<String>>,
}

impl Arguments {
    /// Reads `--name=value`, `--name value` and `--name`. Empty arguments are ignored. If an option is repeated, the
    /// last value applies.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, ArgumentError> {
        let mut values = BTreeMap::<String, Vec<String>>::new();
        let mut arguments = arguments.into_iter().filter(|argument| !argument.is_empty()).peekable();
        while let Some(argument) = arguments.next() {
            let Some(option) = argument.strip_prefix("--") else { return Err(ArgumentError::Positional(argument)) };
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, arguments.next_if(|next| !next.starts_with("--"))),
            };
            let name = name.replace('_', "-");
            let Some((_, value_type)) = OPTIONS.iter().find(|(known, _)| *known == name) else {
                return Err(ArgumentError::Unknown(name));
            };
            let value = value_type.check(&name, value)?;
            values.entry(name).or_default().push(value);
        }
        Ok(Self { values })
    }

    /// Returns the value of an option.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).and_then(|values| values.last()).map(String::as_str)
    }

    /// Returns all values of an option that can be repeated; `;` also separates values.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let values = self.values.get(name).map(Vec::as_slice).unwrap_or_default();
        values.iter().flat_map(|value| value.split(';')).filter(|value| !value.is_empty()).collect()
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(is_true)
    }

    /// Returns the value of an option that is a duration.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        self.get(name).and_then(duration)
    }

    /// Returns the options and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().filter_map(|(name, values)| Some((name.as_str(), values.last()?.as_str())))
    }
}

impl ValueType {
    fn check(self, name: &str, value: Option<String>) -> Result<String, ArgumentError> {
        let Some(value) = value else {
            return if self == Switch { Ok("1".to_owned()) } else { Err(ArgumentError::NoValue(name.to_owned())) };
        };
        let value = unquoted(&value).to_owned();
        let (is_valid, expected) = match self {
            Value => (true, ""),
            Switch => (["0", "1", "true", "false", "on", "off"].contains(&value.as_str()), "'0', '1'"),
            Number => (value.parse::<i64>().is_ok(), ""),
            Address => (value == "localhost" || value.parse::<std::net::IpAddr>().is_ok(), ""),
            Time => (duration(&value).is_some(), "a time such as 200ms, 1.5s or 2m"),
            Step => (crate::node::faults::STEPS.contains(&value.as_str()), "the steps that simctl lists"),
            HostId => (crate::membership::HostId::parse(&value).is_some(), "a host ID"),
        };
        if is_valid { Ok(value) } else { Err(ArgumentError::Invalid { option: name.to_owned(), value, expected }) }
    }
}

/// Removes quotation marks, which an operator may forward from a user.
fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

pub(crate) fn is_true(value: &str) -> bool {
    matches!(value, "1" | "true" | "on")
}

/// Parses `200ms`, `1.5s`, `2m` or a number of seconds.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Arguments, ArgumentError> {
        Arguments::parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn options_are_read_with_both_syntaxes() {
        let arguments =
            parse(&["", "--seeds=10.0.0.1,10.0.0.2", "--smp", "2", "--overprovisioned", "--developer-mode=1"]).unwrap();
        assert_eq!(arguments.get("seeds"), Some("10.0.0.1,10.0.0.2"));
        assert_eq!(arguments.get("smp"), Some("2"));
        assert!(arguments.is_on("overprovisioned"));
        assert!(arguments.is_on("developer-mode"));
        assert_eq!(arguments.get("cpuset"), None);
    }

    #[test]
    fn unknown_arguments_are_refused() {
        for (given, expected) in [
            (vec!["--sedes=10.0.0.1"], ArgumentError::Unknown("sedes".to_owned())),
            (vec!["start"], ArgumentError::Positional("start".to_owned())),
            (vec!["--seeds"], ArgumentError::NoValue("seeds".to_owned())),
        ] {
            assert_eq!(parse(&given), Err(expected), "{given:?}");
        }
        for given in [
            "--smp=two",
            "--overprovisioned=2",
            "--listen-address=here",
            "--replace-node-first-boot=10.0.0.1",
            "--sim-crash-at=x",
        ] {
            assert!(matches!(parse(&[given]), Err(ArgumentError::Invalid { .. })), "{given}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, milliseconds) in [("200ms", 200), ("1.5s", 1500), ("2", 2000), ("2m", 120_000)] {
            assert_eq!(duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        assert_eq!(duration("soon"), None);
        assert_eq!(duration("-1s"), None);
    }
}
