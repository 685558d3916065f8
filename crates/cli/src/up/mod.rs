//! `chancery up` and `chancery down`: the whole suite on this machine.

mod certificates;
mod configs;
mod installation;
mod layout;
mod postgres;
mod supervisor;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use service_runtime::CancellationToken;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::UpArgs;
use crate::context::{Context, Workload};
use crate::on_runtime;
use crate::outcome::{Outcome, table};
use crate::progress;
use layout::Layout;
use postgres::Postgres;
use supervisor::Supervisor;

#[derive(Serialize)]
struct UpView {
    state: PathBuf,
    process: u32,
    services: Vec<ServiceView>,
}

#[derive(Serialize)]
struct ServiceView {
    service: &'static str,
    rpc: String,
    admin: String,
}

impl UpView {
    fn of(layout: &Layout, context: &Context, process: u32) -> Self {
        Self {
            state: layout.root().to_owned(),
            process,
            services: context
                .services
                .iter()
                .map(|(service, endpoints)| ServiceView {
                    service: service.binary(),
                    rpc: endpoints.rpc.clone(),
                    admin: format!("http://{}/health", endpoints.admin),
                })
                .collect(),
        }
    }

    fn text(&self) -> String {
        let mut rows: Vec<Vec<String>> = self
            .services
            .iter()
            .map(|service| {
                vec![
                    service.service.to_owned(),
                    service.rpc.clone(),
                    service.admin.clone(),
                ]
            })
            .collect();
        rows.push(vec!["state".to_owned(), self.state.display().to_string()]);
        table(&rows)
    }
}

/// Runs the suite until a signal, or leaves it running when it is healthy.
pub fn up(state: &Path, arguments: UpArgs, json: bool) -> Result<Outcome> {
    let layout = Layout::create(state)?;
    if arguments.detach {
        return detach(&layout, &arguments);
    }
    let _lock = lock(&layout)?;
    fs::write(layout.pid(), std::process::id().to_string())
        .with_context(|| format!("cannot write {}", layout.pid().display()))?;
    let result = on_runtime(run(&layout, &arguments, json));
    // What remains says nothing about a suite that runs.
    let _ = fs::remove_file(layout.pid());
    let _ = fs::remove_file(layout.ready());
    result
}

/// Stops what `up` started on a state folder, also after `up` itself was killed.
pub fn down(state: &Path) -> Result<Outcome> {
    let layout = Layout::open(state)?;
    let spinner = progress::waiting("draining");
    if let Some(process) = running(&layout) {
        supervisor::terminate(process)?;
        if !wait_for_lock(&layout, DRAIN_TIME)? {
            bail!(
                "process {process} did not stop within {} seconds",
                DRAIN_TIME.as_secs()
            );
        }
    }
    let _lock = lock(&layout)?;
    on_runtime(async {
        for service in Workload::ALL {
            supervisor::stop_stale(&layout, service).await?;
        }
        Ok(())
    })?;
    postgres::stop_stale(&layout)?;
    spinner.finish_and_clear();
    let view = serde_json::json!({ "state": layout.root(), "stopped": true });
    Ok(Outcome::new(&view, "stopped"))
}

async fn run(layout: &Layout, arguments: &UpArgs, json: bool) -> Result<Outcome> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        on_signal.cancel();
    });

    let binaries = binaries(arguments)?;
    let spinner = progress::waiting("starting Postgres");
    let postgres = Postgres::start(layout).await?;
    spinner.set_message("preparing keys and certificates");
    let context = installation::prepare(layout, &postgres, &source_roots(arguments)?)?;
    let renewal = tokio::spawn(certificates::keep_fresh(layout.clone(), stop.clone()));
    let mut supervisor = Supervisor::new(layout.clone(), binaries, stop.clone());
    let mut started = Ok(());
    for (service, endpoints) in &context.services {
        spinner.set_message(format!("starting {}", service.binary()));
        started = supervisor.start(*service, &endpoints.admin).await;
        if started.is_err() {
            break;
        }
    }
    spinner.finish_and_clear();
    if started.is_ok() && !stop.is_cancelled() {
        let view = UpView::of(layout, &context, std::process::id());
        announce(layout, &view, json)?;
        stop.cancelled().await;
    }
    stop.cancel();
    let spinner = progress::waiting("draining");
    supervisor.drain().await;
    renewal.abort();
    let stopped = postgres.stop();
    spinner.finish_and_clear();
    started?;
    stopped?;
    Ok(Outcome::printed())
}

