//! `scylla-sim`: a simulated ScyllaDB node and its tools in one program. Its name selects its function.

use std::{env, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let mut arguments = env::args();
    let called = arguments.next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned();
    match messina_scylla_sim::tools::run(&name, arguments.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
