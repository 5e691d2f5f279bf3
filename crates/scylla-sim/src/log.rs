//! Log lines in the format of ScyllaDB, on standard error.

use std::{
    fmt::Display,
    io::{Write, stderr},
};

use jiff::Timestamp;

/// Logs an information.
pub fn info(subsystem: &str, message: impl Display) {
    line("INFO ", subsystem, message);
}

/// Logs a warning.
pub fn warn(subsystem: &str, message: impl Display) {
    line("WARN ", subsystem, message);
}

/// Logs an error.
pub fn error(subsystem: &str, message: impl Display) {
    line("ERROR", subsystem, message);
}

fn line(level: &str, subsystem: &str, message: impl Display) {
    let now = Timestamp::now();
    let time = now.strftime("%Y-%m-%d %H:%M:%S");
    let milliseconds = now.subsec_millisecond();
    // A closed standard error must not stop the node.
    let _ = writeln!(stderr().lock(), "{level} {time},{milliseconds:03} [shard 0:main] {subsystem} - {message}");
}
