//! Renders tasks as a table, in 80 columns unless names are longer.

use jiff::Timestamp;

use super::tasks::{Task, Tasks};
use crate::page::{Colour, Page, Style, WIDTH, length};

const HEADER: [&str; 6] = ["NAME", "TYPE", "ETCD", "STATE", "AHEAD", "AGE"];
const STATE: usize = 3;
const BETWEEN: usize = 2;

/// Renders tasks, each with its message below.
pub(super) fn text(tasks: &Tasks, now: Timestamp, style: Style) -> String {
    let mut page = Page::new(style);
    if tasks.tasks.is_empty() {
        say_none(&mut page, tasks);
        problems(&mut page, tasks);
        return page.text();
    }
    let header = HEADER.map(str::to_owned);
    let rows: Vec<[String; 6]> = tasks.tasks.iter().map(|task| cells(tasks, task, now)).collect();
    let widest = |column: usize| rows.iter().chain([&header]).map(|row| length(&row[column])).max().unwrap_or_default();
    let widths = std::array::from_fn::<usize, 6, _>(widest);
    let is_wide = widths.iter().sum::<usize>() + BETWEEN * (HEADER.len() - 1) > WIDTH;
    let heading = row(&header, &widths, usize::from(is_wide), style, Colour::Plain);
    add_row(&mut page, HEADER[0], heading, is_wide);
    for (task, cells) in tasks.tasks.iter().zip(&rows) {
        let facts = row(cells, &widths, usize::from(is_wide), style, colour(task));
        add_row(&mut page, &cells[0], facts, is_wide);
        page.paragraph("    ", "    ", &task.says, Colour::Dim);
    }
    problems(&mut page, tasks);
    page.text()
}

/// Adds a row; where rows are too wide, the name has a line of its own.
fn add_row(page: &mut Page, name: &str, facts: String, is_wide: bool) {
    if is_wide {
        page.line(name.to_owned());
        page.line(format!("  {facts}"));
    } else {
        page.line(facts);
    }
}

fn problems(page: &mut Page, tasks: &Tasks) {
    for problem in &tasks.problems {
        page.line(String::new());
        page.paragraph("", "", problem, Colour::Yellow);
    }
}

fn say_none(page: &mut Page, tasks: &Tasks) {
    let place = tasks.namespace.as_ref().map_or("any namespace".to_owned(), |name| format!("namespace {name}"));
    match &tasks.etcd {
        Some(etcd) => page.line(format!("There are no tasks on the Etcd {etcd} in {place}.")),
        None => page.line(format!("There are no tasks on etcd clusters in {place}.")),
    }
    if tasks.namespace.is_some() && tasks.etcd.is_none() {
        page.line("Use -A to search all namespaces.".into());
    }
}

fn cells(tasks: &Tasks, task: &Task, now: Timestamp) -> [String; 6] {
    let relative_name = |own: Option<&str>, namespace: &str, name: &str| match own {
        Some(own) if own == namespace => name.to_owned(),
        _ => format!("{namespace}/{name}"),
    };
    let etcd = task.etcd.as_ref().map(|etcd| {
        let own = tasks.namespace.as_ref().unwrap_or(&task.namespace);
        relative_name(Some(own), &etcd.namespace, &etcd.name)
    });
    let state = task.state.as_deref().unwrap_or("New");
    [
        relative_name(tasks.namespace.as_deref(), &task.namespace, &task.name),
        task.task_type.clone(),
        etcd.unwrap_or_else(|| "-".into()),
        match task.progress {
            Some(progress) => format!("{state} {}/{}", progress.done, progress.total),
            None => state.to_owned(),
        },
        task.ahead.map_or("-".to_owned(), |ahead| {
            if task.may_have_more_ahead { format!("{ahead}+") } else { ahead.to_string() }
        }),
        task.created.map_or("-".to_owned(), |created| age(created, now)),
    ]
}

fn row(cells: &[String; 6], widths: &[usize; 6], first: usize, style: Style, of_state: Colour) -> String {
    let mut row = String::new();
    for (column, cell) in cells.iter().enumerate().skip(first) {
        row += &style.paint(if column == STATE { of_state } else { Colour::Plain }, cell);
        row += &" ".repeat(widths[column] - length(cell) + BETWEEN);
    }
    row.trim_end().to_owned()
}

fn colour(task: &Task) -> Colour {
    match task.state.as_deref() {
        Some("Succeeded") => Colour::Green,
        Some("Failed" | "Rejected") => Colour::Red,
        Some("InProgress") => Colour::Yellow,
        _ => Colour::Plain,
    }
}

/// Formats an age in the largest unit of which there are at least two.
fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
