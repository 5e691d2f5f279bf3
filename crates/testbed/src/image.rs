//! Container images without a container engine: an archive of one layer that `ctr images import`,
//! `kind load image-archive` and `docker load` read.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    error::{Doing, Error, Result},
    exec,
};

/// An image that is being built.
#[derive(Clone, Debug)]
pub struct Image {
    references: Vec<String>,
    entrypoint: Vec<String>,
    user: String,
    entries: Vec<(String, Content)>,
}

#[derive(Clone, Debug)]
enum Content {
    File(PathBuf),
    Text(String),
    Link(String),
    Folder,
}

impl Image {
    /// An empty image of this name and entrypoint.
    pub fn new(reference: impl Into<String>, entrypoint: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let entrypoint = entrypoint.into_iter().map(Into::into).collect();
        let entries = vec![("/tmp".into(), Content::Folder)];
        Self { references: vec![reference.into()], entrypoint, user: "0:0".into(), entries }
    }

    /// Adds another name for the same image.
    pub fn also_named(mut self, reference: impl Into<String>) -> Self {
        self.references.push(reference.into());
        self
    }

    /// Sets the user of the program, as USER:GROUP in numbers. The default is root.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Adds a file, with its permissions.
    pub fn file(mut self, source: impl Into<PathBuf>, path: impl Into<String>) -> Self {
        self.entries.push((path.into(), Content::File(source.into())));
        self
    }

    /// Adds a text file.
    pub fn text(mut self, text: impl Into<String>, path: impl Into<String>) -> Self {
        self.entries.push((path.into(), Content::Text(text.into())));
        self
    }

    /// Adds an empty folder.
    pub fn folder(mut self, path: impl Into<String>) -> Self {
        self.entries.push((path.into(), Content::Folder));
        self
    }

    /// Adds a symbolic link.
    pub fn link(mut self, target: impl Into<String>, path: impl Into<String>) -> Self {
        self.entries.push((path.into(), Content::Link(target.into())));
        self
    }

    /// Adds a program with the libraries that it is linked against, each at its own path.
    pub fn program(mut self, source: &Path, path: impl Into<String>) -> Result<Self> {
        for library in libraries(source)? {
            self = self.file(library.clone(), library.to_string_lossy());
        }
        Ok(self.file(source, path))
    }

    /// Writes the archive.
    pub fn write(&self, out: &Path) -> Result<()> {
        let layer_file = out.with_extension("layer");
        let written =
            self.write_layer(&layer_file).and_then(|layer_digest| self.write_archive(out, &layer_file, &layer_digest));
        crate::cache::remove(&layer_file)?;
        written
    }

