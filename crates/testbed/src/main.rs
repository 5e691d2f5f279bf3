//! `testbed`: Kubernetes clusters on this host.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand};
use messina_testbed::{
    bench,
    cluster::{self, Cluster, ClusterSpec, Kind, State},
    demo, deploy,
    etcd::{self, Shape},
    facts, harness,
    image::Image,
    node,
    progress::Steps,
    provisioner, suitability, suite, supervise,
    tools::NodeTools,
};

/// Kubernetes clusters on this host, for development and tests.
#[derive(Parser)]
#[command(name = "testbed", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a cluster; a running one is not changed
    Up(Up),
    /// Stops a cluster and deletes everything that belongs to it
    Down(Down),
    /// Lists the clusters on this host
    Status,
    /// Prints a cluster's kubeconfig
    Kubeconfig(Name),
    /// Builds an image of a program and imports it into every Kubernetes node
    Image(ImageOf),
    /// Imports the images of the operator and of simulated nodes into every Kubernetes node, or writes them as archives
    Images(Images),
    /// Downloads or builds the programs and images of a full cluster, so that `up` finds them
    Tools,
    /// Starts a cluster with the operator and a datacenter of simulated nodes, and prints commands to try
    Demo(Up),
    /// Prints the API server's schema of the Kubernetes types that Messina's types embed
    SchemaFacts(Name),
    /// Runs the tests of this workspace, and prints the time and CPU time of each
    Test(Test),
    /// Measures the operator's requests, memory and CPU time, on a cluster of its own
    Bench(Bench),
    #[command(hide = true)]
    Supervise { folder: PathBuf },
    #[command(hide = true)]
    Node { description: PathBuf },
    #[command(hide = true)]
    Provisioner { folder: PathBuf },
    #[command(hide = true)]
    EtcdKeeper { folder: PathBuf },
}

#[derive(Args)]
struct Name {
    /// The cluster's name
    #[arg(long, default_value = cluster::DEFAULT_NAME)]
    name: String,
}

#[derive(Args)]
struct Down {
    #[command(flatten)]
    name: Name,
    /// Remove all test clusters: the shared ones and those of interrupted tests
    #[arg(long, conflicts_with = "name")]
    tests: bool,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    name: Name,
    /// Number of Kubernetes nodes, each with its own containerd and kubelet
    #[arg(long, default_value_t = 1)]
    nodes: u8,
    /// A control plane without Kubernetes nodes, on loopback: etcd, API server and controller manager; needs no root
    #[arg(long)]
    light: bool,
    /// Number of Kubernetes nodes that KWOK simulates, with a scheduler; needs --light
    #[arg(long, default_value_t = 0, requires = "light")]
    fake_nodes: u32,
    /// Port of the API server; needs --light [default: any free port]
    #[arg(long, requires = "light")]
    port: Option<u16>,
    /// Kubeconfig of an existing cluster to use instead of starting one
    #[arg(long, conflicts_with_all = ["light", "nodes"])]
    kubeconfig: Option<PathBuf>,
    /// Also starts an etcd cluster with etcd-backup-restore: the Etcd `etcd-main` in the namespace `default`
    #[arg(long)]
    with_etcd: bool,
    /// Number of members of the etcd cluster: 1 or 3
    #[arg(long, default_value_t = 1, requires = "with_etcd", value_parser = one_or_three)]
    etcd_members: u8,
    /// Encrypts the etcd cluster with TLS; clients need a certificate
    #[arg(long, requires = "with_etcd")]
    etcd_tls: bool,
}

fn one_or_three(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("must be 1 or 3".into()),
    }
}

#[derive(Args)]
struct Images {
    #[command(flatten)]
    name: Name,
    /// A folder for the archives, for clusters that are not the testbed's (docs/getting-started.md)
    #[arg(long, conflicts_with = "name")]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct Test {
    /// Also run the slow tier (docs/internals/testing.md)
    #[arg(long)]
    slow: bool,
    /// Run the tests of the testbed itself even if it has not changed since they passed
    #[arg(long, requires = "slow")]
    selftests: bool,
    /// Only tests whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Number of tests to run in parallel [default: 4 per CPU]
    #[arg(long)]
    at_once: Option<std::num::NonZeroUsize>,
    /// Leave the shared clusters `test-light` and `test` running
    #[arg(long)]
    keep: bool,
}

#[derive(Args)]
struct Bench {
    /// Path of the program `messina`, as `make release` builds it
    operator: PathBuf,
    /// Number of datacenters of one node: a multiple of ten
    #[arg(long, default_value_t = 100, value_parser = tens)]
    datacenters: usize,
    /// Seconds without a request that an idle operator has to last
    #[arg(long, default_value_t = 60)]
    idle: u64,
}

fn tens(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0 && number.is_multiple_of(10) { Ok(number) } else { Err("must be a multiple of ten".into()) }
}

