//! Prints steps with their times, to a terminal or a log.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The steps of a command.
#[derive(Debug)]
pub struct Steps {
    started: Instant,
    /// Prints nothing, for use in tests.
    quiet: bool,
}

impl Default for Steps {
    fn default() -> Self {
        Self { started: Instant::now(), quiet: false }
    }
}

impl Steps {
    /// Steps that print nothing.
    pub fn quiet() -> Self {
        Self { quiet: true, ..Self::default() }
    }

    /// Begins a step. It ends with [`Step::done`], or is printed as failed when dropped.
    pub fn begin(&self, what: impl Into<String>) -> Step {
        let what = what.into();
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            None,
            if terminal && !self.quiet { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
        );
        if terminal && !self.quiet {
            if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} {prefix} {msg:.dim} {elapsed:.dim}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        bar.set_prefix(what.clone());
        Step {
            bar,
            what,
            started: Instant::now(),
            quiet: self.quiet,
            terminal,
            last_line: AtomicU64::new(0),
            ended: false,
        }
    }

    /// Prints a line.
    pub fn print_line(&self, line: impl AsRef<str>) {
        if !self.quiet {
            eprintln!("{}", line.as_ref());
        }
    }

    /// The time since the first step.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A step that has begun.
#[derive(Debug)]
pub struct Step {
    bar: ProgressBar,
    what: String,
    started: Instant,
    quiet: bool,
    terminal: bool,
    last_line: AtomicU64,
    ended: bool,
}

impl Step {
    /// Prints the progress of the step, in a log twice a minute at most.
    pub fn progress(&self, detail: &str) {
        self.bar.set_message(detail.to_owned());
        let seconds = self.started.elapsed().as_secs();
        if !self.terminal && !self.quiet && seconds >= self.last_line.load(Ordering::Relaxed) + 30 {
            self.last_line.store(seconds, Ordering::Relaxed);
            eprintln!("         {}: {detail} ({seconds} s so far)", self.what);
        }
    }

    /// Ends the step as successful.
    pub fn done(mut self, detail: &str) {
        self.end("✓", detail);
    }

    fn end(&mut self, mark: &str, detail: &str) {
        self.ended = true;
        self.bar.finish_and_clear();
        if !self.quiet {
            let separator = if detail.is_empty() { "" } else { ": " };
            eprintln!("{mark} {:>6.1} s  {}{separator}{detail}", self.started.elapsed().as_secs_f64(), self.what);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.ended {
            self.end("✗", "");
        }
    }
}
