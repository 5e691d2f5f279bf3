//! As a tree for people, in 80 columns unless names are longer.

use super::model::{ABSENT, Cluster, Condition, Node, Rack, Status};
use crate::page::{Colour, Look, Page, WIDTH, length};

/// How much of a host ID is shown; all of it is in the JSON document.
const SHORT_ID: usize = 8;

/// Shows everything.
pub fn text(status: &Status, look: Look) -> String {
    let mut page = Page::new(look);
    if status.clusters.is_empty() {
        let place = status.namespace.as_ref().map_or("any namespace".to_owned(), |name| format!("namespace {name}"));
        page.line(format!("There are no ScyllaDBDatacenters in {place}."));
        if status.namespace.is_some() {
            page.line("Look in all namespaces with -A.".into());
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
        let is_wide = Columns::of(cluster, self.look).is_too_wide();
        for (position, rack) in cluster.racks.iter().enumerate() {
            let is_last = position + 1 == cluster.racks.len();
            self.rack(cluster, rack, is_last, is_wide);
        }
        if !cluster.conditions.is_empty() {
            self.line(String::new());
        }
        for condition in &cluster.conditions {
            self.condition(condition);
        }
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
            (Some(now), Some(next)) if now != next => format!("ScyllaDB {now}, becoming {next}"),
            (Some(version), _) | (None, Some(version)) => format!("ScyllaDB {version}"),
            (None, None) => String::new(),
        };
        let words = words(cluster);
        let plain: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let separator = if version.is_empty() { "" } else { "  " };
        let rest = length(&version) + length(separator) + length(&plain.join(", "));
        let painted: Vec<String> = words.iter().map(|(word, colour)| self.look.paint(*colour, word)).collect();
        let facts = format!("{version}{separator}{}", painted.join(", "));
        let painted_name = self.look.paint(Colour::Bold, &name);
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
        let wanted = rack.wanted.and_then(|wanted| usize::try_from(wanted).ok());
        let ready = match (rack.ready, wanted) {
            (Some(ready), Some(wanted)) => format!("{ready}/{wanted} ready"),
            (None, Some(wanted)) => format!("?/{wanted} ready"),
            (_, None) => "not in the specification".to_owned(),
        };
        let colour = if wanted.is_some() && wanted == rack.ready { Colour::Plain } else { Colour::Yellow };
        let branch = self.look.paint(Colour::Dim, branch);
        self.line(format!("{branch}{}  {}", rack.name, self.look.paint(colour, &ready)));
        let missing = wanted.filter(|_| rack.ready.is_some()).unwrap_or(0).saturating_sub(with_pod);
        for (position, node) in rack.nodes.iter().enumerate() {
            self.node(cluster, node, below, position + 1 == rack.nodes.len() && missing == 0, is_wide);
        }
        if missing > 0 {
            let branch = self.look.paint(Colour::Dim, &format!("{below}└─ "));
            let words =
                if missing == 1 { "1 node has no pod yet" } else { &format!("{missing} nodes have no pod yet") };
            self.line(format!("{branch}{}", self.look.paint(Colour::Yellow, words)));
        }
    }

    fn node(&mut self, cluster: &Cluster, node: &Node, below: &str, is_last: bool, is_wide: bool) {
        let (branch, under) = if is_last { ("└─ ", "     ") } else { ("├─ ", "│    ") };
        let columns = Columns::of(cluster, self.look);
        let branch = self.look.paint(Colour::Dim, &format!("{below}{branch}"));
        let under = format!("{below}{under}");
        if is_wide {
            self.line(format!("{branch}{}", cells(node)[0]));
            let begin = self.look.paint(Colour::Dim, &under);
            self.line(format!("{begin}{}", columns.facts(node)));
        } else {
            self.line(format!("{branch}{}", columns.row(node)));
        }
        for (remark, colour) in remarks(node) {
            self.paragraph(&under, &under, &remark, colour);
        }
    }

    fn condition(&mut self, condition: &Condition) {
        let (word, part, colour) = match &condition.condition_type {
            name if name == "Paused" => ("Paused", "", Colour::Yellow),
            _ if condition.is_refusal() => ("Refused", "", Colour::Red),
            name if name.ends_with("Degraded") => ("Degraded", name.trim_end_matches("Degraded"), Colour::Red),
            name if name.ends_with("Available") => ("Not available", name.trim_end_matches("Available"), Colour::Red),
            name => ("Progressing", name.trim_end_matches("Progressing"), Colour::Yellow),
        };
        let part = part.trim_end_matches("Controller");
        let about =
            [part, &condition.reason].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
        let dot = if condition.message.is_empty() || condition.message.ends_with(['.', '!', '?']) { "" } else { "." };
        let message = format!("{word} ({about}): {}{dot}", condition.message);
        self.paragraph("  ", "    ", &message, colour);
    }
}

