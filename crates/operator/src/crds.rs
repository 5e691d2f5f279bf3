//! `messina crds`: prints the CustomResourceDefinitions or writes them to files.

use std::{
    fs,
    io::{ErrorKind, Write},
    path::Path,
};

use anyhow::{Context, Result};
use messina_api::crd;

/// Prints all CustomResourceDefinitions to standard output.
pub fn print() -> Result<()> {
    let mut stream = String::new();
    for definition in crd::all() {
        stream += "---\n";
        stream += &crd::yaml(&definition).context("writing YAML")?;
    }
    match std::io::stdout().write_all(stream.as_bytes()) {
        // The reader, such as `head`, has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("writing to standard output"),
    }
}

/// Writes each CustomResourceDefinition to a file in `folder`, and deletes other YAML files there.
pub fn write(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut written = vec![];
    for definition in crd::all() {
        let file = folder.join(crd::file_name(&definition));
        fs::write(&file, crd::yaml(&definition).context("writing YAML")?)
            .with_context(|| format!("writing {}", file.display()))?;
        written.push(file);
    }
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let file = entry.with_context(|| format!("reading {}", folder.display()))?.path();
        if file.extension().is_some_and(|extension| extension == "yaml") && !written.contains(&file) {
            fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        }
    }
    Ok(())
}
