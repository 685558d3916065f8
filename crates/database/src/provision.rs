use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use crate::open::{DatabaseUrl, Schema, SetupError};

/// Makes a database with one schema and one role for each service. What is there already stays.
/// `admin` names a role that may create databases and roles.
pub async fn provision(admin: &DatabaseUrl, database: &str) -> Result<(), SetupError> {
    if !is_plain_name(database) {
        return Err(SetupError::Name(database.to_owned()));
    }
    let options = admin.connect_options()?;
    let mut connection = options.connect().await.map_err(SetupError::Connect)?;
    let exists: Option<i32> = sqlx::query_scalar("SELECT 1 FROM pg_database WHERE datname = $1")
        .bind(database)
        .fetch_optional(&mut connection)
        .await
        .map_err(SetupError::Statement)?;
    if exists.is_none() {
        run(&mut connection, &format!("CREATE DATABASE {database}")).await?;
    }
    for schema in ALL {
        let exists: Option<i32> = sqlx::query_scalar("SELECT 1 FROM pg_roles WHERE rolname = $1")
            .bind(schema.role())
            .fetch_optional(&mut connection)
            .await
            .map_err(SetupError::Statement)?;
        if exists.is_none() {
            run(
                &mut connection,
                &format!("CREATE ROLE {} LOGIN", schema.role()),
            )
            .await?;
        }
    }
    connection.close().await.map_err(SetupError::Statement)?;

    let inside = options.database(database);
    let mut connection = inside.connect().await.map_err(SetupError::Connect)?;
    run(&mut connection, "REVOKE ALL ON SCHEMA public FROM PUBLIC").await?;
    run(
        &mut connection,
        &format!("REVOKE ALL ON DATABASE {database} FROM PUBLIC"),
    )
    .await?;
    for schema in ALL {
        let (name, role) = (schema.name(), schema.role());
        run(
            &mut connection,
            &format!("GRANT CONNECT ON DATABASE {database} TO {role}"),
        )
        .await?;
        run(
            &mut connection,
            &format!("CREATE SCHEMA IF NOT EXISTS {name} AUTHORIZATION {role}"),
        )
        .await?;
    }
    connection.close().await.map_err(SetupError::Statement)
}

/// Runs a statement made of fixed words and plain names only.
async fn run(connection: &mut PgConnection, statement: &str) -> Result<(), SetupError> {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(connection)
        .await
        .map_err(SetupError::Statement)?;
    Ok(())
}

fn is_plain_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    (1..=63).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(plain)
}

const ALL: [Schema; 3] = [Schema::Keys, Schema::Jobs, Schema::Registry];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_reach_a_statement() {
        assert!(is_plain_name("chancery") && is_plain_name("test_7"));
        for bad in ["", "7", "a-b", "a;drop", "A", "a\"", "é", &"a".repeat(64)] {
            assert!(!is_plain_name(bad), "{bad}");
        }
    }
}