fn words(cluster: &Cluster) -> Vec<(&'static str, Colour)> {
    let mut words = Vec::new();
    match cluster.available {
        Some(true) => words.push(("available", Colour::Green)),
        Some(false) => words.push(("not available", Colour::Red)),
        None if cluster.observed => words.push(("not available", Colour::Yellow)),
        None => words.push(("not looked at yet", Colour::Yellow)),
    }
    if cluster.refused {
        words.push(("specification refused", Colour::Red));
    }
    if cluster.progressing == Some(true) {
        words.push(("progressing", Colour::Yellow));
    }
    if cluster.degraded == Some(true) {
        words.push(("degraded", Colour::Red));
    }
    words
}

/// What is out of the ordinary about a node.
fn remarks(node: &Node) -> Vec<(String, Colour)> {
    let mut remarks = Vec::new();
    let all: usize = node.views.values().sum();
    let dissent: Vec<String> = node
        .dissent()
        .into_iter()
        .map(|(state, count)| {
            let (says, does) = if count == 1 { ("says", "does") } else { ("say", "do") };
            match state {
                ABSENT => format!("{count} of {all} {does} not know it"),
                state => format!("{count} of {all} {says} {state}"),
            }
        })
        .collect();
    if !dissent.is_empty() {
        remarks.push((dissent.join(", "), Colour::Yellow));
    }
    match &node.kubernetes {
        Some(kubernetes) => {
            if let Some(why) = &node.no_answer {
                remarks.push((format!("ScyllaDB: {why}"), Colour::Yellow));
            }
            if !kubernetes.ready || kubernetes.terminating || node.state.is_none() {
                let colour = if kubernetes.is_stuck() { Colour::Red } else { Colour::Yellow };
                let mut words = format!("Kubernetes: {}", kubernetes.words());
                if let Some(message) = kubernetes.message.as_ref().filter(|_| kubernetes.is_stuck()) {
                    words += &format!("; {}", message.trim());
                }
                remarks.push((words, colour));
            }
        }
        None => remarks.push(("it is in the ring and has no pod".to_owned(), Colour::Red)),
    }
    remarks
}

/// The columns of the nodes of a cluster: name, state, address, host ID, tokens.
struct Columns {
    look: Look,
    widths: [usize; 5],
}

impl Columns {
    fn of(cluster: &Cluster, look: Look) -> Self {
        let mut widths = [0; 5];
        for node in cluster.racks.iter().flat_map(|rack| &rack.nodes) {
            for (width, cell) in widths.iter_mut().zip(cells(node)) {
                *width = length(&cell).max(*width);
            }
        }
        Self { look, widths }
    }

    /// Beside the branches.
    fn is_too_wide(&self) -> bool {
        let used = self.widths.iter().filter(|width| **width > 0);
        6 + used.map(|width| width + 2).sum::<usize>() > WIDTH + 2
    }

    fn row(&self, node: &Node) -> String {
        self.from(node, 0)
    }

    /// Without the name.
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
            row += &self.look.paint(colour, cell);
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
        // A node without a pod is known by its address, which need not be said twice.
        if node.pod.is_some() { node.name().to_owned() } else { "(no pod)".to_owned() },
        node.state.clone().unwrap_or_else(|| "?".into()),
        address,
        node.host_id.as_ref().map(short).unwrap_or_default(),
        node.tokens.filter(|tokens| *tokens > 0).map(|tokens| format!("{tokens} tokens")).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests;
