//! The arguments that ScyllaDB is started with.

use std::{collections::BTreeMap, iter};

use super::address::IpFamily;

/// Arguments by name, without the dashes. One may have no value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(BTreeMap<String, Option<String>>);

impl Arguments {
    /// Parses arguments as users write them: `--name`, `--name value` or `--name=value`, several in one string. Words
    /// without a name are ignored. Quotation marks keep words together and stay in the value.
    pub fn parse(text: &str) -> Self {
        let mut arguments = BTreeMap::new();
        let mut words = words(text).peekable();
        while let Some(word) = words.next() {
            let Some(argument) = word.strip_prefix("--").filter(|argument| !argument.is_empty()) else { continue };
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument, words.next_if(|next| is_value(next))),
            };
            arguments.insert(name.to_owned(), value.map(ToOwned::to_owned));
        }
        Self(arguments)
    }

    /// Adds the arguments of `user` whose names are not set yet.
    #[must_use]
    pub fn or(mut self, user: Self) -> Self {
        for (name, value) in user.0 {
            self.0.entry(name).or_insert(value);
        }
        self
    }

    /// Returns the value of an argument.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_deref()
    }

    /// Returns the arguments for the command line.
    pub fn words(&self) -> Vec<String> {
        let word = |(name, value): (&String, &Option<String>)| match value {
            Some(value) => format!("--{name}={value}"),
            None => format!("--{name}"),
        };
        self.0.iter().map(word).collect()
    }

    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.to_owned(), Some(value.into()));
    }
}

impl FromIterator<(String, Option<String>)> for Arguments {
    fn from_iter<I: IntoIterator<Item = (String, Option<String>)>>(arguments: I) -> Self {
        Self(arguments.into_iter().collect())
    }
}

/// Splits `text` at white space outside of quotation marks.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    iter::from_fn(move || {
        rest = rest.trim_start();
        let mut is_quoted = false;
        let is_end = |letter: char| {
            is_quoted ^= letter == '"';
            letter.is_whitespace() && !is_quoted
        };
        let (word, after) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// Whether a word that follows a name is its value. A negative number is one.
fn is_value(word: &str) -> bool {
    !word.starts_with('-') || word.parse::<f64>().is_ok()
}

/// The inputs of the arguments that the operator sets.
#[derive(Clone, Debug)]
pub struct StartParameters<'a> {
    /// The addresses of the seed nodes.
    pub seeds: &'a [String],
    /// The broadcast address for nodes.
    pub broadcast_address: &'a str,
    /// The broadcast address for clients.
    pub broadcast_rpc_address: &'a str,
    /// The family of the addresses to listen on.
    pub family: IpFamily,
    /// The CPU limit of the container.
    pub cpu_count: u32,
    /// The CPUs that the container may run on (`Cpus_allowed_list`).
    pub allowed_cpus: Option<&'a str>,
    /// Host ID of the node that this one replaces.
    pub replaces: Option<&'a str>,
    /// The file with the I/O properties of the disk.
    pub io_properties: Option<&'a str>,
}

/// Returns the arguments that the operator sets and users cannot override.
pub fn managed(start: &StartParameters<'_>) -> Arguments {
    let mut arguments = Arguments::default();
    arguments.set("seeds", start.seeds.join(","));
    arguments.set("listen-address", start.family.any_address());
    arguments.set("prometheus-address", start.family.any_address());
    arguments.set("broadcast-address", start.broadcast_address);
    arguments.set("broadcast-rpc-address", start.broadcast_rpc_address);
    arguments.set("smp", start.cpu_count.to_string());
    // The container has exclusive CPUs if it is pinned to exactly as many as its limit.
    match start.allowed_cpus.filter(|list| count_of_list(list) == Some(start.cpu_count)) {
        Some(list) => {
            arguments.set("cpuset", list);
            arguments.set("overprovisioned", "0");
        }
        None => arguments.set("overprovisioned", "1"),
    }
    if let Some(host_id) = start.replaces {
        arguments.set("replace-node-first-boot", host_id);
    }
    if let Some(file) = start.io_properties {
        arguments.set("io-properties-file", file);
        arguments.set("io-setup", "0");
    }
    arguments
}

/// Returns how many CPUs a list such as `0-3,8` has.
fn count_of_list(list: &str) -> Option<u32> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').map(count).try_fold(0_u32, |sum, part| sum.checked_add(part?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> StartParameters<'static> {
        StartParameters {
            seeds: &[],
            broadcast_address: "10.0.0.1",
            broadcast_rpc_address: "10.0.0.2",
            family: IpFamily::V4,
            cpu_count: 2,
            allowed_cpus: None,
            replaces: None,
            io_properties: None,
        }
    }

    #[test]
    fn cpus_of_a_list_are_counted() {
        for (list, count) in
            [("0-3,8", Some(5)), ("7", Some(1)), ("3-1", None), ("", None), ("a-b", None), ("0-4294967295", None)]
        {
            assert_eq!(count_of_list(list), count, "{list:?}");
        }
    }

    #[test]
    fn cpuset_is_set_only_if_the_container_has_exclusive_cpus() {
        let bound = managed(&StartParameters { allowed_cpus: Some("4-5"), ..start() });
        assert_eq!((bound.get("cpuset"), bound.get("overprovisioned")), (Some("4-5"), Some("0")));
        let shared = managed(&StartParameters { allowed_cpus: Some("0-7"), ..start() });
        assert_eq!((shared.get("cpuset"), shared.get("overprovisioned")), (None, Some("1")));
    }

    #[test]
    fn optional_arguments_are_set_only_where_they_apply() {
        let plain = managed(&start());
        for name in ["replace-node-first-boot", "io-properties-file", "io-setup"] {
            assert_eq!(plain.get(name), None, "{name}");
        }
        let other = managed(&StartParameters { replaces: Some("id"), io_properties: Some("/disk.yaml"), ..start() });
        assert_eq!(other.get("replace-node-first-boot"), Some("id"));
        assert_eq!(other.get("io-properties-file"), Some("/disk.yaml"));
        assert_eq!(other.get("io-setup"), Some("0"));
    }

    #[test]
    fn command_line_can_be_parsed_again() {
        let arguments = Arguments::parse(r#"--a --b=1 --c "two words" --d -1.5 -x --e="#);
        assert_eq!(arguments.words(), ["--a", "--b=1", r#"--c="two words""#, "--d=-1.5", "--e="]);
        assert_eq!(Arguments::parse(&arguments.words().join(" ")), arguments);
    }
}
