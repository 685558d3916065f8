//! The services' processes: started in order, restarted when they end, drained in reverse.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use service_runtime::CancellationToken;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::layout::Layout;
use crate::context::Workload;

/// Keeps the services running.
pub struct Supervisor {
    layout: Layout,
    binaries: PathBuf,
    stop: CancellationToken,
    /// In the order in which they were started.
    watched: Vec<(CancellationToken, JoinHandle<()>)>,
}

impl Supervisor {
    /// Runs the binaries of a folder; after `stop` nothing is restarted.
    pub fn new(layout: Layout, binaries: PathBuf, stop: CancellationToken) -> Self {
        Self {
            layout,
            binaries,
            stop,
            watched: Vec::new(),
        }
    }

    /// Starts a service and waits until it is healthy. One that a killed `up` left is stopped
    /// before.
    pub async fn start(&mut self, service: Workload, admin: &str) -> Result<()> {
        stop_stale(&self.layout, service).await?;
        let process = Process {
            layout: self.layout.clone(),
            binary: self.binaries.join(service.binary()),
            service,
        };
        let mut child = process.spawn()?;
        let healthy = tokio::select! {
            () = self.stop.cancelled() => Ok(()),
            status = child.wait() => {
                let said = last_line(&self.layout.log(service.binary()));
                let status = status.context("the service's process")?;
                bail!("{} did not start ({status}): {said}", service.binary());
            }
            healthy = timeout(START_TIME, until_healthy(admin)) => healthy,
        };
        let drain = CancellationToken::new();
        let watching = process.watch(child, self.stop.clone(), drain.clone());
        self.watched.push((drain, tokio::spawn(watching)));
        if healthy.is_err() {
            let said = last_line(&self.layout.log(service.binary()));
            bail!(
                "{} is not healthy after {} seconds: {said}",
                service.binary(),
                START_TIME.as_secs()
            );
        }
        Ok(())
    }

    /// Ends the services one by one, the last started first, each with its time to drain.
    pub async fn drain(self) {
        self.stop.cancel();
        for (drain, watching) in self.watched.into_iter().rev() {
            drain.cancel();
            // The task ends after its process; a panic in it leaves nothing to wait for.
            let _ = watching.await;
        }
    }
}

struct Process {
    layout: Layout,
    binary: PathBuf,
    service: Workload,
}

impl Process {
    fn spawn(&self) -> Result<Child> {
        let log_path = self.layout.log(self.service.binary());
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .with_context(|| format!("cannot write {}", log_path.display()))?;
        let child = Command::new(&self.binary)
            .arg("--config")
            .arg(self.layout.config(self.service))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("the log file")?)
            .stderr(log)
            // Ctrl-C in a terminal reaches `up` alone, which drains the services in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        if let Some(id) = child.id() {
            let path = self.layout.service_pid(self.service);
            fs::write(&path, id.to_string())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(child)
    }

    /// Restarts the process whenever it ends, until `drain`, with growing pauses.
    async fn watch(self, mut child: Child, stop: CancellationToken, drain: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::select! {
                () = drain.cancelled() => return self.end(child).await,
                _ = child.wait() => {}
            }
            loop {
                tokio::select! {
                    () = drain.cancelled() => return self.forget(),
                    () = sleep(pause) => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
                if stop.is_cancelled() {
                    continue;
                }
                if let Ok(started) = self.spawn() {
                    child = started;
                    break;
                }
            }
        }
    }

    async fn end(&self, mut child: Child) {
        if let Some(id) = child.id() {
            // It may have ended by itself just now.
            let _ = terminate(id);
        }
        if timeout(DRAIN_TIME, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
        self.forget();
    }

    fn forget(&self) {
        let _ = fs::remove_file(self.layout.service_pid(self.service));
    }
}

/// Stops a service's process that an earlier `up` left behind.
pub async fn stop_stale(layout: &Layout, service: Workload) -> Result<()> {
    let path = layout.service_pid(service);
    let Some(process) = fs::read_to_string(&path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
    else {
        return Ok(());
    };
    // The id may be another program's by now: ours was given this config.
    let config = layout.config(service);
    let ours = || {
        fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|line| {
            line.split(|byte| *byte == 0)
                .any(|argument| argument == config.as_os_str().as_encoded_bytes())
        })
    };
    if ours() {
        terminate(process)?;
        let gone = timeout(DRAIN_TIME, async {
            while ours() {
                sleep(POLL).await;
            }
        });
        if gone.await.is_err() {
            bail!(
                "{} of an earlier start (process {process}) does not stop",
                service.binary()
            );
        }
    }
    let _ = fs::remove_file(&path);
    Ok(())
}

/// Asks a process to stop.
pub fn terminate(process: u32) -> Result<()> {
    let pid = pid(process).context("not a process id")?;
    kill_process(pid, Signal::TERM).with_context(|| format!("cannot stop process {process}"))
}

/// Whether a process with this id exists.
pub fn is_alive(process: u32) -> bool {
    pid(process).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// The last line of a log, for a message.
pub fn last_line(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("it said nothing")
        .to_owned()
}

fn pid(process: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(process).ok()?)
}

async fn until_healthy(admin: &str) {
    while !is_healthy(admin).await.unwrap_or(false) {
        sleep(POLL).await;
    }
}

async fn is_healthy(admin: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET /health HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

/// How long a service may take to become healthy.
pub const START_TIME: Duration = Duration::from_secs(30);
const MAX_ANSWER: u64 = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
