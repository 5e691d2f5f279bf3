//! `kubectl messina etcd`: tasks on etcd clusters that a person asks for.
//!
//! ```text
//! request   what is asked for, as an EtcdOperatorTask           (pure)
//! create    creates it, when its Etcd is there                   (I/O)
//! follow    watches it until its end                             (I/O)
//! screen    shows what is seen: a spinner, or plain lines        (I/O)
//! words     what is said of a task                               (pure)
//! tasks     tasks in line; also the JSON document                (pure)
//! table     the same for people                                  (pure)
//! ```

mod create;
mod follow;
mod request;
mod screen;
mod table;
mod tasks;
mod words;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum, error::ErrorKind};
use kube::{Api, Client, Config, ResourceExt};
use messina_api::druid::v1alpha1::{EtcdOperatorTask, TaskState};

use crate::{
    cluster::{self, Access, Error, Kind},
    page::Look,
    plan::print,
    status::Form,
};
use follow::{Ending, follow};
use request::Request;
use screen::Screen;
use tasks::Tasks;

const ETCD: Kind =
    Kind { name: "Etcd", resource: "etcds.druid.gardener.cloud", comes_with: "the operator that runs etcd clusters" };
const TASK: Kind = Kind {
    name: "EtcdOperatorTask",
    resource: "etcdoperatortasks.druid.gardener.cloud",
    comes_with: "Messina's definitions",
};

/// A person has pressed Ctrl-C; a shell would say the same.
const INTERRUPTED: u8 = 130;
/// The command line is wrong.
const MISUSED: u8 = 2;

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Takes a snapshot now, and not when the schedule says so
    Snapshot(Snapshot),
    /// Gives space back to the members' machines, one member after the other
    Defrag(Defrag),
    /// Forgets old revisions of all keys
    Compact(Compact),
    /// Follows a task that exists until its end
    Wait(Wait),
    /// Shows tasks, how they stand, and how many come before them
    Tasks(Question),
}

/// A snapshot.
#[derive(Clone, Debug, clap::Args)]
pub struct Snapshot {
    /// Takes only what changed since the last snapshot
    #[arg(long)]
    delta: bool,
    /// Marks the snapshot as the last one of this etcd cluster, as before it is moved elsewhere
    #[arg(long = "final")]
    is_final: bool,
    #[command(flatten)]
    new: New,
}

/// A defragmentation.
#[derive(Clone, Debug, clap::Args)]
pub struct Defrag {
    #[command(flatten)]
    new: New,
}

/// A compaction.
#[derive(Clone, Debug, clap::Args)]
pub struct Compact {
    /// How many of the last revisions are kept, so that clients that lag behind can catch up; without it, 10000
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
    retain: Option<i64>,
    #[command(flatten)]
    new: New,
}

/// What all new tasks have.
#[derive(Clone, Debug, clap::Args)]
struct New {
    /// The Etcd to work on
    #[arg(value_name = "ETCD", value_parser = request::name)]
    etcd: String,
    /// Follows the task until its end
    #[arg(long)]
    wait: bool,
    /// The task has failed when it is not done after this time, such as 90s or 15m; without it, its type decides
    #[arg(long, value_name = "DURATION", value_parser = request::timeout)]
    timeout: Option<i32>,
    /// The task is deleted so long after its end; 0 deletes it at once
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = request::seconds)]
    ttl: i32,
    /// As text for people, as the JSON of the task (with --wait, as it ends), or only its name
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Output,
    #[command(flatten)]
    whereabouts: Whereabouts,
}

/// A task to follow.
#[derive(Clone, Debug, clap::Args)]
pub struct Wait {
    /// The EtcdOperatorTask to follow
    #[arg(value_name = "TASK", value_parser = request::name)]
    task: String,
    /// As text for people, as the JSON of the task as it ends, or only its name
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Output,
    #[command(flatten)]
    whereabouts: Whereabouts,
}

/// Which tasks to show.
#[derive(Clone, Debug, clap::Args)]
pub struct Question {
    /// Only tasks on this Etcd
    #[arg(value_name = "ETCD", conflicts_with = "all_namespaces", value_parser = request::name)]
    etcd: Option<String>,
    /// Looks in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// As a table for people, or as a JSON document for programs
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    whereabouts: Whereabouts,
}

/// Where to look.
#[derive(Clone, Debug, Default, clap::Args)]
struct Whereabouts {
    /// The namespace; without it, that of the kubeconfig's context
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    access: Access,
}

/// How to show a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// In words.
    Text,
    /// As a JSON document.
    Json,
    /// Its kind and name.
    Name,
}

