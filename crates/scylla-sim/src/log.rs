//! Log lines as a database writes them, to standard error.

use std::{
    fmt::Display,
    io::{Write, stderr},
};

use jiff::Timestamp;

/// What a node tells in passing.
pub fn info(subsystem: &str, message: impl Display) {
    line("INFO ", subsystem, message);
}

/// What an operator may want to look at.
pub fn warn(subsystem: &str, message: impl Display) {
    line("WARN ", subsystem, message);
}

/// What went wrong.
pub fn error(subsystem: &str, message: impl Display) {
    line("ERROR", subsystem, message);
}

fn line(level: &str, subsystem: &str, message: impl Display) {
    let now = Timestamp::now();
    let time = now.strftime("%Y-%m-%d %H:%M:%S");
    let milliseconds = now.subsec_millisecond();
    // A closed standard error is no reason to stop a database.
    let _ = writeln!(stderr().lock(), "{level} {time},{milliseconds:03} [shard 0:main] {subsystem} - {message}");
}
