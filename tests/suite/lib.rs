//! What the end-to-end tests share: the whole suite as processes on loopback, started by
//! `chancery up` in a state folder of its own with a private Postgres.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::io::Errno;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A running suite. Dropping it stops every process and removes its folder.
pub struct Suite {
    state: TempDir,
    binaries: PathBuf,
}

/// A service process of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The registry.
    Registry,
    /// The storage node.
    StorageNode,
    /// The key service.
    KeyService,
    /// The sealer.
    Sealer,
    /// The inference node.
    InferenceNode,
}

impl Service {
    /// Every service.
    pub const ALL: [Self; 5] = [
        Self::Registry,
        Self::StorageNode,
        Self::KeyService,
        Self::Sealer,
        Self::InferenceNode,
    ];

    /// The binary's name.
    #[must_use]
    pub const fn binary(self) -> &'static str {
        match self {
            Self::Registry => "registry",
            Self::StorageNode => "storage-node",
            Self::KeyService => "key-service",
            Self::Sealer => "sealer",
            Self::InferenceNode => "inference-node",
        }
    }
}

impl Suite {
    /// Starts a fresh suite whose sealer may read `tests/data`.
    ///
    /// # Panics
    /// When the binaries are not built (`make build`) or the suite does not come up.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[&data()])
    }

    /// Starts a fresh suite whose sealer may read these folders.
    ///
    /// # Panics
    /// As [`Suite::start`].
    #[must_use]
    pub fn start_with(source_roots: &[&Path]) -> Self {
        let suite = Self {
            // Postgres runs as another user and must reach its folder.
            state: tempfile::Builder::new()
                .prefix("chancery-e2e-")
                .tempdir()
                .expect("a temporary folder"),
            binaries: binaries(),
        };
        suite.up(source_roots);
        suite
    }

    /// Starts the suite's processes, which are down, on the state that is there.
    ///
    /// # Panics
    /// When the suite does not come up.
    pub fn up(&self, source_roots: &[&Path]) {
        let output = self.try_up(source_roots);
        assert!(
            output.status.success(),
            "chancery up failed: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.logs()
        );
    }

    /// As [`Suite::up`], whatever comes of it.
    ///
    /// # Panics
    /// When the command cannot be run.
    #[must_use]
    pub fn try_up(&self, source_roots: &[&Path]) -> Output {
        let mut command = self.command(&["up", "--detach"]);
        command.arg("--binaries").arg(&self.binaries);
        for root in source_roots {
            command.arg("--source-root").arg(root);
        }
        command.output().expect("chancery runs")
    }

    /// Stops every process, in order.
    ///
    /// # Panics
    /// When that fails.
    pub fn down(&self) {
        self.ok(&["down"]);
    }

    /// The state folder.
    #[must_use]
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// Runs a command that must succeed; its JSON.
    ///
    /// # Panics
    /// When it fails or prints no JSON.
    #[must_use]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ok(&[&["--json"], arguments].concat());
        serde_json::from_slice(&output.stdout).expect("the command prints JSON")
    }

    /// Runs a command that must succeed.
    ///
    /// # Panics
    /// When it fails.
    pub fn ok(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "chancery {arguments:?}: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.logs()
        );
        output
    }

    /// Runs a command that must be refused: exit code 1 and one line of reason, which it gives.
    ///
    /// # Panics
    /// When it succeeds, or says more or less than one line.
    #[must_use]
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let reason = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(1),
            "chancery {arguments:?}: {reason}"
        );
        assert_eq!(reason.trim_end().lines().count(), 1, "{reason}");
        reason
    }

    /// Runs a command.
    ///
    /// # Panics
    /// When it cannot be run.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("chancery runs")
    }

    /// Runs a command again and again until its JSON satisfies `done`.
    ///
    /// # Panics
    /// When that takes longer than a minute.
    pub fn eventually(&self, arguments: &[&str], done: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..240 {
            let output = self.run(&[&["--json"], arguments].concat());
            if let Ok(value) = serde_json::from_slice(&output.stdout) {
                if done(&value) {
                    return value;
                }
                last = value;
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        panic!("chancery {arguments:?} stays at {last:#}\n{}", self.logs());
    }

    /// The process id of a service.
    ///
    /// # Panics
    /// When the service has none.
    #[must_use]
    pub fn pid(&self, service: Service) -> u32 {
        let path = self.state().join(format!("run/{}.pid", service.binary()));
        let text = fs::read_to_string(path).expect("a running service has a pid file");
        text.trim().parse().expect("a pid file holds a number")
    }

    /// Kills a service as the kernel would: no signal handler, no drain.
    ///
    /// # Panics
    /// When it may not be signalled.
    pub fn kill(&self, service: Service) {
        signal(self.pid(service), Signal::KILL);
    }

    /// Sends a signal to every process of the suite's own Postgres.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal_postgres(&self, which: Signal) {
        let path = self.state().join("postgres/data/postmaster.pid");
        let file = fs::read_to_string(path).expect("a running Postgres");
        let first = file.lines().next().expect("a line");
        let postmaster: u32 = first.parse().expect("a process id");
        // The server processes are the postmaster's children.
        let children = format!("/proc/{postmaster}/task/{postmaster}/children");
        let children = fs::read_to_string(children).expect("the postmaster's children");
        for child in children.split_whitespace() {
            signal(child.parse().expect("a process id"), which);
        }
        signal(postmaster, which);
    }

    /// The last lines of every log, for a failure's message.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = String::new();
        let Ok(entries) = fs::read_dir(self.state().join("log")) else {
            return text;
        };
        for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
            let log = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(12)..].join("\n");
            text.push_str(&format!("== {}\n{tail}\n", path.display()));
        }
        text
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.binaries.join("chancery"));
        command.arg("--state").arg(self.state()).args(arguments);
        command
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
    }
}

