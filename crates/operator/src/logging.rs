//! What happens is told on standard error, one line each.

use std::{fmt, io, str::FromStr};

use clap::{Args, ValueEnum};
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, Registry,
    filter::Targets,
    fmt::{Layer as Lines, MakeWriter},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::traces::Traces;

/// What is told, and in which form.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[group(skip)]
pub struct Options {
    /// The form of log lines: for people, or one JSON object each
    #[arg(long, env = "MESSINA_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value_t, global = true)]
    pub log_format: Format,
    /// What is logged: a level, and other levels for parts of the program, such as `info,messina_runtime=debug`.
    /// Levels are off, error, warn, info, debug and trace
    #[arg(long, env = "MESSINA_LOG_LEVEL", value_name = "LEVELS", default_value_t, global = true)]
    pub log_level: Levels,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A line for people, in colour on a terminal
    #[default]
    Text,
    /// A JSON object: timestamp, level, message, fields, and the spans that it happened in
    Json,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq)]
pub struct Levels {
    said: String,
    targets: Targets,
}

impl Default for Levels {
    fn default() -> Self {
        let said = "info".to_owned();
        Self { targets: quiet_others().with_default(LevelFilter::INFO), said }
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.said)
    }
}

/// What was given is no list of levels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a level (off, error, warn, info, debug, trace) or PART=LEVEL, such as messina_runtime=debug")]
pub struct NoLevel(String);

impl FromStr for Levels {
    type Err = NoLevel;

    // Not the subscriber's own reading: a word that is no level would be the name of a part, and all else would be silent.
    fn from_str(said: &str) -> Result<Self, NoLevel> {
        let mut targets = quiet_others();
        for component in said.split(',').map(str::trim) {
            let wrong = || NoLevel(component.to_owned());
            targets = match component.split_once('=') {
                Some((target, level)) => {
                    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_:-".contains(letter);
                    if target.is_empty() || !target.chars().all(is_name) {
                        return Err(wrong());
                    }
                    targets.with_target(target, self::level(level).ok_or_else(wrong)?)
                }
                None => targets.with_default(self::level(component).ok_or_else(wrong)?),
            };
        }
        Ok(Self { said: said.to_owned(), targets })
    }
}

fn level(name: &str) -> Option<LevelFilter> {
    // Numbers and nothing would be understood too, but not by people.
    let is_word = !name.is_empty() && name.chars().all(char::is_alphabetic);
    if is_word { name.parse().ok() } else { None }
}

/// The client's failures are told by whoever meets them; a watch that is begun anew is no news.
fn quiet_others() -> Targets {
    Targets::new().with_target("kube_client", LevelFilter::OFF).with_target("kube_runtime", LevelFilter::ERROR)
}

/// Begins to tell, on standard error, and to trace, if that is wanted.
pub fn start(options: &Options, traces: Option<&Traces>) {
    let has_colour = io::IsTerminal::is_terminal(&io::stderr());
    let lines = lines(options, io::stderr, has_colour);
    // A second start, which only tests make, changes nothing.
    let _ = tracing_subscriber::registry().with(lines).with(traces.map(Traces::layer)).try_init();
}

/// From now on panics are lines of the log like others, not text of their own.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let problem = panic.payload_as_str().unwrap_or("a panic without a text");
        tracing::error!(location, problem, "internal error; please report this");
    }));
}

fn lines<S, W>(options: &Options, writer: W, has_colour: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = Lines::new().with_writer(writer).with_ansi(has_colour).with_target(false);
    match options.log_format {
        Format::Text => lines.with_filter(options.log_level.targets.clone()).boxed(),
        Format::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(true);
            lines.with_filter(options.log_level.targets.clone()).boxed()
        }
    }
}

/// What the layers of this program are put on.
pub(crate) type Below = tracing_subscriber::layer::Layered<Box<dyn Layer<Registry> + Send + Sync>, Registry>;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use tracing::{debug, info, info_span, subscriber::with_default};

    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is written of what `tell` tells.
    fn written(format: Format, levels: &str, tell: impl FnOnce()) -> String {
        let paper = Paper::default();
        let copy = paper.clone();
        let options = Options { log_format: format, log_level: levels.parse().unwrap() };
        let lines = lines(&options, move || copy.clone(), false);
        with_default(tracing_subscriber::registry().with(lines), tell);
        let bytes = paper.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_of_json_has_message_fields_and_spans() {
        let text = written(Format::Json, "info", || {
            let _span = info_span!("reconcile", controller = "datacenter", object = "a/b").entered();
            info!(kind = "Service", "created");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&line["level"], &line["message"], &line["kind"]),
            (&"INFO".into(), &"created".into(), &"Service".into())
        );
        assert_eq!(line["spans"][0]["object"], "a/b");
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    }

    #[test]
    fn a_line_for_people_has_no_colour_outside_of_a_terminal() {
        let text = written(Format::Text, "info", || {
            let _span = info_span!("reconcile", object = "a/b").entered();
            info!(kind = "Service", "created");
        });
        assert!(text.contains("created") && text.contains("a/b") && text.contains("Service"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn levels_are_as_they_were_given() {
        let tell = || {
            debug!(target: "messina_runtime::watch", "in detail");
            debug!(target: "messina_operator", "elsewhere");
            info!(target: "messina_operator", "in short");
        };
        let told = |levels: &str| {
            let text = written(Format::Text, levels, tell);
            ["in detail", "elsewhere", "in short"].map(|words| text.contains(words))
        };
        assert_eq!(told("info"), [false, false, true]);
        assert_eq!(told("info, messina_runtime=debug"), [true, false, true]);
        assert_eq!(told("DEBUG"), [true, true, true]);
        assert_eq!(told("off"), [false, false, false]);
    }

    #[test]
    fn what_is_no_level_is_refused_and_named() {
        for (said, named) in [
            ("inof", "inof"),
            ("", ""),
            ("info,", ""),
            ("info,messina_runtime", "messina_runtime"),
            ("messina_runtime=loud", "messina_runtime=loud"),
            ("=debug", "=debug"),
            ("info;debug", "info;debug"),
            ("3", "3"),
        ] {
            assert_eq!(said.parse::<Levels>(), Err(NoLevel(named.into())), "{said:?}");
        }
    }
}
