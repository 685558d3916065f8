//! The `chancery` command.

mod args;
mod artifacts;
mod audit;
mod context;
mod fetch;
mod files;
mod keys;
mod model;
mod offline;
mod outcome;
mod progress;
mod receipts;
mod run;
mod seal;
mod storage;
mod up;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use outcome::Outcome;

fn main() -> ExitCode {
    // Wrong use ends here with exit code 2.
    let cli = Cli::parse();
    let json = cli.json;
    match execute(cli).and_then(|outcome| Ok(outcome.finish(json)?)) {
        Ok(code) => code,
        Err(error) => outcome::fail(&error),
    }
}

fn execute(cli: Cli) -> Result<Outcome> {
    let (state, json) = (cli.state.as_path(), cli.json);
    match cli.command {
        Command::Checkpoint(command) => offline::checkpoint::execute(command),
        Command::ServeView(arguments) => offline::serve_view::execute(&arguments),
        Command::Blob(command) => offline::blob::execute(command),
        Command::Convert(arguments) => offline::convert::execute(&arguments),
        Command::Jlm(command) => offline::jlm::execute(command),
        Command::Identity(command) => offline::identity::execute(command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "chancery", &mut script);
            let script = String::from_utf8_lossy(&script).into_owned();
            Ok(Outcome::new(&script, script.as_str()))
        }
        Command::Up(arguments) => up::up(state, arguments, json),
        Command::Down => up::down(state),
        Command::Keys(command) => keys::execute(state, command),
        Command::Seal(command) => on_runtime(seal::execute(state, command)),
        Command::Artifacts(command) => on_runtime(artifacts::execute(state, command)),
        Command::Model(command) => on_runtime(model::execute(state, command)),
        Command::Run(arguments) => on_runtime(run::execute(state, arguments, json)),
        Command::Receipts(command) => on_runtime(receipts::execute(state, command)),
        Command::Storage(command) => on_runtime(storage::execute(state, command)),
    }
}

/// Runs what talks to services.
fn on_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("no async runtime")?
        .block_on(work)
}