/// Prints where everything is and lets a waiting `up --detach` go on.
fn announce(layout: &Layout, view: &UpView, json: bool) -> Result<()> {
    let ready = serde_json::to_vec(view)?;
    fs::write(layout.ready(), ready)
        .with_context(|| format!("cannot write {}", layout.ready().display()))?;
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, view)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", view.text())?;
    }
    out.flush()?;
    Ok(())
}

/// Starts `up` in a process group of its own and waits until it says that it is ready.
fn detach(layout: &Layout, arguments: &UpArgs) -> Result<Outcome> {
    if let Some(process) = running(layout) {
        bail!(
            "a suite runs on {} already: process {process}",
            layout.root().display()
        );
    }
    let log_path = layout.log("up");
    let log = File::options()
        .create(true)
        .append(true)
        .open(&log_path)
        .with_context(|| format!("cannot write {}", log_path.display()))?;
    let mut command = Command::new(std::env::current_exe().context("this program's path")?);
    command.arg("--state").arg(layout.root()).arg("up");
    for root in source_roots(arguments)? {
        command.arg("--source-root").arg(root);
    }
    if let Some(binaries) = &arguments.binaries {
        command.arg("--binaries").arg(binaries);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("the log file")?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("cannot start chancery up")?;
    let spinner = progress::waiting("starting the suite");
    let deadline = supervisor::START_TIME * (Workload::ALL.len() as u32 + 1);
    let mut waited = Duration::ZERO;
    while !layout.ready().exists() {
        if let Some(status) = child.try_wait().context("the suite's process")? {
            spinner.finish_and_clear();
            let said = supervisor::last_line(&log_path);
            let said = said.trim_start_matches("chancery: ");
            bail!("the suite did not start ({status}): {said}");
        }
        if waited > deadline {
            supervisor::terminate(child.id())?;
            bail!(
                "the suite is not ready after {} seconds",
                deadline.as_secs()
            );
        }
        std::thread::sleep(POLL);
        waited += POLL;
    }
    spinner.finish_and_clear();
    let view = UpView::of(layout, &Context::load(layout.root())?, child.id());
    Ok(Outcome::new(&view, view.text()))
}

/// The process of `up` on this folder, if it runs.
fn running(layout: &Layout) -> Option<u32> {
    let process = fs::read_to_string(layout.pid()).ok()?.trim().parse().ok()?;
    (lock(layout).is_err() && supervisor::is_alive(process)).then_some(process)
}

/// Held by `up` while it runs; the system drops it with the process.
fn lock(layout: &Layout) -> Result<File> {
    let path = layout.lock();
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => bail!("a suite runs on {} already", layout.root().display()),
    }
}

fn wait_for_lock(layout: &Layout, limit: Duration) -> Result<bool> {
    let mut waited = Duration::ZERO;
    while waited < limit {
        if lock(layout).is_ok() {
            return Ok(true);
        }
        std::thread::sleep(POLL);
        waited += POLL;
    }
    Ok(false)
}

fn binaries(arguments: &UpArgs) -> Result<PathBuf> {
    let folder = match &arguments.binaries {
        Some(folder) => folder.clone(),
        None => {
            let own = std::env::current_exe().context("this program's path")?;
            crate::files::parent(&own).to_owned()
        }
    };
    for service in Workload::ALL {
        let path = folder.join(service.binary());
        if !path.is_file() {
            bail!("{} is missing: say --binaries", path.display());
        }
    }
    fs::canonicalize(&folder).with_context(|| format!("cannot read {}", folder.display()))
}

fn source_roots(arguments: &UpArgs) -> Result<Vec<PathBuf>> {
    let given = match arguments.source_roots.as_slice() {
        [] => vec![std::env::current_dir().context("the working directory")?],
        roots => roots.to_vec(),
    };
    given
        .into_iter()
        .map(|root| {
            fs::canonicalize(&root).with_context(|| format!("cannot read {}", root.display()))
        })
        .collect()
}

const POLL: Duration = Duration::from_millis(50);
const DRAIN_TIME: Duration = Duration::from_secs(60);
