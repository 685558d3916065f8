use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::account::Account;
use crate::binaries;

/// How to run a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The folder that keeps everything; made when it is not there.
    pub folder: PathBuf,
    /// Where `initdb` and `postgres` are; found by itself when `None`.
    pub binaries: Option<PathBuf>,
    /// Whether a commit reaches the disk. Only tests may turn it off.
    pub durable: bool,
}

/// A running cluster; dropping it stops it.
#[derive(Debug)]
pub struct LocalPostgres {
    data: PathBuf,
    sockets: PathBuf,
    /// `None` once stopped, and for a server that an earlier process started.
    child: Option<Child>,
    running: bool,
}

/// Why a cluster does not run.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// Postgres is not installed.
    #[error("Postgres is not installed here (no initdb and postgres in {0})")]
    NotInstalled(String),
    /// This process is root's and there is no other user for Postgres.
    #[error("Postgres does not run as root, and there is no user named postgres")]
    NoUser,
    /// The user that Postgres runs as cannot reach the folder.
    #[error("the user postgres cannot enter {0}; choose a state folder elsewhere")]
    Unreachable(PathBuf),
    /// A file could not be read or written.
    #[error("{path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// A program ended with an error; the last lines of what it said.
    #[error("{program} failed: {said}")]
    Failed {
        /// The program.
        program: &'static str,
        /// The last lines of its output.
        said: String,
    },
    /// The server did not become ready, or did not stop, in time.
    #[error("Postgres did not {0} within {limit} seconds", limit = PATIENCE_SECONDS)]
    Slow(&'static str),
}

impl LocalPostgres {
    /// Makes the cluster if it is not there yet and starts it; a server of an earlier
    /// process that still runs is taken over.
    pub fn start(options: &Options) -> Result<Self, PostgresError> {
        let account = Account::find()
            .map_err(at("/etc/passwd"))?
            .ok_or(PostgresError::NoUser)?;
        let binaries = match &options.binaries {
            Some(folder) if binaries::is_complete(folder) => folder.clone(),
            Some(folder) => return Err(PostgresError::NotInstalled(folder.display().to_string())),
            None => binaries::find().ok_or_else(|| {
                PostgresError::NotInstalled("/usr/lib/postgresql or PATH".to_owned())
            })?,
        };
        make_folder(&options.folder, account)?;
        let folder = fs::canonicalize(&options.folder).map_err(at(&options.folder))?;
        if let Some(barrier) = account.barrier(&folder).map_err(at(&folder))? {
            return Err(PostgresError::Unreachable(barrier));
        }
        let data = folder.join("data");
        if !data.join("PG_VERSION").is_file() {
            initialize(&binaries, &folder, &data, account, options.durable)?;
        }
        let sockets = socket_folder(&folder, account)?;
        let mut cluster = Self {
            data,
            sockets,
            child: None,
            running: true,
        };
        if !cluster.is_served() {
            cluster.child = Some(cluster.spawn(&binaries, &folder, account, options.durable)?);
            cluster.await_ready(&folder)?;
        }
        Ok(cluster)
    }

    /// The folder of the server's unix socket.
    #[must_use]
    pub fn socket_folder(&self) -> &Path {
        &self.sockets
    }

    /// The URL of a database as seen by a role.
    #[must_use]
    pub fn url(&self, role: &str, database: &str) -> String {
        let sockets = self.sockets.display();
        format!("postgres://{role}@localhost/{database}?host={sockets}")
    }

    /// The URL that creates databases and roles.
    #[must_use]
    pub fn admin_url(&self) -> String {
        self.url(SUPERUSER, "postgres")
    }

    /// Stops the server: running transactions are rolled back, everything committed is on disk.
    pub fn stop(mut self) -> Result<(), PostgresError> {
        self.end(Signal::INT)
    }

    /// Stops the server as a crash would: the next start recovers from the write-ahead log.
    pub fn crash(mut self) -> Result<(), PostgresError> {
        self.end(Signal::QUIT)
    }

    fn spawn(
        &self,
        binaries: &Path,
        folder: &Path,
        account: Account,
        durable: bool,
    ) -> Result<Child, PostgresError> {
        let log = folder.join("postgres.log");
        let output = File::create(&log).map_err(at(&log))?;
        let errors = output.try_clone().map_err(at(&log))?;
        let mut command = Command::new(binaries.join("postgres"));
        command
            .arg("-D")
            .arg(&self.data)
            .arg("-k")
            .arg(&self.sockets);
        command.args([
            "-c",
            "listen_addresses=",
            "-c",
            "unix_socket_permissions=0700",
        ]);
        command.args(["-c", "max_connections=200"]);
        if !durable {
            command.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
        }
        command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .current_dir("/");
        account
            .run_as(&mut command)
            .spawn()
            .map_err(at(binaries.join("postgres")))
    }

