//! `messina plan` and `kubectl messina plan`: the objects that the operator would create for manifests.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use messina_plan::{
    datacenter::NODE_EXPORTER_IMAGE,
    preview::{Manifest, Settings, preview},
};

/// The image of the operator in the manifests of deploy/.
const OPERATOR_IMAGE: &str = "localhost/messina/messina:dev";

/// The maximum length of a note on a manifest, in characters.
const MAX_NOTE_LENGTH: usize = 4096;

/// Arguments of `plan`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A file with manifests, - for standard input; can be repeated
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// The namespace of objects that have none
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// The image of the operator, which also runs as the sidecar of each node
    #[arg(long, env = "MESSINA_IMAGE", value_name = "IMAGE", default_value = OPERATOR_IMAGE)]
    pub image: String,
    /// The image of node_exporter, for versions of ScyllaDB that do not include it
    #[arg(long, env = "MESSINA_NODE_EXPORTER_IMAGE", value_name = "IMAGE", default_value = NODE_EXPORTER_IMAGE)]
    pub node_exporter_image: String,
}

/// Prints the objects. If there is any fault, prints the faults and no object: a part could be mistaken for the whole.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut manifests = Vec::new();
    for file in &options.files {
        match read(file) {
            Ok(text) => manifests.push(Manifest { file: file.display().to_string(), text }),
            Err(error) => {
                eprintln!("{}: cannot be read: {error}", file.display());
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    let settings = Settings {
        namespace: options.namespace.clone(),
        operator_image: options.image.clone(),
        node_exporter_image: options.node_exporter_image.clone(),
    };
    let preview = preview(&manifests, &settings);
    for line in preview.notes.iter().chain(&preview.errors) {
        // Manifests are often written by others.
        eprintln!("{}", messina_text::line(line, MAX_NOTE_LENGTH));
    }
    if !preview.errors.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let mut stream = String::new();
    for planned in &preview.datacenters {
        stream += &planned.yaml().context("writing YAML")?;
    }
    print(&stream)?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> io::Result<String> {
    if file == Path::new("-") { io::read_to_string(io::stdin()) } else { fs::read_to_string(file) }
}

pub(crate) fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("writing to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_image_is_that_of_the_manifests() {
        let files = [include_str!("../../../deploy/operator.yaml"), include_str!("../../../deploy/namespaced.yaml")];
        for file in files {
            let images: Vec<&str> = file.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
            assert_eq!(images, [OPERATOR_IMAGE]);
        }
    }
}
