//! The gRPC service: parse, one domain call, map.

use std::sync::Arc;

use api::v1::inference_service_server::InferenceService;
use api::{to_status, v1};
use service_runtime::context;
use tonic::{Request, Response, Status};

use crate::generation::{Answers, Generation};
use crate::node::{ModelName, Node};

/// The node over gRPC.
pub(crate) struct InferenceRpc(pub Arc<Node>);

#[tonic::async_trait]
impl InferenceService for InferenceRpc {
    type GenerateStream = Answers;

    async fn load_model(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<v1::LoadedModel>, Status> {
        let actor = context(&request)?.peer.spiffe.clone();
        let request = request.into_inner();
        let name = ModelName::parse(&request.model).map_err(to_status)?;
        let budget = (request.budget_bytes > 0).then_some(request.budget_bytes);
        let model = self.0.load(actor, name, budget).await.map_err(to_status)?;
        Ok(Response::new(model.describe()))
    }

    async fn unload_model(
        &self,
        request: Request<v1::UnloadModelRequest>,
    ) -> Result<Response<v1::UnloadModelResponse>, Status> {
        let actor = context(&request)?.peer.spiffe.clone();
        let name = ModelName::parse(&request.get_ref().model).map_err(to_status)?;
        self.0.unload(actor, name).await.map_err(to_status)?;
        Ok(Response::new(v1::UnloadModelResponse {}))
    }

    async fn list_models(
        &self,
        _request: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        let models = self.0.models.all();
        let models = models.iter().map(|model| model.describe()).collect();
        Ok(Response::new(v1::ListModelsResponse { models }))
    }

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let wanted = Generation::parse(request.into_inner()).map_err(to_status)?;
        let answers = self.0.generate(wanted).await.map_err(to_status)?;
        Ok(Response::new(answers))
    }
}
