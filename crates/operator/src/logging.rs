//! Logging to standard error.

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

/// Format and levels of the log.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[group(skip)]
pub struct Options {
    /// Format of log lines
    #[arg(long, env = "MESSINA_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value_t, global = true)]
    pub log_format: Format,
    /// Log level, optionally followed by levels of single crates or modules, such as `info,messina_runtime=debug`.
    /// Levels are off, error, warn, info, debug and trace
    #[arg(long, env = "MESSINA_LOG_LEVEL", value_name = "LEVELS", default_value_t, global = true)]
    pub log_level: Levels,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text, in colour on a terminal
    #[default]
    Text,
    /// One JSON object per line: timestamp, level, message, fields and spans
    Json,
}

/// The default log level and the levels of single targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Levels {
    /// The text that was parsed, for `Display`.
    text: String,
    targets: Targets,
}

impl Default for Levels {
    fn default() -> Self {
        let text = "info".to_owned();
        Self { targets: quiet_others().with_default(LevelFilter::INFO), text }
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// An element of a list of log levels that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a level (off, error, warn, info, debug, trace) or TARGET=LEVEL, such as messina_runtime=debug")]
pub struct InvalidLevel(String);

impl FromStr for Levels {
    type Err = InvalidLevel;

    // Not the subscriber's parser: it takes a misspelt level for the name of a target, and then logs nothing else.
    fn from_str(text: &str) -> Result<Self, InvalidLevel> {
        let mut targets = quiet_others();
        for component in text.split(',').map(str::trim) {
            let invalid = || InvalidLevel(component.to_owned());
            targets = match component.split_once('=') {
                Some((target, level)) => {
                    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_:-".contains(letter);
                    if target.is_empty() || !target.chars().all(is_name) {
                        return Err(invalid());
                    }
                    targets.with_target(target, parse_level(level).ok_or_else(invalid)?)
                }
                None => targets.with_default(parse_level(component).ok_or_else(invalid)?),
            };
        }
        Ok(Self { text: text.to_owned(), targets })
    }
}

fn parse_level(name: &str) -> Option<LevelFilter> {
    // `LevelFilter` also parses numbers and the empty string, which are more likely mistakes.
    let is_word = !name.is_empty() && name.chars().all(char::is_alphabetic);
    if is_word { name.parse().ok() } else { None }
}

/// Returns a filter for the Kubernetes client's own log: callers log its errors themselves, and restarts of watches are
/// routine.
fn quiet_others() -> Targets {
    Targets::new().with_target("kube_client", LevelFilter::OFF).with_target("kube_runtime", LevelFilter::ERROR)
}

/// Starts logging to standard error, and recording spans if `traces` is given.
pub fn start(options: &Options, traces: Option<&Traces>) {
    let has_colour = io::IsTerminal::is_terminal(&io::stderr());
    let lines = lines(options, io::stderr, has_colour);
    // Fails if logging was started before, as in tests. The first subscriber stays then.
    let _ = tracing_subscriber::registry().with(lines).with(traces.map(Traces::layer)).try_init();
}

/// Makes panics log lines in the chosen format.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let problem = panic.payload_as_str().unwrap_or("panic without a message");
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

/// The subscriber below the layer of traces.
pub(crate) type BaseSubscriber = tracing_subscriber::layer::Layered<Box<dyn Layer<Registry> + Send + Sync>, Registry>;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use tracing::{debug, info, info_span, subscriber::with_default};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log that `emit` causes.
    fn written(format: Format, levels: &str, emit: impl FnOnce()) -> String {
        let buffer = Buffer::default();
        let copy = buffer.clone();
        let options = Options { log_format: format, log_level: levels.parse().unwrap() };
        let lines = lines(&options, move || copy.clone(), false);
        with_default(tracing_subscriber::registry().with(lines), emit);
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_line_has_message_fields_and_spans() {
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
    fn text_line_has_no_colour_outside_of_a_terminal() {
        let text = written(Format::Text, "info", || {
            let _span = info_span!("reconcile", object = "a/b").entered();
            info!(kind = "Service", "created");
        });
        assert!(text.contains("created") && text.contains("a/b") && text.contains("Service"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn levels_filter_by_target() {
        let emit = || {
            debug!(target: "messina_runtime::watch", "in detail");
            debug!(target: "messina_operator", "elsewhere");
            info!(target: "messina_operator", "in short");
        };
        let logged = |levels: &str| {
            let text = written(Format::Text, levels, emit);
            ["in detail", "elsewhere", "in short"].map(|words| text.contains(words))
        };
        assert_eq!(logged("info"), [false, false, true]);
        assert_eq!(logged("info, messina_runtime=debug"), [true, false, true]);
        assert_eq!(logged("DEBUG"), [true, true, true]);
        assert_eq!(logged("off"), [false, false, false]);
    }

    #[test]
    fn invalid_level_is_rejected_by_name() {
        for (text, named) in [
            ("inof", "inof"),
            ("", ""),
            ("info,", ""),
            ("info,messina_runtime", "messina_runtime"),
            ("messina_runtime=loud", "messina_runtime=loud"),
            ("=debug", "=debug"),
            ("info;debug", "info;debug"),
            ("3", "3"),
        ] {
            assert_eq!(text.parse::<Levels>(), Err(InvalidLevel(named.into())), "{text:?}");
        }
    }
}
