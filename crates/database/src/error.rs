use registry_domain::{Conflict, RepositoryError};
use sqlx::Error;
use sqlx::error::DatabaseError;

/// Says whose fault a failed statement is.
pub(crate) fn classify(error: Error) -> RepositoryError {
    let unavailable = match &error {
        Error::Io(_)
        | Error::Tls(_)
        | Error::Protocol(_)
        | Error::PoolTimedOut
        | Error::PoolClosed
        | Error::WorkerCrashed => true,
        Error::Database(refusal) => refusal.code().is_some_and(|code| is_transient(&code)),
        _ => false,
    };
    if unavailable {
        RepositoryError::Unavailable(Box::new(error))
    } else {
        RepositoryError::Internal(Box::new(error))
    }
}

/// Like [`classify`], with the conflict that a broken constraint stands for.
pub(crate) fn classify_with(
    error: Error,
    conflict: impl FnOnce(&str) -> Option<Conflict>,
) -> RepositoryError {
    let broken = error
        .as_database_error()
        .and_then(DatabaseError::constraint);
    match broken.and_then(conflict) {
        Some(conflict) => conflict.into(),
        None => classify(error),
    }
}

/// Whether the statement may succeed when it is repeated (PostgreSQL, appendix A).
fn is_transient(sqlstate: &str) -> bool {
    // Connection, resources (a full disk too), operator intervention, system error.
    let classes = ["08", "53", "57", "58"];
    // Serialization failure, deadlock, lock not available.
    let states = ["40001", "40P01", "55P03"];
    classes.contains(&&sqlstate[..sqlstate.len().min(2)]) || states.contains(&sqlstate)
}

/// A statement that must write one row.
pub(crate) fn one_row(written: u64, what: &'static str) -> Result<(), RepositoryError> {
    match written {
        1 => Ok(()),
        _ => Err(RepositoryError::NotFound(what)),
    }
}
