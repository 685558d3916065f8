use async_trait::async_trait;
use identifiers::{CapabilityId, GrantId, KeyId, Sha256Digest, SpiffeId};
use registry_domain::{
    CapabilityRecord, Conflict, Grant, Inserted, KeyOrigin, KeyRecord, KeyRepository, KeyState,
    NewCapability, NewGrant, NewKey, NewRevocation, Page, PolicyRecord, Quota, RepositoryError,
    Revocation, WrappedKey,
};
use sqlx::postgres::{PgPool, PgRow};

use crate::error::{classify, classify_with, one_row};
use crate::open::{Database, Schema};
use crate::row::Fields;
use crate::{grants, unlocks};

/// The key service's repository.
#[derive(Debug, Clone)]
pub struct PgKeys {
    pool: PgPool,
}

impl PgKeys {
    /// A repository over the schema `keys`.
    ///
    /// # Panics
    /// When the database is open on another schema: a mistake in the program.
    #[must_use]
    pub fn new(database: Database) -> Self {
        assert_eq!(database.schema(), Schema::Keys, "the repository's schema");
        Self {
            pool: database.pool,
        }
    }

    async fn insert(&self, key: &NewKey) -> Result<bool, RepositoryError> {
        let inserted = sqlx::query(
            "INSERT INTO model_keys (id, name, fingerprint, version, wrapped, origin, state, caller, \
             request_id, body, created_at) VALUES ($1, $2, $3, $4, $5, $6, 'pending', $7, $8, $9, $10) \
             ON CONFLICT ON CONSTRAINT model_keys_request_unique DO NOTHING",
        )
        .bind(key.id.as_uuid())
        .bind(&key.name)
        .bind(key.fingerprint.as_bytes().as_slice())
        .bind(i64::from(key.version))
        .bind(&key.wrapped.0)
        .bind(origin_name(key.origin))
        .bind(key.caller.to_string())
        .bind(key.request_id.as_uuid())
        .bind(key.body.as_bytes().as_slice())
        .bind(key.created_at)
        .execute(&self.pool)
        .await
        .map_err(|error| {
            classify_with(error, |constraint| match constraint {
                "model_keys_name_unique" => Some(Conflict::NameTaken("key")),
                "model_keys_pkey" => Some(Conflict::OtherContent("key")),
                _ => None,
            })
        })?;
        Ok(inserted.rows_affected() == 1)
    }
}

#[async_trait]
impl KeyRepository for PgKeys {
    async fn insert_key(&self, key: &NewKey) -> Result<Inserted<KeyRecord>, RepositoryError> {
        let refused = match self.insert(key).await {
            Ok(true) => return self.key(key.id).await.map(Inserted::New),
            Ok(false) => None,
            // A repeat of the request carries the same name, and either constraint may be seen first.
            Err(RepositoryError::Conflict(Conflict::NameTaken(what))) => {
                Some(Conflict::NameTaken(what))
            }
            Err(error) => return Err(error),
        };
        let row = sqlx::query("SELECT * FROM model_keys WHERE caller = $1 AND request_id = $2")
            .bind(key.caller.to_string())
            .bind(key.request_id.as_uuid())
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
        let Some(row) = row else {
            return Err(refused.map_or(RepositoryError::NotFound(KEY), Into::into));
        };
        if Fields::of(&row, KEY).digest("body")? != key.body {
            return Err(Conflict::RequestReused.into());
        }
        record(&row).map(Inserted::Existing)
    }

    async fn key(&self, id: KeyId) -> Result<KeyRecord, RepositoryError> {
        let row = sqlx::query("SELECT * FROM model_keys WHERE id = $1")
            .bind(id.as_uuid())
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
        record(&row.ok_or(RepositoryError::NotFound(KEY))?)
    }

    async fn key_by_name(&self, name: &str) -> Result<KeyRecord, RepositoryError> {
        let row = sqlx::query("SELECT * FROM model_keys WHERE name = $1")
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
        record(&row.ok_or(RepositoryError::NotFound(KEY))?)
    }

    async fn list_keys(&self, page: Page<KeyId>) -> Result<Vec<KeyRecord>, RepositoryError> {
        let rows = sqlx::query(
            "SELECT * FROM model_keys WHERE state <> 'pending' AND ($1::uuid IS NULL OR id < $1) \
             ORDER BY id DESC LIMIT $2",
        )
        .bind(page.before.map(|id| id.as_uuid()))
        .bind(i64::from(page.size))
        .fetch_all(&self.pool)
        .await
        .map_err(classify)?;
        rows.iter().map(record).collect()
    }

