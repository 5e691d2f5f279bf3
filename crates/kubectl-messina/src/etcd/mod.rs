//! `kubectl messina etcd`: creates, follows and lists tasks on etcd clusters.
//!
//! ```text
//! request    builds an EtcdOperatorTask from the command line           (pure)
//! create     creates the task, if its Etcd exists; lists tasks           (I/O)
//! follow     watches a task until it is finished                         (I/O)
//! screen     shows its progress: a spinner, or plain lines               (I/O)
//! messages   describes a task                                           (pure)
//! tasks      tasks in the order of their queue, also as JSON document   (pure)
//! table      the same as a table                                        (pure)
//! ```

mod create;
mod follow;
mod messages;
mod request;
mod screen;
mod table;
mod tasks;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum, error::ErrorKind};
use kube::{Api, Client, Config, ResourceExt};
use messina_api::druid::v1alpha1::{EtcdOperatorTask, TaskState};

use crate::{
    cluster::{self, Access, Error, ResourceKind},
    page::Style,
    plan::print,
    status::OutputFormat,
};
use follow::{Outcome, follow};
use request::Request;
use screen::Screen;
use tasks::Tasks;

const ETCD: ResourceKind = ResourceKind {
    name: "Etcd",
    resource: "etcds.druid.gardener.cloud",
    provided_by: "the operator that runs etcd clusters",
};
const TASK: ResourceKind = ResourceKind {
    name: "EtcdOperatorTask",
    resource: "etcdoperatortasks.druid.gardener.cloud",
    provided_by: "the CustomResourceDefinitions of Messina",
};

/// The exit code after Ctrl-C, as in a shell.
const INTERRUPTED: u8 = 130;
/// The exit code for an invalid command line.
const INVALID_USAGE: u8 = 2;

/// The subcommands of `etcd`.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Takes a snapshot now, independent of the schedule
    Snapshot(Snapshot),
    /// Defragments the members one after the other, which frees disk space
    Defrag(Defrag),
    /// Compacts the history: removes old revisions of all keys
    Compact(Compact),
    /// Follows an existing task until it is finished
    Wait(Wait),
    /// Lists tasks, with their state and the number of tasks ahead of them
    Tasks(ListArgs),
}

/// Arguments of `snapshot`.
#[derive(Clone, Debug, clap::Args)]
pub struct Snapshot {
    /// Takes a delta snapshot: only the changes since the last snapshot
    #[arg(long)]
    delta: bool,
    /// Marks the snapshot as the final one of this etcd cluster, for example before a migration
    #[arg(long = "final")]
    is_final: bool,
    #[command(flatten)]
    new: TaskArgs,
}

/// Arguments of `defrag`.
#[derive(Clone, Debug, clap::Args)]
pub struct Defrag {
    #[command(flatten)]
    new: TaskArgs,
}

/// Arguments of `compact`.
#[derive(Clone, Debug, clap::Args)]
pub struct Compact {
    /// The number of latest revisions to keep, so that slow clients can catch up (default: 10000)
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
    retain: Option<i64>,
    #[command(flatten)]
    new: TaskArgs,
}

