//! The gRPC service: parse, one domain call, map.

use std::sync::Arc;

use api::v1::key_service_server::KeyService as KeyServiceRpc;
use api::{InvalidField, UnitRange, fields, to_status, v1};
use key_client::{Salts, sealed_from_proto, sealed_to_proto, subkey_from_proto};
use key_wrap::MAX_SUBKEYS;
use model_key::SubkeyId;
use registry_domain::Page;
use service_runtime::context;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::app::KeyService;
use crate::keys::Caller;
use crate::messages;
use crate::unlocks::UnlockRequest;

/// The key service over gRPC.
pub struct KeyRpc {
    service: Arc<KeyService>,
}

impl KeyRpc {
    /// Serves `service`.
    pub fn new(service: Arc<KeyService>) -> Self {
        Self { service }
    }
}

#[tonic::async_trait]
impl KeyServiceRpc for KeyRpc {
    async fn create_key(
        &self,
        request: Request<v1::CreateKeyRequest>,
    ) -> Result<Response<v1::Key>, Status> {
        let caller = caller(&request, &request.get_ref().request_id)?;
        let name = fields::name("name", &request.get_ref().name)?;
        let key = self.service.create_key(caller, name).await;
        Ok(Response::new(messages::key(key.map_err(to_status)?)))
    }

    async fn get_import_key(
        &self,
        _request: Request<v1::GetImportKeyRequest>,
    ) -> Result<Response<v1::ImportKey>, Status> {
        Ok(Response::new(v1::ImportKey {
            public_key: self.service.vault.import_key().to_vec(),
            key_id: self.service.vault.import_key_id(),
        }))
    }

    async fn import_key(
        &self,
        request: Request<v1::ImportKeyRequest>,
    ) -> Result<Response<v1::Key>, Status> {
        let caller = caller(&request, &request.get_ref().request_id)?;
        let request = request.into_inner();
        let name = fields::name("name", &request.name)?;
        let fingerprint = fields::id("fingerprint", &request.fingerprint)?;
        let sealed = sealed_from_proto("key", request.key)?;
        let key = self
            .service
            .import_key(caller, name, fingerprint, &request.import_key_id, &sealed)
            .await;
        Ok(Response::new(messages::key(key.map_err(to_status)?)))
    }

    async fn get_key(
        &self,
        request: Request<v1::GetKeyRequest>,
    ) -> Result<Response<v1::Key>, Status> {
        let key = self.service.find_key(&request.get_ref().key).await;
        Ok(Response::new(messages::key(key.map_err(to_status)?)))
    }

    async fn list_keys(
        &self,
        request: Request<v1::ListKeysRequest>,
    ) -> Result<Response<v1::ListKeysResponse>, Status> {
        let request = request.get_ref();
        let page = Page {
            size: fields::page_size(request.page_size)?,
            before: fields::optional_id("page_token", &request.page_token)?,
        };
        let keys = self.service.list_keys(page).await.map_err(to_status)?;
        let full = keys.len() == page.size as usize;
        let last = keys.last().filter(|_| full).map(|key| key.id.to_string());
        Ok(Response::new(v1::ListKeysResponse {
            keys: keys.into_iter().map(messages::key).collect(),
            next_page_token: last.unwrap_or_default(),
        }))
    }

    async fn disable_key(
        &self,
        request: Request<v1::DisableKeyRequest>,
    ) -> Result<Response<v1::Key>, Status> {
        let caller = caller(&request, &request.get_ref().request_id)?;
        let request = request.get_ref();
        let reason = fields::sentence("reason", &request.reason)?;
        let key = self
            .service
            .disable_key(caller, &request.key, &reason)
            .await;
        Ok(Response::new(messages::key(key.map_err(to_status)?)))
    }

    async fn open_seal_grant(
        &self,
        request: Request<v1::OpenSealGrantRequest>,
    ) -> Result<Response<v1::SealGrant>, Status> {
        let holder = context(&request)?.peer.spiffe.clone();
        let wanted = messages::open_grant(request.get_ref())?;
        let (grant, key) = self
            .service
            .open_grant(holder, wanted)
            .await
            .map_err(to_status)?;
        Ok(Response::new(messages::grant(&grant, &key)))
    }

    type DeriveSubkeysStream = ReceiverStream<Result<v1::DeriveSubkeysResponse, Status>>;