    /// Waits until the server's own status file says `ready`.
    fn await_ready(&mut self, folder: &Path) -> Result<(), PostgresError> {
        for _ in 0..PATIENCE_SECONDS * 1000 / POLL_MILLIS {
            if let Some(child) = &mut self.child
                && child.try_wait().map_err(at(&self.data))?.is_some()
            {
                self.running = false;
                let log = fs::read_to_string(folder.join("postgres.log")).unwrap_or_default();
                let program = "postgres";
                let said = last_lines(&log);
                return Err(PostgresError::Failed { program, said });
            }
            if status(&self.data).is_some_and(|(_, ready)| ready) {
                return Ok(());
            }
            sleep(Duration::from_millis(POLL_MILLIS));
        }
        Err(PostgresError::Slow("start"))
    }

    /// Whether a server that an earlier process started serves the cluster.
    fn is_served(&self) -> bool {
        let named = |pid: Pid| {
            let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
            name.is_ok_and(|name| name.trim_end() == "postgres")
        };
        let socket = self.sockets.join(SOCKET_NAME);
        status(&self.data).is_some_and(|(pid, ready)| {
            ready && test_kill_process(pid).is_ok() && named(pid) && socket.exists()
        })
    }

    fn end(&mut self, signal: Signal) -> Result<(), PostgresError> {
        if !std::mem::take(&mut self.running) {
            return Ok(());
        }
        let pid = match &self.child {
            Some(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw),
            None => status(&self.data).map(|(pid, _)| pid),
        };
        let Some(pid) = pid else { return Ok(()) };
        // A failure means that it is gone already.
        let _ = kill_process(pid, signal);
        for _ in 0..PATIENCE_SECONDS * 1000 / POLL_MILLIS {
            let gone = match &mut self.child {
                Some(child) => child.try_wait().map_err(at(&self.data))?.is_some(),
                None => status(&self.data).is_none_or(|(found, _)| found != pid),
            };
            if gone {
                return Ok(());
            }
            sleep(Duration::from_millis(POLL_MILLIS));
        }
        Err(PostgresError::Slow("stop"))
    }
}

impl Drop for LocalPostgres {
    fn drop(&mut self) {
        // Nothing can be done about a server that does not stop.
        let _ = self.end(Signal::INT);
    }
}

fn initialize(
    binaries: &Path,
    folder: &Path,
    data: &Path,
    account: Account,
    durable: bool,
) -> Result<(), PostgresError> {
    let next = folder.join("data.next");
    if next.exists() {
        fs::remove_dir_all(&next).map_err(at(&next))?;
    }
    make_folder(&next, account)?;
    let mut command = Command::new(binaries.join("initdb"));
    command.arg("-D").arg(&next).args([
        "-U",
        SUPERUSER,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-locale",
    ]);
    if !durable {
        command.arg("--no-sync");
    }
    command.stdin(Stdio::null()).current_dir("/");
    let output = account
        .run_as(&mut command)
        .output()
        .map_err(at(binaries.join("initdb")))?;
    if !output.status.success() {
        let program = "initdb";
        let said = last_lines(&String::from_utf8_lossy(&output.stderr));
        return Err(PostgresError::Failed { program, said });
    }
    fs::rename(&next, data).map_err(at(data))
}

/// A folder for the socket whose path is short enough for a socket address.
fn socket_folder(folder: &Path, account: Account) -> Result<PathBuf, PostgresError> {
    let own = folder.join("socket");
    let sockets = if own.as_os_str().len() + 1 + SOCKET_NAME.len() <= MAX_SOCKET_PATH {
        own
    } else {
        let metadata = fs::metadata(folder).map_err(at(folder))?;
        PathBuf::from(format!(
            "/tmp/chancery-pg-{:x}-{:x}",
            metadata.dev(),
            metadata.ino()
        ))
    };
    make_folder(&sockets, account)?;
    let metadata = fs::symlink_metadata(&sockets).map_err(at(&sockets))?;
    if !metadata.is_dir() || metadata.uid() != account.uid() || metadata.mode() & 0o077 != 0 {
        let source = io::Error::other("not a private folder of the user that runs Postgres");
        return Err(at(&sockets)(source));
    }
    Ok(sockets)
}

/// Makes a private folder of the account, unless it is there.
fn make_folder(path: &Path, account: Account) -> Result<(), PostgresError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => account.own(path).map_err(at(path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(at(path)(error)),
    }
}

/// The server's process and whether it accepts connections, from its `postmaster.pid`.
fn status(data: &Path) -> Option<(Pid, bool)> {
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let pid = lines.first()?.parse().ok().and_then(Pid::from_raw)?;
    Some((pid, lines.get(7) == Some(&"ready")))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(5)..].join("; ")
}

fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> PostgresError {
    let path = path.into();
    move |source| PostgresError::Io { path, source }
}

const SUPERUSER: &str = "postgres";
const SOCKET_NAME: &str = ".s.PGSQL.5432";
/// `sun_path` without its final NUL.
const MAX_SOCKET_PATH: usize = 107;
const PATIENCE_SECONDS: u64 = 60;
const POLL_MILLIS: u64 = 20;