/// Arguments of all subcommands that create a task.
#[derive(Clone, Debug, clap::Args)]
struct TaskArgs {
    /// The Etcd to run the task on
    #[arg(value_name = "ETCD", value_parser = request::name)]
    etcd: String,
    /// Follows the task until it is finished
    #[arg(long)]
    wait: bool,
    /// The time limit of the task, such as 90s or 15m (default: depends on its type)
    #[arg(long, value_name = "DURATION", value_parser = request::timeout)]
    timeout: Option<i32>,
    /// The time after which a finished task is deleted; 0 deletes it at once
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = request::seconds)]
    ttl: i32,
    /// The output format: text, the task as JSON (with --wait, the finished task), or only its name
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: TaskOutput,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `wait`.
#[derive(Clone, Debug, clap::Args)]
pub struct Wait {
    /// The EtcdOperatorTask to follow
    #[arg(value_name = "TASK", value_parser = request::name)]
    task: String,
    /// The output format: text, the finished task as JSON, or only its name
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: TaskOutput,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `tasks`.
#[derive(Clone, Debug, clap::Args)]
pub struct ListArgs {
    /// Lists only tasks on this Etcd
    #[arg(value_name = "ETCD", conflicts_with = "all_namespaces", value_parser = request::name)]
    etcd: Option<String>,
    /// Searches all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// The output format: a table for people, or a JSON document for programs
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments that select the cluster and the namespace.
#[derive(Clone, Debug, Default, clap::Args)]
struct ClusterArgs {
    /// The namespace (default: the namespace of the kubeconfig's context)
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    access: Access,
}

/// The output format for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TaskOutput {
    /// Text for people.
    Text,
    /// A JSON document.
    Json,
    /// Its kind and name.
    Name,
}

/// Runs a subcommand, or prints an error in one sentence.
pub async fn run(command: &Command) -> Result<ExitCode> {
    let outcome = match command {
        Command::Snapshot(snapshot) => {
            let request = match Request::snapshot(snapshot.delta, snapshot.is_final) {
                Ok(request) => request,
                Err(remedy) => {
                    clap::Error::raw(ErrorKind::ArgumentConflict, remedy).print()?;
                    return Ok(ExitCode::from(INVALID_USAGE));
                }
            };
            create(&snapshot.new, request).await
        }
        Command::Defrag(defrag) => create(&defrag.new, Request::Defragment).await,
        Command::Compact(compact) => create(&compact.new, Request::Compact { retain: compact.retain }).await,
        Command::Wait(wait) => self::wait(wait).await,
        Command::Tasks(list) => tasks(list).await,
    };
    match outcome {
        Ok(code) => Ok(code),
        Err(error) => match error.downcast::<Error>() {
            Ok(error) => {
                eprintln!("{error}");
                Ok(ExitCode::FAILURE)
            }
            Err(other) => Err(other),
        },
    }
}

/// A client for a cluster, and a namespace in it.
struct Connection {
    client: Client,
    namespace: String,
    /// The arguments that make a suggested command use the same cluster and namespace.
    arguments: String,
}

impl ClusterArgs {
    async fn connect(&self, change: impl FnOnce(&mut Config)) -> Result<Connection, Error> {
        let mut config = self.access.config().await?;
        change(&mut config);
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let arguments = messages::arguments(&namespace, &self.access);
        Ok(Connection { client: cluster::client(config)?, namespace, arguments })
    }
}

async fn create(new: &TaskArgs, request: Request) -> Result<ExitCode> {
    let connection = new.cluster.connect(|config| set_read_timeout(config, new.wait)).await?;
    if let Some(warning) = create::find(&connection, &new.etcd).await? {
        eprintln!("{warning}");
    }
    let desired = request.task(&new.etcd, new.timeout, new.ttl);
    let task = create::create(&connection, &desired).await?;
    match new.output {
        TaskOutput::Text => {
            print(&messages::created(
                &task,
                &request,
                &connection.namespace,
                &connection.arguments,
                new.wait,
                Style::of_output(false),
            ))?;
        }
        TaskOutput::Json if !new.wait => print_json(&task)?,
        TaskOutput::Json => {}
        TaskOutput::Name => print_name(&task)?,
    }
    if new.wait { follow_and_report(&connection, task, new.output).await } else { Ok(ExitCode::SUCCESS) }
}

async fn wait(wait: &Wait) -> Result<ExitCode> {
    let connection = wait.cluster.connect(|config| set_read_timeout(config, true)).await?;
    let api: Api<EtcdOperatorTask> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let task = cluster::get(&api, &wait.task)
        .await
        .map_err(|source| Error::from_request(source, "get", TASK, Some(&wait.task), Some(&connection.namespace)))?;
    if wait.output == TaskOutput::Name {
        print_name(&task)?;
    }
    follow_and_report(&connection, task, wait.output).await
}

/// Raises the read timeout for a watch, which may have no data for longer than an answer may take.
fn set_read_timeout(config: &mut Config, watches: bool) {
    if watches {
        config.read_timeout = Some(follow::READ_TIMEOUT);
    }
}

async fn follow_and_report(connection: &Connection, task: EtcdOperatorTask, output: TaskOutput) -> Result<ExitCode> {
    let api: Api<EtcdOperatorTask> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let name = task.name_any();
    let screen = Screen::of_errors();
    let interrupted = async {
        // Where the signal cannot be handled, it ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let outcome = tokio::select! {
        // First, so that Ctrl-C works as soon as a line is shown.
        biased;
        () = interrupted => Ok(Outcome::Interrupted),
        outcome = follow(&api, task, &connection.namespace, |task_line| screen.show(task_line)) => outcome,
    };
    screen.clear();
    match outcome {
        Ok(Outcome::Finished(task)) => {
            let succeeded =
                task.status.as_ref().and_then(|status| status.state.as_ref()) == Some(&TaskState::Succeeded);
            if output == TaskOutput::Json {
                print_json(&task)?;
            }
            let message = messages::describe_end(&task) + "\n";
            match output {
                TaskOutput::Text if succeeded => print(&message)?,
                _ => eprint!("{message}"),
            }
            Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Ok(Outcome::Deleted) => {
            eprintln!("{name} was deleted before it was finished, so its result is unknown.");
            Ok(ExitCode::FAILURE)
        }
        Ok(Outcome::Interrupted) => {
            eprintln!("{}", messages::interrupted(&name, &connection.arguments));
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(error) => {
            eprintln!("{error}\n{}", messages::interrupted(&name, &connection.arguments));
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn tasks(list: &ListArgs) -> Result<ExitCode> {
    let connection = list.cluster.connect(|_| {}).await?;
    let namespace = (!list.all_namespaces).then_some(connection.namespace);
    let listed = create::all(&connection.client, namespace.as_deref()).await?;
    let tasks = Tasks::new(&listed, namespace, list.etcd.clone());
    let shown = match list.output {
        OutputFormat::Json => serde_json::to_string_pretty(&tasks).context("writing JSON")? + "\n",
        OutputFormat::Text => table::text(&tasks, jiff::Timestamp::now(), Style::of_output(false)),
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

fn print_json(task: &EtcdOperatorTask) -> Result<()> {
    print(&(serde_json::to_string_pretty(task).context("writing JSON")? + "\n"))
}

fn print_name(task: &EtcdOperatorTask) -> Result<()> {
    print(&format!("etcdoperatortask.druid.gardener.cloud/{}\n", task.name_any()))
}