    fn write_layer(&self, layer_file: &Path) -> Result<String> {
        let file = File::create(layer_file).doing(|| format!("creating {}", layer_file.display()))?;
        let mut layer = tar::Builder::new(Hashing { inner: io::BufWriter::new(file), hash: Sha256::new() });
        let mut folders = std::collections::BTreeSet::new();
        for (path, content) in &self.entries {
            let relative = Path::new(path.trim_start_matches('/'));
            let above = relative.ancestors().skip(usize::from(!matches!(content, Content::Folder)));
            let mut above: Vec<_> = above.filter(|folder| !folder.as_os_str().is_empty()).collect();
            above.reverse();
            for folder in above {
                if folders.insert(folder.to_owned()) {
                    let mode = if folder == Path::new("tmp") { 0o1777 } else { 0o755 };
                    let mut header = header(tar::EntryType::Directory, mode, 0);
                    layer
                        .append_data(&mut header, folder, io::empty())
                        .doing(|| format!("adding {path} to the image"))?;
                }
            }
            match content {
                Content::Folder => Ok(()),
                Content::Text(text) => {
                    let mut header = header(tar::EntryType::Regular, 0o644, text.len() as u64);
                    layer.append_data(&mut header, relative, text.as_bytes())
                }
                Content::Link(target) => {
                    layer.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), relative, target)
                }
                Content::File(source) => File::open(source).and_then(|file| {
                    let metadata = file.metadata()?;
                    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o755;
                    layer.append_data(&mut header(tar::EntryType::Regular, mode, metadata.len()), relative, file)
                }),
            }
            .doing(|| format!("adding {path} to the image"))?;
        }
        let mut hashing = layer.into_inner().doing(|| format!("writing {}", layer_file.display()))?;
        hashing.flush().doing(|| format!("writing {}", layer_file.display()))?;
        Ok(hex(hashing.hash))
    }

    fn write_archive(&self, out: &Path, layer_file: &Path, layer_digest: &str) -> Result<()> {
        let config = json!({
            "architecture": match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other },
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "User": self.user,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
        })
        .to_string();
        let config_name = format!("{}.json", hex(Sha256::new_with_prefix(&config)));
        let manifest =
            json!([{"Config": config_name, "RepoTags": self.references, "Layers": ["layer.tar"]}]).to_string();
        let write = || -> io::Result<()> {
            let mut archive = tar::Builder::new(io::BufWriter::new(File::create(out)?));
            for (name, content) in [(config_name.as_str(), &config), ("manifest.json", &manifest)] {
                let mut header = header(tar::EntryType::Regular, 0o644, content.len() as u64);
                archive.append_data(&mut header, name, content.as_bytes())?;
            }
            let layer = File::open(layer_file)?;
            let mut header = header(tar::EntryType::Regular, 0o644, layer.metadata()?.len());
            archive.append_data(&mut header, "layer.tar", layer)?;
            archive.into_inner()?.flush()
        };
        write().doing(|| format!("writing {}", out.display()))
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A writer that hashes what it writes.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The shared libraries of a program; none when it is statically linked.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let mut magic = [0; 4];
    File::open(program)
        .and_then(|mut file| file.read_exact(&mut magic))
        .doing(|| format!("reading {}", program.display()))?;
    if &magic != b"\x7fELF" {
        return Err(Error::refused(format!(
            "{} is not a Linux program: name a binary built for Linux",
            program.display()
        )));
    }
    let Ok(said) = exec::output("listing shared libraries", Command::new("ldd").arg(program)) else {
        // ldd fails for a statically linked program.
        return Ok(vec![]);
    };
    // "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x...)", or the loader alone: "/lib64/ld-linux-x86-64.so.2
    // (0x...)"
    let paths = said.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let libraries: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    match libraries.iter().find(|library| !fs::exists(library).unwrap_or(false)) {
        Some(missing) => Err(Error::refused(format!(
            "{} needs the library {}, which does not exist on this host",
            program.display(),
            missing.display()
        ))),
        None => Ok(libraries),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;

    fn entries(archive: impl Read) -> BTreeMap<String, (tar::Header, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let read = |entry: io::Result<tar::Entry<'_, _>>| {
            let mut entry = entry.unwrap();
            let mut content = vec![];
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().to_string_lossy().into_owned(), (entry.header().clone(), content))
        };
        archive.entries().unwrap().map(read).collect()
    }

    #[test]
    fn archive_describes_its_layer() {
        let out = std::env::temp_dir().join(format!("messina-image-test-{}.tar", std::process::id()));
        let program = Path::new("/bin/sh");
        let image = Image::new("example/image:1", ["/bin/program"]).also_named("example/image:2").user("1:2");
        image.program(program, "/bin/program").unwrap().link("program", "/bin/alias").write(&out).unwrap();

        let archive = entries(File::open(&out).unwrap());
        let json = |name: &str| serde_json::from_slice::<Value>(&archive[name].1).unwrap();
        let manifest = &json("manifest.json")[0];
        assert_eq!(manifest["RepoTags"], json!(["example/image:1", "example/image:2"]));
        let config = json(manifest["Config"].as_str().unwrap());
        assert_eq!(config["config"]["Entrypoint"], json!(["/bin/program"]));
        assert_eq!(config["config"]["User"], "1:2");
        let layer = &archive[manifest["Layers"][0].as_str().unwrap()].1;
        let digest = format!("sha256:{}", hex(Sha256::new_with_prefix(layer)));
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest]));

        let files = entries(layer.as_slice());
        assert_eq!(files["bin/program"].1, fs::read(program).unwrap());
        assert_eq!(files["bin/program"].0.mode().unwrap() & 0o111, 0o111, "a program can be run");
        assert_eq!(files["bin/alias"].0.link_name().unwrap().unwrap(), Path::new("program"));
        assert_eq!(files["tmp"].0.mode().unwrap(), 0o1777, "all users may write to /tmp");
        // It is linked against libraries, the loader first of all.
        assert!(files.keys().any(|path| path.contains("ld-linux")), "{:?}", files.keys());
        fs::remove_file(&out).unwrap();
    }
}
