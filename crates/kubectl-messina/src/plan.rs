//! `messina plan` and `kubectl messina plan`: what the operator would create for manifests.

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

/// How long a remark on a manifest may be, in characters.
const LONGEST: usize = 4096;

/// What to plan, and for which operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A file with manifests, - for what comes in; can be given more than once
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// The namespace of objects that name none
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// The operator's image, which also runs beside each node
    #[arg(long, env = "MESSINA_IMAGE", value_name = "IMAGE", default_value = "localhost/messina:dev")]
    pub image: String,
    /// The image of the exporter of a machine's metrics, for versions of ScyllaDB that come without
    #[arg(long, env = "MESSINA_NODE_EXPORTER_IMAGE", value_name = "IMAGE", default_value = NODE_EXPORTER_IMAGE)]
    pub node_exporter_image: String,
}

/// Prints the objects; or, when anything is wrong, what is, and no object at all: a part might be taken for the whole.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut manifests = Vec::new();
    for file in &options.files {
        match read(file) {
            Ok(text) => manifests.push(Manifest { file: file.display().to_string(), text }),
            Err(error) => {
                eprintln!("{}: it cannot be read: {error}", file.display());
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
        // Manifests are often those of others.
        eprintln!("{}", messina_text::line(line, LONGEST));
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
        // The reader has seen enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("writing to standard output"),
    }
}
