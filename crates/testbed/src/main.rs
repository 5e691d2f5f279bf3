//! `testbed`: a real Kubernetes on one machine.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand};
use messina_testbed::{
    bench,
    cluster::{self, Cluster, Kind, State, Wish},
    demo, deploy,
    etcd::{self, Shape},
    facts, harness,
    image::Image,
    node,
    progress::Steps,
    provisioner, suitability, suite, supervise,
    tools::NodeTools,
};

/// A real Kubernetes on one machine, for development and tests.
#[derive(Parser)]
#[command(name = "testbed", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a cluster; one that runs already is left as it is
    Up(Up),
    /// Stops a cluster and removes all traces of it
    Down(Down),
    /// Lists the clusters of this machine
    Status,
    /// Prints a cluster's kubeconfig
    Kubeconfig(Name),
    /// Makes an image of a program and imports it into every node
    Image(ImageOf),
    /// Imports the images of the operator and of simulated nodes into every Kubernetes node, or writes them as archives
    Images(Images),
    /// Downloads or builds the programs and images of a full cluster, so that `up` finds them
    Tools,
    /// Starts a cluster with the operator and a datacenter of simulated nodes, and says what to try
    Demo(Up),
    /// Prints what the API server says of Kubernetes' own types that stand inside ours
    SchemaFacts(Name),
    /// Runs the tests of this workspace, and prints what each of them costs
    Test(Test),
    /// Measures what the operator costs, on a cluster of its own
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
    /// How many nodes, each with its own containerd and kubelet
    #[arg(long, default_value_t = 1)]
    nodes: u8,
    /// Without nodes: etcd, API server and controller manager on loopback; needs no root
    #[arg(long)]
    light: bool,
    /// In a light cluster: nodes that exist in the API only, played by KWOK, and a scheduler
    #[arg(long, default_value_t = 0, requires = "light")]
    fake_nodes: u32,
    /// In a light cluster: the API server's port [default: any free one]
    #[arg(long, requires = "light")]
    port: Option<u16>,
    /// Uses this existing cluster instead of starting one
    #[arg(long, conflicts_with_all = ["light", "nodes"])]
    kubeconfig: Option<PathBuf>,
    /// Starts an etcd cluster with etcd-backup-restore in it: the Etcd `etcd-main` in the namespace `default`
    #[arg(long)]
    with_etcd: bool,
    /// How many members the etcd cluster has: 1 or 3
    #[arg(long, default_value_t = 1, requires = "with_etcd", value_parser = one_or_three)]
    etcd_members: u8,
    /// The etcd cluster speaks TLS, and its clients have to show a certificate
    #[arg(long, requires = "with_etcd")]
    etcd_tls: bool,
}

fn one_or_three(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("it has to be 1 or 3".into()),
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
    /// The program `messina`; `make release` makes it
    operator: PathBuf,
    /// How many datacenters of one node, in tens
    #[arg(long, default_value_t = 100, value_parser = tens)]
    datacenters: usize,
    /// For how many seconds nothing may be asked once all is done
    #[arg(long, default_value_t = 60)]
    idle: u64,
}

fn tens(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|_| "it is no number".to_owned())?;
    if number > 0 && number.is_multiple_of(10) { Ok(number) } else { Err("it has to be a multiple of ten".into()) }
}

#[derive(Args)]
struct ImageOf {
    #[command(flatten)]
    name: Name,
    /// The image's name and tag, such as localhost/messina/operator:dev
    reference: String,
    /// The program that the image runs; libraries that it is linked against come along
    program: PathBuf,
    /// More files, as SOURCE:PATH
    #[arg(long = "file")]
    files: Vec<String>,
    /// Whom the program runs as, in numbers
    #[arg(long, default_value = "65532:65532")]
    user: String,
    /// Where the archive is kept [default: a temporary file]
    #[arg(long)]
    output: Option<PathBuf>,
    /// Only writes the archive
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
            steps.say(format!(
                "The cluster is usable after {:.1} s: {}",
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
            // Tests wait more than they work.
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
    let wish = Wish {
        name: arguments.name.name,
        kind: if arguments.light { Kind::Light } else { Kind::Full },
        nodes: arguments.nodes,
        fake_nodes: arguments.fake_nodes,
        port: arguments.port,
        kubeconfig: arguments.kubeconfig,
        etcd: arguments.with_etcd.then_some(Shape { members: arguments.etcd_members, tls: arguments.etcd_tls }),
    };
    cluster::up(&wish, steps).await
}

fn status() -> messina_testbed::Result<()> {
    let clusters = cluster::all()?;
    if clusters.is_empty() {
        println!("No cluster runs here. Start one with `testbed up`.");
    }
    for cluster in clusters {
        let state = match cluster.state() {
            State::Running => "running",
            State::Dead => "dead, to be removed by the next `testbed up` or `testbed down`",
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
    let step = steps.begin(format!("making {}", arguments.reference));
    image.write(&archive)?;
    step.done("");
    let imported =
        if arguments.no_import { Ok(()) } else { cluster::find(&arguments.name.name)?.import(&archive, steps) };
    if arguments.output.is_none() {
        messina_testbed::cache::remove(&archive)?;
    }
    imported
}