#[derive(Args)]
struct ImageOf {
    #[command(flatten)]
    name: Name,
    /// Name and tag of the image, such as localhost/messina/operator:dev
    reference: String,
    /// Program that the image runs; the shared libraries that it needs are included
    program: PathBuf,
    /// More files, as SOURCE:PATH
    #[arg(long = "file")]
    files: Vec<String>,
    /// User and group that the program runs as, in numbers
    #[arg(long, default_value = "65532:65532")]
    user: String,
    /// File to write the archive to [default: a temporary file]
    #[arg(long)]
    output: Option<PathBuf>,
    /// Writes the archive without importing it
    #[arg(long, requires = "output")]
    no_import: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testbed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> messina_testbed::Result<()> {
    let steps = Steps::default();
    match command {
        Command::Up(arguments) => {
            let cluster = up(arguments, &steps).await?;
            steps.print_line(format!(
                "The cluster is ready after {:.1} s: {}",
                steps.elapsed().as_secs_f64(),
                cluster.describe()
            ));
            println!("export KUBECONFIG={}", cluster.kubeconfig().display());
            Ok(())
        }
        Command::Down(Down { tests: true, .. }) => suite::remove_clusters(),
        Command::Down(Down { name, .. }) => cluster::down(&name.name, &steps),
        Command::Status => status(),
        Command::Kubeconfig(arguments) => {
            let file = cluster::find(&arguments.name)?.kubeconfig();
            print!("{}", messina_testbed::cache::read(&file)?);
            Ok(())
        }
        Command::Image(arguments) => image(arguments, &steps),
        Command::Images(Images { name, output: None }) => deploy::images(&cluster::find(&name.name)?, &steps),
        Command::Images(Images { output: Some(folder), .. }) => {
            for archive in deploy::write_images(&folder, &steps)? {
                println!("{}", archive.display());
            }
            Ok(())
        }
        Command::Tools => {
            suitability::check_nodes(&steps)?;
            NodeTools::get(&steps).map(drop)
        }
        Command::Demo(arguments) => {
            let cluster = up(arguments, &steps).await?;
            demo::run(&cluster, &steps).await
        }
        Command::SchemaFacts(arguments) => {
            let client = harness::client(&cluster::find(&arguments.name)?.kubeconfig()).await?;
            println!("{:#}", facts::gather(&client).await?);
            Ok(())
        }
        Command::Test(Test { slow, selftests, only, at_once, keep }) => {
            // Tests mostly wait.
            let usual = || 4 * std::thread::available_parallelism().map_or(1, usize::from);
            let at_once = at_once.map_or_else(usual, usize::from);
            suite::run(&suite::Selection { slow, selftests, only, at_once, keep }, &steps).await
        }
        Command::Bench(Bench { operator, datacenters, idle }) => {
            let measure = bench::Measure { operator, datacenters, idle: Duration::from_secs(idle) };
            bench::run(&measure, &steps).await
        }
        Command::Supervise { folder } => supervise::run(&folder),
        Command::Node { description } => node::run(&description),
        Command::Provisioner { folder } => provisioner::run(&folder).await,
        Command::EtcdKeeper { folder } => etcd::keeper::run(&folder).await,
    }
}

async fn up(arguments: Up, steps: &Steps) -> messina_testbed::Result<Cluster> {
    let spec = ClusterSpec {
        name: arguments.name.name,
        kind: if arguments.light { Kind::Light } else { Kind::Full },
        nodes: arguments.nodes,
        fake_nodes: arguments.fake_nodes,
        port: arguments.port,
        kubeconfig: arguments.kubeconfig,
        etcd: arguments.with_etcd.then_some(Shape { members: arguments.etcd_members, tls: arguments.etcd_tls }),
    };
    cluster::up(&spec, steps).await
}

fn status() -> messina_testbed::Result<()> {
    let clusters = cluster::all()?;
    if clusters.is_empty() {
        println!("No cluster is running on this host. Start one with `testbed up`.");
    }
    for cluster in clusters {
        let state = match cluster.state() {
            State::Running => "running",
            State::Dead => "not running: its processes are gone. The next `testbed up` or `testbed down` removes it",
        };
        println!("{}: {state}; {}", cluster.name, cluster.describe());
        println!("    kubeconfig {}", cluster.kubeconfig().display());
        println!("    logs       {}", cluster.logs().display());
    }
    Ok(())
}

fn image(arguments: ImageOf, steps: &Steps) -> messina_testbed::Result<()> {
    let program_name = arguments.program.file_name().unwrap_or_default().to_string_lossy();
    let path = format!("/{program_name}");
    let mut image =
        Image::new(&arguments.reference, [&path]).user(arguments.user).program(&arguments.program, &path)?;
    for file in &arguments.files {
        let (source, path) = file.split_once(':').ok_or_else(|| {
            messina_testbed::Error::refused(format!(
                "--file {file:?} has no path in the image: write it as SOURCE:PATH"
            ))
        })?;
        image = image.file(source, path);
    }
    let archive = match &arguments.output {
        Some(output) => output.clone(),
        None => std::env::temp_dir().join(format!("messina-image-{}.tar", std::process::id())),
    };
    let step = steps.begin(format!("building {}", arguments.reference));
    image.write(&archive)?;
    step.done("");
    let imported =
        if arguments.no_import { Ok(()) } else { cluster::find(&arguments.name.name)?.import(&archive, steps) };
    if arguments.output.is_none() {
        messina_testbed::cache::remove(&archive)?;
    }
    imported
}
