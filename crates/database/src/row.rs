//! Reading columns into the types that prove them.

use std::str::FromStr;

use identifiers::{Fingerprint, Sha256Digest};
use registry_domain::RepositoryError;
use sqlx::postgres::{PgRow, Postgres};
use sqlx::{Decode, Row as _, Type};

/// A row that is read by column name; a column that does not parse is damage, not a panic.
pub(crate) struct Fields<'r> {
    row: &'r PgRow,
    what: &'static str,
}

impl<'r> Fields<'r> {
    pub(crate) const fn of(row: &'r PgRow, what: &'static str) -> Self {
        Self { row, what }
    }

    pub(crate) fn get<T>(&self, column: &'static str) -> Result<T, RepositoryError>
    where
        T: Decode<'r, Postgres> + Type<Postgres>,
    {
        self.row.try_get(column).map_err(|_| self.damaged())
    }

    pub(crate) fn id<T>(
        &self,
        column: &'static str,
        wrap: fn(sqlx::types::Uuid) -> T,
    ) -> Result<T, RepositoryError> {
        self.get(column).map(wrap)
    }

    pub(crate) fn parsed<T: FromStr>(&self, column: &'static str) -> Result<T, RepositoryError> {
        let text: &str = self.get(column)?;
        text.parse().map_err(|_| self.damaged())
    }

    pub(crate) fn parsed_option<T: FromStr>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, RepositoryError> {
        let text: Option<&str> = self.get(column)?;
        text.map(|text| text.parse().map_err(|_| self.damaged()))
            .transpose()
    }

    /// A word of a closed list.
    pub(crate) fn word<T: Copy>(
        &self,
        column: &'static str,
        known: &[T],
        name: fn(T) -> &'static str,
    ) -> Result<T, RepositoryError> {
        let text: &str = self.get(column)?;
        let found = known.iter().find(|value| name(**value) == text);
        found.copied().ok_or_else(|| self.damaged())
    }

    pub(crate) fn number<T: TryFrom<i64>>(
        &self,
        column: &'static str,
    ) -> Result<T, RepositoryError> {
        let number: i64 = self.get(column)?;
        T::try_from(number).map_err(|_| self.damaged())
    }

    pub(crate) fn bytes<const N: usize>(
        &self,
        column: &'static str,
    ) -> Result<[u8; N], RepositoryError> {
        let bytes: &[u8] = self.get(column)?;
        bytes.try_into().map_err(|_| self.damaged())
    }

    pub(crate) fn bytes_option<const N: usize>(
        &self,
        column: &'static str,
    ) -> Result<Option<[u8; N]>, RepositoryError> {
        let bytes: Option<&[u8]> = self.get(column)?;
        bytes
            .map(|bytes| bytes.try_into().map_err(|_| self.damaged()))
            .transpose()
    }

    pub(crate) fn digest(&self, column: &'static str) -> Result<Sha256Digest, RepositoryError> {
        self.bytes(column).map(Sha256Digest::new)
    }

    pub(crate) fn fingerprint(&self, column: &'static str) -> Result<Fingerprint, RepositoryError> {
        self.bytes(column).map(Fingerprint::new)
    }

    pub(crate) fn json<T: serde::de::DeserializeOwned>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, RepositoryError> {
        let value: Option<serde_json::Value> = self.get(column)?;
        value
            .map(|value| serde_json::from_value(value).map_err(|_| self.damaged()))
            .transpose()
    }

    pub(crate) const fn damaged(&self) -> RepositoryError {
        RepositoryError::Damaged(self.what)
    }
}

/// A number as a column holds it. Sizes and counts of real things stay far below 2^63.
pub(crate) fn signed(number: u64, what: &'static str) -> Result<i64, RepositoryError> {
    i64::try_from(number).map_err(|_| RepositoryError::Damaged(what))
}
