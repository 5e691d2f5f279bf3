//! What is shown to people: lines of 80 columns, with colours where there is a terminal.

use std::{
    env,
    io::{self, IsTerminal},
};

pub(crate) const WIDTH: usize = 80;
/// How much of a text is shown, in characters.
const LONGEST: usize = 8 * 1024;

/// How it is to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// With colours.
    pub colours: bool,
    /// With letters that every terminal has.
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

impl Look {
    /// As standard output likes it.
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
    pub(crate) look: Look,
    lines: Vec<String>,
}

impl Page {
    pub(crate) fn new(look: Look) -> Self {
        Self { look, lines: Vec::new() }
    }

    /// One line, whatever is in it.
    pub(crate) fn line(&mut self, line: String) {
        self.lines.push(if line.contains('\n') { line.replace('\n', " ") } else { line });
    }

    /// Words in lines that are short enough. The first line begins with one text, all others with another.
    pub(crate) fn paragraph(&mut self, first: &str, others: &str, text: &str, colour: Colour) {
        let mut begin = first;
        for line in messina_text::lines(text, LONGEST).lines() {
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
                let (begin_painted, row) = (self.look.paint(Colour::Dim, begin), self.look.paint(colour, &row));
                self.line(format!("{begin_painted}{row}"));
                begin = others;
            }
        }
    }

    /// A command to be copied, so it stays in one line.
    pub(crate) fn command(&mut self, command: &str) {
        let command = self.look.paint(Colour::Bold, command);
        self.line(format!("    {command}"));
    }

    pub(crate) fn text(&self) -> String {
        let shown = self.lines.iter().map(|line| format!("{}\n", line.trim_end())).collect::<String>();
        if self.look.ascii {
            shown.replace(['├', '└'], "+").replace('─', "-").replace('│', "|").replace('…', "~")
        } else {
            shown
        }
    }
}

pub(crate) fn length(text: &str) -> usize {
    text.chars().count()
}
