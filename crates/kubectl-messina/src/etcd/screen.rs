//! Shows the progress of a task on standard error: on a terminal as a progress bar, else as one line for each change.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::messages::TaskLine;

const SPINNER: &str = "{spinner:.cyan} {wide_msg} {elapsed:.dim}";
const BAR: &str = "{spinner:.cyan} [{bar:20}] {pos}/{len} {wide_msg} {elapsed:.dim}";

pub(super) struct Screen {
    /// None where there is no terminal.
    bar: Option<ProgressBar>,
}

impl Screen {
    pub(super) fn of_errors() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if bar.is_hidden() {
            return Self { bar: None };
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar: Some(bar) }
    }

    pub(super) fn show(&self, task_line: &TaskLine) {
        let Some(bar) = &self.bar else { return eprintln!("{task_line}") };
        let (template, message) = match task_line.progress {
            Some((done, total)) => {
                bar.set_length(total);
                bar.set_position(done);
                (BAR, task_line.message.clone())
            }
            None => (SPINNER, task_line.headline()),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(message);
    }

    /// Removes the progress bar.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