/// Does it, or says in one sentence why it cannot.
pub async fn run(command: &Command) -> Result<ExitCode> {
    let done = match command {
        Command::Snapshot(snapshot) => {
            let kind = match Request::snapshot(snapshot.delta, snapshot.is_final) {
                Ok(kind) => kind,
                Err(remedy) => {
                    clap::Error::raw(ErrorKind::ArgumentConflict, remedy).print()?;
                    return Ok(ExitCode::from(MISUSED));
                }
            };
            create(&snapshot.new, kind).await
        }
        Command::Defrag(defrag) => create(&defrag.new, Request::Defragment).await,
        Command::Compact(compact) => create(&compact.new, Request::Compact { retain: compact.retain }).await,
        Command::Wait(wait) => self::wait(wait).await,
        Command::Tasks(question) => tasks(question).await,
    };
    match done {
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

/// A cluster, and a namespace in it.
struct Place {
    client: Client,
    namespace: String,
    /// What commands that are proposed end with, so that they mean the same place.
    arguments: String,
}

impl Whereabouts {
    async fn place(&self, change: impl FnOnce(&mut Config)) -> Result<Place, Error> {
        let mut config = self.access.config().await?;
        change(&mut config);
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let arguments = words::arguments(&namespace, &self.access);
        Ok(Place { client: cluster::client(config)?, namespace, arguments })
    }
}

async fn create(new: &New, request: Request) -> Result<ExitCode> {
    let place = new.whereabouts.place(|config| prepare(config, new.wait)).await?;
    let doubt = create::find(&place, &new.etcd).await?;
    if let Some(doubt) = doubt {
        eprintln!("{doubt}");
    }
    let config = request.task(&new.etcd, new.timeout, new.ttl);
    let task = create::create(&place, &config).await?;
    match new.output {
        Output::Text => {
            print(&words::created(
                &task,
                &request,
                &place.namespace,
                &place.arguments,
                new.wait,
                Look::of_output(false),
            ))?;
        }
        Output::Json if !new.wait => print_json(&task)?,
        Output::Json => {}
        Output::Name => print_name(&task)?,
    }
    if new.wait { follow_and_tell(&place, task, new.output).await } else { Ok(ExitCode::SUCCESS) }
}

async fn wait(wait: &Wait) -> Result<ExitCode> {
    let place = wait.whereabouts.place(|config| prepare(config, true)).await?;
    let api: Api<EtcdOperatorTask> = Api::namespaced(place.client.clone(), &place.namespace);
    let task = cluster::get(&api, &wait.task)
        .await
        .map_err(|source| Error::of(source, "get", TASK, Some(&wait.task), Some(&place.namespace)))?;
    if wait.output == Output::Name {
        print_name(&task)?;
    }
    follow_and_tell(&place, task, wait.output).await
}

/// A watch may be silent for longer than an answer may take.
fn prepare(config: &mut Config, waits: bool) {
    if waits {
        config.read_timeout = Some(follow::SILENCE);
    }
}

async fn follow_and_tell(place: &Place, task: EtcdOperatorTask, output: Output) -> Result<ExitCode> {
    let api: Api<EtcdOperatorTask> = Api::namespaced(place.client.clone(), &place.namespace);
    let name = task.name_any();
    let screen = Screen::of_errors();
    let interrupted = async {
        // Where it cannot be told, the process ends as any other does.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let ending = tokio::select! {
        // First, so that whoever has seen a line can interrupt.
        biased;
        () = interrupted => Ok(Ending::LeftAlone),
        ending = follow(&api, task, &place.namespace, |sight| screen.show(sight)) => ending,
    };
    screen.clear();
    match ending {
        Ok(Ending::Finished(task)) => {
            let succeeded =
                task.status.as_ref().and_then(|status| status.state.as_ref()) == Some(&TaskState::Succeeded);
            if output == Output::Json {
                print_json(&task)?;
            }
            let said = words::ending(&task) + "\n";
            match output {
                Output::Text if succeeded => print(&said)?,
                _ => eprint!("{said}"),
            }
            Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Ok(Ending::Deleted) => {
            eprintln!("{name} was deleted before its end, so nobody says what became of it.");
            Ok(ExitCode::FAILURE)
        }
        Ok(Ending::LeftAlone) => {
            eprintln!("{}", words::left_alone(&name, &place.arguments));
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(error) => {
            eprintln!("{error}\n{}", words::left_alone(&name, &place.arguments));
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn tasks(question: &Question) -> Result<ExitCode> {
    let place = question.whereabouts.place(|_| {}).await?;
    let namespace = (!question.all_namespaces).then_some(place.namespace);
    let listed = create::all(&place.client, namespace.as_deref()).await?;
    let tasks = Tasks::new(&listed, namespace, question.etcd.clone());
    let shown = match question.output {
        Form::Json => serde_json::to_string_pretty(&tasks).context("writing JSON")? + "\n",
        Form::Text => table::text(&tasks, jiff::Timestamp::now(), Look::of_output(false)),
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