/// `tests/data`.
#[must_use]
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data")
}

/// The prompts and greedy continuations that another engine computed for `tests/data/tiny-qwen3`.
///
/// # Panics
/// When the file is not there.
#[must_use]
pub fn reference_prompts() -> Vec<Value> {
    let text = fs::read_to_string(data().join("tiny-qwen3.reference.json")).expect("the reference");
    let mut reference: Value = serde_json::from_str(&text).expect("the reference is JSON");
    match reference["prompts"].take() {
        Value::Array(prompts) => prompts,
        other => panic!("prompts is not a list: {other}"),
    }
}

/// Every readable byte of a process's memory, region by region.
///
/// # Errors
/// When the process is gone or its memory may not be read.
pub fn for_each_memory_region(pid: u32, mut see: impl FnMut(&[u8])) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;

    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = fs::File::open(format!("/proc/{pid}/mem"))?;
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(mode)) = (fields.next(), fields.next()) else {
            continue;
        };
        let Some((start, end)) = range.split_once('-') else {
            continue;
        };
        let parse = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
        let (start, end) = (parse(start)?, parse(end)?);
        if !mode.starts_with('r') || line.ends_with("[vvar]") || line.ends_with("[vsyscall]") {
            continue;
        }
        let length = usize::try_from(end - start).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        // Guard pages inside a mapping cannot be read: what comes before them can.
        let mut done = 0;
        while done < length {
            match memory.read_at(&mut bytes[done..], start + done as u64) {
                Ok(0) | Err(_) => break,
                Ok(read) => done += read,
            }
        }
        see(&bytes[..done]);
    }
    Ok(())
}

/// A process that has ended meanwhile, such as a server process of a closed connection, is left.
fn signal(process: u32, which: Signal) {
    let id = i32::try_from(process).expect("a process id");
    let id = Pid::from_raw(id).expect("a process id is not zero");
    match kill_process(id, which) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => panic!("{which:?} to {process}: {error}"),
    }
}

/// Where cargo put the binaries: beside the folder of the test that runs.
fn binaries() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test
        .ancestors()
        .nth(2)
        .expect("tests are in target/<profile>/deps");
    for name in [
        "chancery",
        "registry",
        "storage-node",
        "key-service",
        "sealer",
        "inference-node",
    ] {
        let path = folder.join(name);
        assert!(
            path.exists(),
            "{} is not built: run `make build`",
            path.display()
        );
    }
    folder.to_owned()
}
