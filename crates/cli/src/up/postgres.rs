//! The database: a private cluster, or the one that `DATABASE_URL` names.

use anyhow::{Context as _, Result};
use database::{DatabaseUrl, Schema, provision};
use local_postgres::{LocalPostgres, Options};

use super::layout::Layout;

/// A database with a schema and a role for each service.
pub struct Postgres {
    cluster: Option<LocalPostgres>,
    admin: String,
}

impl Postgres {
    /// Starts the private cluster unless `DATABASE_URL` is set, and provisions the database.
    pub async fn start(layout: &Layout) -> Result<Self> {
        let postgres = match std::env::var("DATABASE_URL") {
            Ok(admin) => Self {
                cluster: None,
                admin,
            },
            Err(_) => {
                let options = Options {
                    folder: layout.postgres(),
                    binaries: None,
                    durable: true,
                };
                let cluster = tokio::task::spawn_blocking(move || LocalPostgres::start(&options))
                    .await
                    .context("starting Postgres")??;
                Self {
                    admin: cluster.admin_url(),
                    cluster: Some(cluster),
                }
            }
        };
        provision(&DatabaseUrl::new(&postgres.admin), DATABASE).await?;
        Ok(postgres)
    }

    /// The URL of a service's role.
    pub fn url(&self, schema: Schema) -> Result<String> {
        match &self.cluster {
            Some(cluster) => Ok(cluster.url(schema.role(), DATABASE)),
            None => as_role(&self.admin, schema.role(), DATABASE).context(
                "DATABASE_URL: expected postgres://[user[:password]@]host[:port]/database",
            ),
        }
    }

    /// Stops a private cluster.
    pub fn stop(self) -> Result<()> {
        Ok(self.cluster.map_or(Ok(()), LocalPostgres::stop)?)
    }
}

/// Stops a private cluster that a killed `up` left running.
pub fn stop_stale(layout: &Layout) -> Result<()> {
    let folder = layout.postgres();
    if !folder.join("data/postmaster.pid").exists() {
        return Ok(());
    }
    let options = Options {
        folder,
        binaries: None,
        durable: true,
    };
    Ok(LocalPostgres::start(&options)?.stop()?)
}

/// The same server seen by a role, without a password: the server trusts it, or a `.pgpass` file
/// has it.
fn as_role(url: &str, role: &str, database: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let query = path.split_once('?').map(|(_, query)| query);
    let query = query.map_or(String::new(), |query| format!("?{query}"));
    (!scheme.is_empty()).then(|| format!("{scheme}://{role}@{host}/{database}{query}"))
}

const DATABASE: &str = "chancery";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_seen_by_a_role() {
        let seen = |url| as_role(url, "chancery_keys", "chancery");
        assert_eq!(
            seen("postgres://admin:pw@db.example:5433/postgres?sslmode=require").as_deref(),
            Some("postgres://chancery_keys@db.example:5433/chancery?sslmode=require")
        );
        assert_eq!(
            seen("postgresql://localhost").as_deref(),
            Some("postgresql://chancery_keys@localhost/chancery")
        );
        assert_eq!(seen("localhost"), None);
    }
}
