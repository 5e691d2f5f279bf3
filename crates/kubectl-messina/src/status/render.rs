//! Renders the status as a tree, in 80 columns unless names are longer.

use super::model::{ABSENT, Cluster, Node, Rack, Status};
use crate::{
    conditions::{Folded, Shown, fold, title},
    page::{Colour, Page, Style, WIDTH, length},
};

/// How many characters of a host ID are shown; the JSON document has all of them.
const SHORT_ID: usize = 8;

/// Renders all clusters.
pub fn text(status: &Status, style: Style) -> String {
    let mut page = Page::new(style);
    if status.clusters.is_empty() {
        let place = status.namespace.as_ref().map_or("any namespace".to_owned(), |name| format!("namespace {name}"));
        page.line(format!("There are no ScyllaDBDatacenters in {place}."));
        if status.namespace.is_some() {
            page.line("Use -A to search all namespaces.".into());
        }
    }
    for (position, cluster) in status.clusters.iter().enumerate() {
        if position > 0 {
            page.line(String::new());
        }
        page.cluster(cluster);
    }
    if !status.problems.is_empty() {
        page.line(String::new());
    }
    for problem in &status.problems {
        page.paragraph("", "", problem, Colour::Yellow);
    }
    page.text()
}

impl Page {
    fn cluster(&mut self, cluster: &Cluster) {
        self.header(cluster);
        let is_wide = Columns::of(cluster, self.style).is_too_wide();
        for (position, rack) in cluster.racks.iter().enumerate() {
            let is_last = position + 1 == cluster.racks.len();
            self.rack(cluster, rack, is_last, is_wide);
        }
        if !cluster.conditions.is_empty() {
            self.line(String::new());
        }
        self.conditions(cluster);
        if !cluster.next.is_empty() {
            self.line(String::new());
        }
        for next in &cluster.next {
            self.paragraph("  ", "  ", &next.text, Colour::Plain);
            if let Some(command) = &next.command {
                self.command(command);
            }
        }
    }

    fn header(&mut self, cluster: &Cluster) {
        let name = format!("{}/{}", cluster.namespace, cluster.name);
        let version = match (&cluster.current_version, &cluster.updated_version) {
            (Some(now), Some(next)) if now != next => format!("ScyllaDB {now}, updating to {next}"),
            (Some(version), _) | (None, Some(version)) => format!("ScyllaDB {version}"),
            (None, None) => String::new(),
        };
        let states = states(cluster);
        let plain: Vec<&str> = states.iter().map(|(word, _)| *word).collect();
        let separator = if version.is_empty() { "" } else { "  " };
        let rest = length(&version) + length(separator) + length(&plain.join(", "));
        let painted: Vec<String> = states.iter().map(|(word, colour)| self.style.paint(*colour, word)).collect();
        let facts = format!("{version}{separator}{}", painted.join(", "));
        let painted_name = self.style.paint(Colour::Bold, &name);
        if length(&name) + 2 + rest <= WIDTH {
            self.line(format!("{painted_name}  {facts}"));
        } else {
            self.line(painted_name);
            self.line(format!("  {facts}"));
        }
    }

    fn rack(&mut self, cluster: &Cluster, rack: &Rack, is_last: bool, is_wide: bool) {
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let with_pod = rack.nodes.iter().filter(|node| node.pod.is_some()).count();
        let desired = rack.wanted.and_then(|nodes| usize::try_from(nodes).ok());
        let ready = match (rack.ready, desired) {
            (Some(ready), Some(desired)) => format!("{ready}/{desired} ready"),
            (None, Some(desired)) => format!("?/{desired} ready"),
            (_, None) => "not in the specification".to_owned(),
        };
        let colour = if desired.is_some() && desired == rack.ready { Colour::Plain } else { Colour::Yellow };
        let branch = self.style.paint(Colour::Dim, branch);
        self.line(format!("{branch}{}  {}", rack.name, self.style.paint(colour, &ready)));
        let missing = desired.filter(|_| rack.ready.is_some()).unwrap_or(0).saturating_sub(with_pod);
        for (position, node) in rack.nodes.iter().enumerate() {
            self.node(cluster, node, below, position + 1 == rack.nodes.len() && missing == 0, is_wide);
        }
        if missing > 0 {
            let branch = self.style.paint(Colour::Dim, &format!("{below}└─ "));
            let text = if missing == 1 { "1 node has no pod yet" } else { &format!("{missing} nodes have no pod yet") };
            self.line(format!("{branch}{}", self.style.paint(Colour::Yellow, text)));
        }
    }

    fn node(&mut self, cluster: &Cluster, node: &Node, below: &str, is_last: bool, is_wide: bool) {
        let (branch, under) = if is_last { ("└─ ", "     ") } else { ("├─ ", "│    ") };
        let columns = Columns::of(cluster, self.style);
        let branch = self.style.paint(Colour::Dim, &format!("{below}{branch}"));
        let under = format!("{below}{under}");
        if is_wide {
            self.line(format!("{branch}{}", cells(node)[0]));
            let begin = self.style.paint(Colour::Dim, &under);
            self.line(format!("{begin}{}", columns.facts(node)));
        } else {
            self.line(format!("{branch}{}", columns.row(node)));
        }
        for (note, colour) in notes(node) {
            self.paragraph(&under, &under, &note, colour);
        }
    }

