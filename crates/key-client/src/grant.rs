use std::sync::Arc;
use std::time::Duration;

use api::client::Client;
use api::{fields, v1};
use futures::stream;
use identifiers::{Fingerprint, GrantId};
use key_wrap::{MAX_SUBKEYS, Purpose, RecipientKey, open_subkeys};
use model_key::{GrantedSubkeys, Subkey, SubkeyId};
use rand_core::CryptoRng;
use tokio::time::timeout;

use crate::error::KeyClientError;
use crate::spec::{Salts, sealed_from_proto, subkey_to_proto};

/// An open seal grant, as its holder knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealGrant {
    /// Its id.
    pub id: GrantId,
    /// The fencing token of the lease that it was opened under.
    pub fence: u64,
    /// Fingerprint of the model key.
    pub fingerprint: Fingerprint,
    /// The salts that it was opened for.
    pub salts: Salts,
    /// Unix seconds.
    pub expires_at: i64,
}

/// Opens, uses and closes seal grants.
#[derive(Clone)]
pub struct GrantClient {
    client: Client,
}

impl GrantClient {
    /// Talks to the key service through `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Opens a job's grant; opening it again gives the same.
    pub async fn open(
        &self,
        request: v1::OpenSealGrantRequest,
    ) -> Result<SealGrant, KeyClientError> {
        let salts = Salts {
            blob: fields::optional_bytes("blob_salt", &request.blob_salt)?,
            container: fields::optional_bytes("container_salt", &request.container_salt)?,
        };
        let answer = self
            .client
            .call(|| {
                let mut service = self.client.key_service();
                let request = request.clone();
                async move { service.open_seal_grant(request).await }
            })
            .await?
            .into_inner();
        Ok(SealGrant {
            id: fields::id("grant.id", &answer.id)?,
            fence: request.fence,
            fingerprint: fields::id("grant.fingerprint", &answer.fingerprint)?,
            salts,
            expires_at: answer.expires_at,
        })
    }

    /// Fetches subkeys under a grant: batches of at most 4096, all in one stream, each wrapped to
    /// an ephemeral key of its own.
    pub async fn fetch(
        &self,
        grant: &SealGrant,
        ids: Vec<SubkeyId>,
        rng: &mut impl CryptoRng,
    ) -> Result<GrantedSubkeys, KeyClientError> {
        if let Some(other) = ids.iter().find(|id| !grant.salts.cover(id)) {
            return Err(KeyClientError::OtherSalt(Box::new(other.clone())));
        }
        let recipients: Vec<RecipientKey> = ids
            .chunks(MAX_SUBKEYS)
            .map(|_| RecipientKey::generate(rng))
            .collect();
        let mut granted = GrantedSubkeys::new(grant.fingerprint);
        if ids.is_empty() {
            return Ok(granted);
        }
        let ids: Arc<[SubkeyId]> = ids.into();
        let recipients: Arc<[RecipientKey]> = recipients.into();
        let mut answers = self
            .client
            .call(|| {
                let mut service = self.client.key_service();
                let requests = requests(grant, ids.clone(), recipients.clone());
                async move { service.derive_subkeys(stream::iter(requests)).await }
            })
            .await?
            .into_inner();
        for (index, batch) in ids.chunks(MAX_SUBKEYS).enumerate() {
            let answer = timeout(ANSWER_TIME, answers.message())
                .await
                .map_err(|_| tonic::Status::deadline_exceeded("no answer for a batch of subkeys"))??
                .ok_or(KeyClientError::Ended {
                    received: index,
                    batches: recipients.len(),
                })?;
            if answer.count as usize != batch.len() {
                return Err(KeyClientError::Count {
                    expected: batch.len(),
                    found: answer.count as usize,
                });
            }
            let sealed = sealed_from_proto("subkeys", answer.subkeys)?;
            let subkeys: Vec<Subkey> =
                open_subkeys(&recipients[index], Purpose::Grant(grant.id), batch, &sealed)?;
            granted.extend(batch.iter().cloned().zip(subkeys));
        }
        Ok(granted)
    }

    /// Ends a grant. Ending it again changes nothing.
    pub async fn close(&self, grant: GrantId) -> Result<(), KeyClientError> {
        let grant_id = grant.to_string();
        self.client
            .call(|| {
                let mut service = self.client.key_service();
                let request = v1::CloseSealGrantRequest {
                    grant_id: grant_id.clone(),
                };
                async move { service.close_seal_grant(request).await }
            })
            .await?;
        Ok(())
    }
}

/// The requests of all batches, built as the stream asks for them.
fn requests(
    grant: &SealGrant,
    ids: Arc<[SubkeyId]>,
    recipients: Arc<[RecipientKey]>,
) -> impl Iterator<Item = v1::DeriveSubkeysRequest> + Send + 'static {
    let (grant_id, fence) = (grant.id.to_string(), grant.fence);
    (0..recipients.len()).map(move |index| {
        let start = index * MAX_SUBKEYS;
        let end = ids.len().min(start + MAX_SUBKEYS);
        v1::DeriveSubkeysRequest {
            grant_id: grant_id.clone(),
            fence,
            recipient: recipients[index].public_key().to_vec(),
            subkeys: ids[start..end].iter().map(subkey_to_proto).collect(),
        }
    })
}

const ANSWER_TIME: Duration = Duration::from_secs(30);
