use std::fmt;
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

/// A service's own schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// Wrapped keys, grants, capabilities, policies: the key service.
    Keys,
    /// Seal jobs: the sealer.
    Jobs,
    /// Artifacts and the log: the registry.
    Registry,
}

/// Where the database is. It may hold a password and prints without one.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

/// How to reach the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where it is, and as which role.
    pub url: DatabaseUrl,
    /// The most connections at once, at least 1.
    pub max_connections: u32,
    /// How long a caller waits for a connection.
    pub acquire_timeout: Duration,
    /// How long one statement may run.
    pub statement_timeout: Duration,
}

impl Options {
    /// Options with 5 seconds to get a connection and 30 for a statement.
    #[must_use]
    pub const fn new(url: DatabaseUrl, max_connections: u32) -> Self {
        Self {
            url,
            max_connections,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
        }
    }
}

/// A pool of connections to one schema, with its migrations applied.
#[derive(Debug, Clone)]
pub struct Database {
    pub(crate) pool: PgPool,
    schema: Schema,
}

/// Why a database could not be opened or set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The URL is not one of Postgres.
    #[error("the database URL is not a postgres:// URL with a host and a role")]
    Url,
    /// A name that is not 1 to 63 of a-z 0-9 _, starting with a letter.
    #[error("{0:?} is not a database name")]
    Name(String),
    /// The database cannot be reached, or refuses the role.
    #[error("the database cannot be reached")]
    Connect(#[source] sqlx::Error),
    /// The schema could not be brought to the present version.
    #[error("the migrations of schema {schema} failed")]
    Migrate {
        /// The schema.
        schema: &'static str,
        /// What failed.
        #[source]
        source: MigrateError,
    },
    /// A statement of the set-up failed.
    #[error("the set-up of the database failed")]
    Statement(#[source] sqlx::Error),
}

impl Database {
    /// Connects, and applies the schema's migrations.
    pub async fn open(schema: Schema, options: &Options) -> Result<Self, SetupError> {
        let connect = options.url.connect_options()?.options([
            ("search_path", schema.name().to_owned()),
            (
                "statement_timeout",
                options.statement_timeout.as_millis().to_string(),
            ),
            ("idle_in_transaction_session_timeout", "60000".to_owned()),
            ("synchronous_commit", "on".to_owned()),
        ]);
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            .connect_with(connect)
            .await
            .map_err(SetupError::Connect)?;
        schema
            .migrator()
            .run(&pool)
            .await
            .map_err(|source| SetupError::Migrate {
                schema: schema.name(),
                source,
            })?;
        Ok(Self { pool, schema })
    }

    /// Which schema it is.
    #[must_use]
    pub const fn schema(&self) -> Schema {
        self.schema
    }

    /// Whether the database answers now.
    pub async fn is_alive(&self) -> bool {
        sqlx::query("SELECT 1").execute(&self.pool).await.is_ok()
    }

    /// Waits for the connections in use and closes all.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl DatabaseUrl {
    /// A URL as configured, its surrounding white space dropped.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self(url.trim().to_owned())
    }

    pub(crate) fn connect_options(&self) -> Result<PgConnectOptions, SetupError> {
        let is_postgres = ["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| self.0.starts_with(scheme));
        if !is_postgres {
            return Err(SetupError::Url);
        }
        // The parser's own error may repeat the password.
        PgConnectOptions::from_str(&self.0).map_err(|_| SetupError::Url)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.connect_options() {
            Ok(options) => {
                let database = options.get_database().unwrap_or_default();
                write!(
                    f,
                    "postgres://{}@{}/{database}",
                    options.get_username(),
                    options.get_host()
                )
            }
            Err(_) => f.write_str("not a URL"),
        }
    }
}

impl Schema {
    /// The schema's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Jobs => "jobs",
            Self::Registry => "registry",
        }
    }

    /// The role that owns it.
    #[must_use]
    pub const fn role(self) -> &'static str {
        match self {
            Self::Keys => "chancery_keys",
            Self::Jobs => "chancery_jobs",
            Self::Registry => "chancery_registry",
        }
    }

    const fn migrator(self) -> &'static Migrator {
        match self {
            Self::Keys => &KEYS,
            Self::Jobs => &JOBS,
            Self::Registry => &REGISTRY,
        }
    }
}

static KEYS: Migrator = sqlx::migrate!("../../migrations/keys");
static JOBS: Migrator = sqlx::migrate!("../../migrations/jobs");
static REGISTRY: Migrator = sqlx::migrate!("../../migrations/registry");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_a_url_shows_no_password() {
        for url in [
            "postgres://chancery_keys:MARKER@db.test/chancery",
            "nonsense:MARKER@",
        ] {
            assert!(!format!("{:?}", DatabaseUrl::new(url)).contains("MARKER"));
        }
        let error = DatabaseUrl::new("postgres://u:MARKER@h:port/x")
            .connect_options()
            .unwrap_err();
        assert!(!format!("{error} {error:?}").contains("MARKER"));
    }
}