    /// Shows the causes, how many messages follow from them, and what is independent of them.
    fn conditions(&mut self, cluster: &Cluster) {
        let folded = fold(&cluster.conditions, false);
        folded.causes.iter().for_each(|shown| self.condition(shown));
        if folded.has_consequences() {
            self.left_out(cluster, &folded);
        }
        folded.others.iter().for_each(|shown| self.condition(shown));
        if !folded.has_consequences() {
            self.left_out(cluster, &folded);
        }
    }

    fn condition(&mut self, Shown { condition, messages }: &Shown<'_>) {
        let (title, component, colour) = title(condition);
        let about =
            [component, &condition.reason].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
        let message = messages.join("\n");
        let dot = if message.ends_with(['.', '!', '?']) { "" } else { "." };
        self.paragraph("  ", "    ", &format!("{title} ({about}): {message}{dot}"), colour);
    }

    fn left_out(&mut self, cluster: &Cluster, folded: &Folded<'_>) {
        let Some((clause, _)) = folded.left_out() else { return };
        self.paragraph("  ", "    ", &format!("{clause}:"), Colour::Plain);
        self.command(&format!("kubectl messina why sdc/{} -n {} --all", cluster.name, cluster.namespace));
    }
}

fn states(cluster: &Cluster) -> Vec<(&'static str, Colour)> {
    let mut states = Vec::new();
    match cluster.available {
        Some(true) => states.push(("available", Colour::Green)),
        Some(false) => states.push(("not available", Colour::Red)),
        None if cluster.observed => states.push(("not available", Colour::Yellow)),
        None => states.push(("not reconciled yet", Colour::Yellow)),
    }
    if cluster.refused {
        states.push(("specification refused", Colour::Red));
    }
    if cluster.progressing == Some(true) {
        states.push(("progressing", Colour::Yellow));
    }
    if cluster.degraded == Some(true) {
        states.push(("degraded", Colour::Red));
    }
    states
}

/// What is unusual about a node.
fn notes(node: &Node) -> Vec<(String, Colour)> {
    let mut notes = Vec::new();
    let all: usize = node.views.values().sum();
    let other_views: Vec<String> = node
        .other_views()
        .into_iter()
        .map(|(state, count)| {
            let (sees, does) = if count == 1 { ("sees", "does") } else { ("see", "do") };
            match state {
                ABSENT => format!("{count} of {all} nodes {does} not know it"),
                state => format!("{count} of {all} nodes {sees} it as {state}"),
            }
        })
        .collect();
    if !other_views.is_empty() {
        notes.push((other_views.join(", "), Colour::Yellow));
    }
    match &node.kubernetes {
        Some(summary) => {
            if let Some(why) = &node.no_answer {
                notes.push((format!("ScyllaDB: {why}"), Colour::Yellow));
            }
            if !summary.ready || summary.terminating || node.state.is_none() {
                let colour = if summary.is_stuck() { Colour::Red } else { Colour::Yellow };
                let mut text = format!("Kubernetes: {}", summary.describe());
                if let Some(message) = summary.message.as_ref().filter(|_| summary.is_stuck()) {
                    text += &format!("; {}", message.trim());
                }
                notes.push((text, colour));
            }
        }
        None => notes.push(("in the ring, but without a pod".to_owned(), Colour::Red)),
    }
    notes
}

/// The columns of the nodes of a cluster: name, state, address, host ID, tokens.
struct Columns {
    style: Style,
    widths: [usize; 5],
}

impl Columns {
    fn of(cluster: &Cluster, style: Style) -> Self {
        let mut widths = [0; 5];
        for node in cluster.racks.iter().flat_map(|rack| &rack.nodes) {
            for (width, cell) in widths.iter_mut().zip(cells(node)) {
                *width = length(&cell).max(*width);
            }
        }
        Self { style, widths }
    }

    /// Whether the columns and the branches of the tree exceed the width of the page.
    fn is_too_wide(&self) -> bool {
        let used = self.widths.iter().filter(|width| **width > 0);
        6 + used.map(|width| width + 2).sum::<usize>() > WIDTH + 2
    }

    fn row(&self, node: &Node) -> String {
        self.from(node, 0)
    }

    /// The columns without the name.
    fn facts(&self, node: &Node) -> String {
        self.from(node, 1)
    }

    fn from(&self, node: &Node, first: usize) -> String {
        let cells = cells(node);
        let mut row = String::new();
        for (column, cell) in cells.iter().enumerate().skip(first).filter(|(column, _)| self.widths[*column] > 0) {
            let colour = match column {
                1 => state_colour(node),
                3 => Colour::Dim,
                _ => Colour::Plain,
            };
            row += &self.style.paint(colour, cell);
            row += &" ".repeat(self.widths[column] - length(cell) + 2);
        }
        row.trim_end().to_owned()
    }
}

fn state_colour(node: &Node) -> Colour {
    match node.state.as_deref() {
        Some("UN") => Colour::Green,
        _ if node.is_down() => Colour::Red,
        _ => Colour::Yellow,
    }
}

fn cells(node: &Node) -> [String; 5] {
    let short = |id: &String| {
        let short: String = id.chars().take(SHORT_ID).collect();
        if short.len() < id.len() { format!("{short}…") } else { short }
    };
    let address = node.address.clone().unwrap_or_default();
    [
        // A node without a pod is named by its address, which is in another column.
        if node.pod.is_some() { node.name().to_owned() } else { "(no pod)".to_owned() },
        node.state.clone().unwrap_or_else(|| "?".into()),
        address,
        node.host_id.as_ref().map(short).unwrap_or_default(),
        node.tokens.filter(|tokens| *tokens > 0).map(|tokens| format!("{tokens} tokens")).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests;
