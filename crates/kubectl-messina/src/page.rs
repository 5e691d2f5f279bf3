//! Output for people: lines of 80 columns, with colours on a terminal.

use std::{
    env,
    io::{self, IsTerminal},
};

pub(crate) const WIDTH: usize = 80;
/// The maximum length of a paragraph, in characters.
const MAX_PARAGRAPH_LENGTH: usize = 8 * 1024;

/// The style of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether to use colours.
    pub colours: bool,
    /// Whether to use ASCII characters only.
    pub ascii: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Plain,
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
}

impl Style {
    /// The style for standard output: with colours on a terminal, unless `NO_COLOR` is set.
    pub(crate) fn of_output(ascii: bool) -> Self {
        let no_colour = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colours: io::stdout().is_terminal() && !no_colour, ascii }
    }

    pub(crate) fn paint(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Bold => "1",
            Colour::Dim => "2",
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Red => "31",
            Colour::Plain => return text.to_owned(),
        };
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

pub(crate) struct Page {
    pub(crate) style: Style,
    lines: Vec<String>,
}

impl Page {
    pub(crate) fn new(style: Style) -> Self {
        Self { style, lines: Vec::new() }
    }

    /// Adds a line. Line breaks in it become spaces.
    pub(crate) fn line(&mut self, line: String) {
        self.lines.push(if line.contains('\n') { line.replace('\n', " ") } else { line });
    }

    /// Adds a text, wrapped to the width of the page. `first` is the indent of the first line, `others` that of all others.
    pub(crate) fn paragraph(&mut self, first: &str, others: &str, text: &str, colour: Colour) {
        let mut begin = first;
        for line in messina_text::lines(text, MAX_PARAGRAPH_LENGTH).lines() {
            let mut words = line.split_whitespace().peekable();
            while words.peek().is_some() {
                let mut row = String::new();
                while let Some(word) = words.peek() {
                    let fits = length(begin) + length(&row) + 1 + length(word) <= WIDTH;
                    if !row.is_empty() && !fits {
                        break;
                    }
                    row += if row.is_empty() { "" } else { " " };
                    row += word;
                    words.next();
                }
                let (begin_painted, row) = (self.style.paint(Colour::Dim, begin), self.style.paint(colour, &row));
                self.line(format!("{begin_painted}{row}"));
                begin = others;
            }
        }
    }

    /// Adds a command. It is not wrapped, so that users can copy it.
    pub(crate) fn command(&mut self, command: &str) {
        let command = self.style.paint(Colour::Bold, command);
        self.line(format!("    {command}"));
    }

    pub(crate) fn text(&self) -> String {
        let shown = self.lines.iter().map(|line| format!("{}\n", line.trim_end())).collect::<String>();
        if self.style.ascii {
            shown.replace(['├', '└'], "+").replace('─', "-").replace('│', "|").replace('…', "~")
        } else {
            shown
        }
    }
}

pub(crate) fn length(text: &str) -> usize {
    text.chars().count()
}
