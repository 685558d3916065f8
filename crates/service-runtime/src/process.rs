//! A service's `main`: arguments, config, logs, hardening, signals and the exit code.

use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::de::DeserializeOwned;
use telemetry::LogSettings;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::hardening::harden;
use crate::randomness::{Randomness, SystemRandomness};

/// A config that says how to log.
pub trait ProcessConfig: DeserializeOwned {
    /// The `[log]` section.
    fn log(&self) -> &LogSettings;
}

/// An error that ends a process.
pub type ProcessError = Box<dyn Error + Send + Sync>;

/// Runs a service: `<name> --config FILE`.
///
/// Reads the config, sets up logs, turns off core dumps, and runs `serve` with a token that is
/// cancelled on SIGTERM or SIGINT. Exit code 0 after a drain, 1 after an error (one line on
/// standard error), 2 for wrong arguments.
pub fn run<C, F>(name: &str, serve: impl FnOnce(C, CancellationToken) -> F) -> ExitCode
where
    C: ProcessConfig,
    F: Future<Output = Result<(), ProcessError>>,
{
    let path = match config_path(std::env::args_os().skip(1)) {
        Some(path) => path,
        None => {
            say(&format!("usage: {name} --config FILE"));
            return ExitCode::from(2);
        }
    };
    match start(&path, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{name}: {}", sentence(&*error)));
            ExitCode::FAILURE
        }
    }
}

fn start<C, F>(
    path: &std::path::Path,
    serve: impl FnOnce(C, CancellationToken) -> F,
) -> Result<(), ProcessError>
where
    C: ProcessConfig,
    F: Future<Output = Result<(), ProcessError>>,
{
    let config: C = config::load(path)?;
    config.log().install()?;
    harden();
    let randomness: &dyn Randomness = &SystemRandomness;
    api::seed_incidents(u64::from_le_bytes(randomness.bytes()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stop = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("stop signal");
            stop.cancel();
        });
        serve(config, shutdown).await
    })
}

fn config_path(mut arguments: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let flag = arguments.next()?;
    let path = arguments.next()?;
    (flag == "--config" && arguments.next().is_none()).then(|| path.into())
}

/// An error and its sources in one line.
fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(source.to_string().trim_end());
        next = source.source();
    }
    text.replace('\n', " ")
}

fn say(line: &str) {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_config_flag_is_an_argument() {
        let arguments = |list: &[&str]| config_path(list.iter().map(OsString::from));
        assert_eq!(arguments(&["--config", "a.toml"]), Some("a.toml".into()));
        for bad in [&[][..], &["--config"], &["a.toml"], &["--config", "a", "b"]] {
            assert_eq!(arguments(bad), None);
        }
    }
}