    async fn change_key_state(
        &self,
        id: KeyId,
        to: KeyState,
        at: i64,
    ) -> Result<Inserted<KeyRecord>, RepositoryError> {
        let mut transaction = self.pool.begin().await.map_err(classify)?;
        let row = sqlx::query("SELECT * FROM model_keys WHERE id = $1 FOR UPDATE")
            .bind(id.as_uuid())
            .fetch_optional(&mut *transaction)
            .await
            .map_err(classify)?;
        let found = record(&row.ok_or(RepositoryError::NotFound(KEY))?)?;
        if found.state == to {
            return Ok(Inserted::Existing(found));
        }
        if !found.state.may_become(to) {
            let state = found.state.as_str();
            return Err(Conflict::State { what: KEY, state }.into());
        }
        let row = sqlx::query(
            "UPDATE model_keys SET state = $2, \
             wrapped = CASE WHEN $2 = 'destroyed' THEN ''::bytea ELSE wrapped END, \
             disabled_at = CASE WHEN $2 = 'active' THEN NULL ELSE coalesce(disabled_at, $3) END \
             WHERE id = $1 RETURNING *",
        )
        .bind(id.as_uuid())
        .bind(to.as_str())
        .bind(at)
        .fetch_one(&mut *transaction)
        .await
        .map_err(classify)?;
        if to != KeyState::Active {
            // Any number of grants may be open.
            sqlx::query("UPDATE seal_grants SET closed = true WHERE key_id = $1 AND NOT closed")
                .bind(id.as_uuid())
                .execute(&mut *transaction)
                .await
                .map_err(classify)?;
        }
        transaction.commit().await.map_err(classify)?;
        record(&row).map(Inserted::New)
    }

    async fn open_grant(&self, grant: &NewGrant) -> Result<Grant, RepositoryError> {
        grants::open(&self.pool, grant).await
    }

    async fn grant(&self, id: GrantId) -> Result<Grant, RepositoryError> {
        grants::get(&self.pool, id).await
    }

    async fn close_grant(&self, id: GrantId, _at: i64) -> Result<Grant, RepositoryError> {
        grants::close(&self.pool, id).await
    }

    async fn record_capability(
        &self,
        capability: &NewCapability,
        quota: Option<Quota>,
    ) -> Result<Inserted<CapabilityRecord>, RepositoryError> {
        unlocks::record(&self.pool, capability, quota).await
    }

    async fn capability(&self, id: CapabilityId) -> Result<CapabilityRecord, RepositoryError> {
        unlocks::get(&self.pool, id).await
    }

    async fn capabilities_since(
        &self,
        node: &SpiffeId,
        artifact: &Sha256Digest,
        since: i64,
    ) -> Result<u64, RepositoryError> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        unlocks::count_since(&mut connection, node, artifact, since).await
    }

    async fn revoke(
        &self,
        revocation: &NewRevocation,
    ) -> Result<Inserted<Revocation>, RepositoryError> {
        unlocks::revoke(&self.pool, revocation).await
    }

    async fn revocation(
        &self,
        node: &SpiffeId,
        artifact: &Sha256Digest,
    ) -> Result<Option<Revocation>, RepositoryError> {
        unlocks::revocation(&self.pool, node, artifact).await
    }

    async fn revocation_epoch(&self) -> Result<u64, RepositoryError> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        unlocks::epoch(&mut connection).await
    }

    async fn put_policy(&self, policy: &PolicyRecord) -> Result<(), RepositoryError> {
        let stale = |constraint: &str| {
            let conflict = Conflict::OtherContent("policy version");
            (constraint == "policies_pkey").then_some(conflict)
        };
        let inserted = sqlx::query(
            "INSERT INTO policies (version, document, author, at) SELECT $1, $2, $3, $4 \
             WHERE $1 = (SELECT coalesce(max(version), 0) + 1 FROM policies)",
        )
        .bind(crate::row::signed(policy.version, "policy version")?)
        .bind(&policy.document)
        .bind(policy.author.to_string())
        .bind(policy.at)
        .execute(&self.pool)
        .await
        .map_err(|error| classify_with(error, stale))?;
        one_row(inserted.rows_affected(), "policy version to follow")
    }

    async fn policy(&self) -> Result<Option<PolicyRecord>, RepositoryError> {
        let row = sqlx::query("SELECT * FROM policies ORDER BY version DESC LIMIT 1")
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
        let read = |row: PgRow| {
            let fields = Fields::of(&row, "policy");
            Ok(PolicyRecord {
                version: fields.number("version")?,
                document: fields.get("document")?,
                author: fields.parsed("author")?,
                at: fields.get("at")?,
            })
        };
        row.map(read).transpose()
    }
}

fn record(row: &PgRow) -> Result<KeyRecord, RepositoryError> {
    let fields = Fields::of(row, KEY);
    Ok(KeyRecord {
        id: fields.id("id", KeyId::from_uuid)?,
        name: fields.get("name")?,
        fingerprint: fields.fingerprint("fingerprint")?,
        version: fields.number("version")?,
        wrapped: WrappedKey(fields.get("wrapped")?),
        origin: fields.word(
            "origin",
            &[KeyOrigin::Created, KeyOrigin::Imported],
            origin_name,
        )?,
        state: key_state(&fields, "state")?,
        source_aggregate: fields
            .bytes_option("source_aggregate")?
            .map(Sha256Digest::new),
        caller: fields.parsed("caller")?,
        created_at: fields.get("created_at")?,
        disabled_at: fields.get("disabled_at")?,
    })
}

pub(crate) fn key_state(
    fields: &Fields<'_>,
    column: &'static str,
) -> Result<KeyState, RepositoryError> {
    use KeyState::{Active, Destroyed, Disabled, Pending};
    fields.word(
        column,
        &[Pending, Active, Disabled, Destroyed],
        KeyState::as_str,
    )
}

const fn origin_name(origin: KeyOrigin) -> &'static str {
    match origin {
        KeyOrigin::Created => "created",
        KeyOrigin::Imported => "imported",
    }
}

const KEY: &str = "key";