    async fn derive_subkeys(
        &self,
        request: Request<Streaming<v1::DeriveSubkeysRequest>>,
    ) -> Result<Response<Self::DeriveSubkeysStream>, Status> {
        let holder = context(&request)?.peer.spiffe.clone();
        let service = self.service.clone();
        let mut requests = request.into_inner();
        let (answers, stream) = mpsc::channel(ANSWERS_AHEAD);
        tokio::spawn(async move {
            loop {
                let answer = match requests.message().await {
                    Ok(Some(request)) => derive(&service, &holder, &request).await,
                    Ok(None) => return,
                    Err(status) => Err(status),
                };
                let failed = answer.is_err();
                if answers.send(answer).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn close_seal_grant(
        &self,
        request: Request<v1::CloseSealGrantRequest>,
    ) -> Result<Response<v1::SealGrant>, Status> {
        let holder = context(&request)?.peer.spiffe.clone();
        let id = fields::id("grant_id", &request.get_ref().grant_id)?;
        let (grant, key) = self
            .service
            .close_grant(&holder, id)
            .await
            .map_err(to_status)?;
        Ok(Response::new(messages::grant(&grant, &key)))
    }

    async fn issue_unlock(
        &self,
        request: Request<v1::IssueUnlockRequest>,
    ) -> Result<Response<v1::IssueUnlockResponse>, Status> {
        let caller = caller(&request, &request.get_ref().request_id)?;
        let certificate = context(&request)?.peer.cert_sha256;
        let request = request.get_ref();
        let wanted = UnlockRequest {
            artifact: fields::digest("artifact_digest", &request.artifact_digest)?,
            units: UnitRange::from_protos(&request.units)?,
            recipient: fields::bytes("recipient", &request.recipient)?,
            certificate,
        };
        let unlock = self
            .service
            .issue_unlock(caller, wanted)
            .await
            .map_err(to_status)?;
        Ok(Response::new(v1::IssueUnlockResponse {
            capability: unlock.token,
            capability_id: unlock.capability.id.to_string(),
            expires_at: unlock.capability.expires_at.div_euclid(1000),
            unit_keys: Some(sealed_to_proto(unlock.keys)),
            units: unlock.units.into_iter().map(UnitRange::to_proto).collect(),
        }))
    }

    async fn get_capability_keys(
        &self,
        _request: Request<v1::GetCapabilityKeysRequest>,
    ) -> Result<Response<v1::CapabilityKeys>, Status> {
        let public_key = self.service.capability_key.verifying_key();
        Ok(Response::new(v1::CapabilityKeys {
            keys: vec![v1::CapabilityKey {
                kid: self.service.capability_kid.clone(),
                public_key: public_key.as_bytes().to_vec(),
            }],
        }))
    }

    async fn revoke_unlock(
        &self,
        request: Request<v1::RevokeUnlockRequest>,
    ) -> Result<Response<v1::Revocation>, Status> {
        let caller = caller(&request, &request.get_ref().request_id)?;
        let request = request.get_ref();
        let artifact = fields::digest("artifact_digest", &request.artifact_digest)?;
        let node = fields::optional_id("node", &request.node)?;
        let reason = fields::sentence("reason", &request.reason)?;
        let revocation = self
            .service
            .revoke_unlock(caller, artifact, node, reason)
            .await
            .map_err(to_status)?;
        Ok(Response::new(v1::Revocation {
            epoch: revocation.epoch,
        }))
    }
}

async fn derive(
    service: &Arc<KeyService>,
    holder: &identifiers::SpiffeId,
    request: &v1::DeriveSubkeysRequest,
) -> Result<v1::DeriveSubkeysResponse, Status> {
    let grant = fields::id("grant_id", &request.grant_id)?;
    let recipient = fields::bytes("recipient", &request.recipient)?;
    let count = request.subkeys.len();
    if !(1..=MAX_SUBKEYS).contains(&count) {
        return Err(InvalidField::new("subkeys", format!("expected 1 to {MAX_SUBKEYS}")).into());
    }
    let used = service
        .use_grant(holder, grant, request.fence)
        .await
        .map_err(to_status)?;
    let salts = Salts {
        blob: used.1.blob_salt,
        container: used.1.container_salt,
    };
    let ids = request
        .subkeys
        .iter()
        .map(|spec| subkey_from_proto(spec, &salts))
        .collect::<Result<Vec<SubkeyId>, InvalidField>>()?;
    let sealed = service
        .derive_subkeys(holder, used, ids, recipient)
        .await
        .map_err(to_status)?;
    Ok(v1::DeriveSubkeysResponse {
        subkeys: Some(sealed_to_proto(sealed)),
        count: u32::try_from(count).unwrap_or(u32::MAX),
    })
}

fn caller<T>(request: &Request<T>, request_id: &str) -> Result<Caller, Status> {
    Ok(Caller {
        id: context(request)?.peer.spiffe.clone(),
        request_id: fields::request_id(request_id)?,
    })
}

/// Batches derived before the caller has taken the ones before.
const ANSWERS_AHEAD: usize = 2;
