//! A cluster starts, stops, crashes and comes back.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::net::UnixStream;
use std::path::Path;

use local_postgres::{LocalPostgres, Options, PostgresError};

fn options(folder: &Path) -> Options {
    Options {
        folder: folder.to_path_buf(),
        binaries: None,
        durable: false,
    }
}

/// A folder that every user may enter.
fn shared_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn serves(postgres: &LocalPostgres) -> bool {
    UnixStream::connect(postgres.socket_folder().join(".s.PGSQL.5432")).is_ok()
}

#[test]
fn a_cluster_survives_a_stop_a_crash_and_a_forgotten_server() {
    let folder = shared_folder();
    let state = folder.path().join("pg");
    let postgres = LocalPostgres::start(&options(&state)).unwrap();
    assert!(serves(&postgres));
    let sockets = postgres.socket_folder().to_path_buf();
    postgres.stop().unwrap();
    assert!(UnixStream::connect(sockets.join(".s.PGSQL.5432")).is_err());

    let postgres = LocalPostgres::start(&options(&state)).unwrap();
    postgres.crash().unwrap();

    let first = LocalPostgres::start(&options(&state)).unwrap();
    let second = LocalPostgres::start(&options(&state)).unwrap();
    assert!(serves(&second));
    std::mem::forget(first);
    drop(second);
    assert!(UnixStream::connect(sockets.join(".s.PGSQL.5432")).is_err());
}

#[test]
fn a_long_path_gets_a_short_socket_folder() {
    let folder = shared_folder();
    let state = folder.path().join("p".repeat(120));
    let postgres = LocalPostgres::start(&options(&state)).unwrap();
    assert!(serves(&postgres));
    let sockets = postgres.socket_folder().to_path_buf();
    assert!(!sockets.starts_with(folder.path()));
    drop(postgres);
    std::fs::remove_dir_all(sockets).unwrap();
}

#[test]
fn a_folder_without_the_programs_is_refused() {
    let folder = shared_folder();
    let mut options = options(&folder.path().join("pg"));
    options.binaries = Some(folder.path().to_path_buf());
    let refused = LocalPostgres::start(&options).unwrap_err();
    assert!(
        matches!(refused, PostgresError::NotInstalled(_)),
        "{refused}"
    );
}
