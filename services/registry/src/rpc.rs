//! The gRPC service: parse, one domain call, map.

use std::sync::Arc;

use api::v1::registry_service_server::RegistryService;
use api::{InvalidField, fields, to_status, v1};
use identifiers::Sha256Digest;
use service_runtime::context;
use tlog::TilePath;
use tonic::{Request, Response, Status};

use crate::messages;
use crate::service::Registry;

/// The registry over gRPC.
pub struct RegistryRpc {
    registry: Arc<Registry>,
}

impl RegistryRpc {
    /// Serves `registry`.
    pub const fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }
}

#[tonic::async_trait]
impl RegistryService for RegistryRpc {
    async fn register_artifact(
        &self,
        request: Request<v1::RegisterArtifactRequest>,
    ) -> Result<Response<v1::Artifact>, Status> {
        let caller = context(&request)?.peer.spiffe.clone();
        let request = request.into_inner();
        let request_id = fields::request_id(&request.request_id)?;
        let registered = self
            .registry
            .register(caller, request_id, request.manifest_envelope)
            .await;
        Ok(Response::new(messages::whole(
            registered.map_err(to_status)?,
        )))
    }

    async fn get_artifact(
        &self,
        request: Request<v1::GetArtifactRequest>,
    ) -> Result<Response<v1::Artifact>, Status> {
        let which = messages::which(request.into_inner())?;
        let found = self.registry.artifact(which).await.map_err(to_status)?;
        Ok(Response::new(messages::whole(found)))
    }

    async fn list_artifacts(
        &self,
        request: Request<v1::ListArtifactsRequest>,
    ) -> Result<Response<v1::ListArtifactsResponse>, Status> {
        let (filter, page) = messages::artifact_list(request.get_ref())?;
        let found = self.registry.list_artifacts(&filter, page).await;
        let found = found.map_err(to_status)?;
        let full = found.len() == page.size as usize;
        let last = found.last().filter(|_| full);
        Ok(Response::new(v1::ListArtifactsResponse {
            next_page_token: last
                .map(|last| last.artifact.id.to_string())
                .unwrap_or_default(),
            artifacts: found.iter().map(messages::listed).collect(),
        }))
    }

    async fn append_receipt(
        &self,
        request: Request<v1::AppendReceiptRequest>,
    ) -> Result<Response<v1::LoggedReceipt>, Status> {
        let caller = context(&request)?.peer.spiffe.clone();
        let envelope = request.into_inner().envelope;
        let logged = self.registry.append(&caller, envelope).await;
        Ok(Response::new(messages::logged(logged.map_err(to_status)?)))
    }

    async fn get_receipt(
        &self,
        request: Request<v1::GetReceiptRequest>,
    ) -> Result<Response<v1::LoggedReceipt>, Status> {
        use v1::get_receipt_request::Which;
        let logged = match fields::required("which", request.into_inner().which)? {
            Which::ReceiptId(id) => {
                let id = fields::id("receipt_id", &id)?;
                self.registry.receipt_by_id(id).await
            }
            Which::Index(index) => self.registry.receipt_at(index).await,
        };
        Ok(Response::new(messages::logged(logged.map_err(to_status)?)))
    }

    async fn list_receipts(
        &self,
        request: Request<v1::ListReceiptsRequest>,
    ) -> Result<Response<v1::ListReceiptsResponse>, Status> {
        let request = request.get_ref();
        let filter = messages::entry_filter(request)?;
        let limit = fields::page_size(request.page_size)?;
        let listed = self
            .registry
            .list_receipts(&filter, request.from_index, limit)
            .await;
        let (entries, next_index, head) = listed.map_err(to_status)?;
        Ok(Response::new(v1::ListReceiptsResponse {
            next_index,
            receipts: entries.into_iter().map(messages::entry).collect(),
            checkpoint: Some(messages::checkpoint(head)),
        }))
    }

    async fn get_checkpoint(
        &self,
        _request: Request<v1::GetCheckpointRequest>,
    ) -> Result<Response<v1::Checkpoint>, Status> {
        let head = self.registry.head().await.map_err(to_status)?;
        Ok(Response::new(messages::checkpoint(head)))
    }

    async fn get_inclusion_proof(
        &self,
        request: Request<v1::GetInclusionProofRequest>,
    ) -> Result<Response<v1::InclusionProof>, Status> {
        let request = request.get_ref();
        let proof = self
            .registry
            .inclusion(request.index, request.tree_size)
            .await;
        let hashes = bytes(proof.map_err(to_status)?);
        Ok(Response::new(v1::InclusionProof { hashes }))
    }

    async fn get_consistency_proof(
        &self,
        request: Request<v1::GetConsistencyProofRequest>,
    ) -> Result<Response<v1::ConsistencyProof>, Status> {
        let request = request.get_ref();
        let proof = self
            .registry
            .consistency(request.old_size, request.new_size)
            .await;
        let hashes = bytes(proof.map_err(to_status)?);
        Ok(Response::new(v1::ConsistencyProof { hashes }))
    }

    async fn get_tile(
        &self,
        request: Request<v1::GetTileRequest>,
    ) -> Result<Response<v1::Tile>, Status> {
        let path: TilePath = request
            .get_ref()
            .path
            .parse()
            .map_err(|error: tlog::TileError| InvalidField::new("path", error.to_string()))?;
        let data = self.registry.tile(&path).await.map_err(to_status)?;
        Ok(Response::new(v1::Tile { data }))
    }

    async fn get_trusted_keys(
        &self,
        _request: Request<v1::GetTrustedKeysRequest>,
    ) -> Result<Response<v1::TrustedKeys>, Status> {
        let log = self.registry.keeper.verifier();
        Ok(Response::new(messages::trusted_keys(
            log,
            &self.registry.signers,
        )))
    }
}

fn bytes(hashes: Vec<Sha256Digest>) -> Vec<Vec<u8>> {
    hashes
        .into_iter()
        .map(|hash| hash.as_bytes().to_vec())
        .collect()
}
