//! Steps with their times, for a person at a terminal or in a log.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A run of steps.
#[derive(Debug)]
pub struct Steps {
    started: Instant,
    /// Prints nothing at all: for use inside tests.
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

    /// Begins a step; it ends with [`Step::done`], or is shown as given up when dropped.
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

    /// A line of its own.
    pub fn say(&self, line: impl AsRef<str>) {
        if !self.quiet {
            eprintln!("{}", line.as_ref());
        }
    }

    /// How long the run has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A step under way.
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
    /// Shows how far the step is. In a log, twice a minute at most.
    pub fn progress(&self, detail: &str) {
        self.bar.set_message(detail.to_owned());
        let seconds = self.started.elapsed().as_secs();
        if !self.terminal && !self.quiet && seconds >= self.last_line.load(Ordering::Relaxed) + 30 {
            self.last_line.store(seconds, Ordering::Relaxed);
            eprintln!("         {}: {detail} ({seconds} s so far)", self.what);
        }
    }

    /// Ends the step well.
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
