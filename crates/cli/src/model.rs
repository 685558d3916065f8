//! `chancery model`.

use std::path::Path;

use anyhow::Result;
use api::v1::{ListModelsRequest, LoadModelRequest, LoadedModel, ModelState, UnloadModelRequest};
use serde::Serialize;

use crate::args::ModelCommand;
use crate::context::{Context, Person, Workload};
use crate::outcome::{Outcome, bytes, heading, table, time};
use crate::progress;

/// Runs a command.
pub async fn execute(state: &Path, command: ModelCommand) -> Result<Outcome> {
    let context = Context::load(state)?;
    let client = context.client(Workload::InferenceNode, Person::Platform)?;
    match command {
        ModelCommand::Load { model, budget } => {
            let spinner = progress::waiting("unlocking and opening");
            let request = LoadModelRequest {
                model,
                budget_bytes: budget,
            };
            let loaded = client
                .call(|| {
                    let (mut service, request) = (client.inference_service(), request.clone());
                    async move { service.load_model(request).await }
                })
                .await?
                .into_inner();
            spinner.finish_and_clear();
            let view = ModelView::of(loaded);
            Ok(Outcome::new(&view, view.text()))
        }
        ModelCommand::Unload { model } => {
            let request = UnloadModelRequest {
                model: model.clone(),
            };
            client
                .call(|| {
                    let (mut service, request) = (client.inference_service(), request.clone());
                    async move { service.unload_model(request).await }
                })
                .await?;
            Ok(Outcome::new(
                &serde_json::json!({ "unloaded": model }),
                format!("unloaded {model}"),
            ))
        }
        ModelCommand::List => {
            let models = client
                .call(|| {
                    let mut service = client.inference_service();
                    async move { service.list_models(ListModelsRequest {}).await }
                })
                .await?
                .into_inner()
                .models;
            let views: Vec<ModelView> = models.into_iter().map(ModelView::of).collect();
            let mut rows = vec![heading(&[
                "MODEL",
                "STATE",
                "ARCHITECTURE",
                "BUDGET",
                "RESIDENT",
            ])];
            rows.extend(views.iter().map(|model| {
                vec![
                    model.model.clone(),
                    model.state.to_owned(),
                    model.architecture.clone(),
                    bytes(model.budget_bytes),
                    bytes(model.pager.resident_bytes),
                ]
            }));
            Ok(Outcome::new(&views, table(&rows)))
        }
    }
}

#[derive(Serialize)]
struct ModelView {
    model: String,
    artifact_digest: String,
    architecture: String,
    state: &'static str,
    message: String,
    blocks: u32,
    context_length: u32,
    page_bytes: u64,
    dense_bytes: u64,
    budget_bytes: u64,
    pager: PagerView,
    capability_expires_at: i64,
    source_aggregate: String,
}

#[derive(Serialize)]
struct PagerView {
    hits: u64,
    misses: u64,
    evictions: u64,
    bytes_read: u64,
    resident_bytes: u64,
}

impl ModelView {
    fn of(model: LoadedModel) -> Self {
        let pager = model.pager.unwrap_or_default();
        Self {
            state: match model.state() {
                ModelState::Ready => "ready",
                ModelState::Revoked => "revoked",
                ModelState::Unspecified => "unknown",
            },
            model: model.model,
            artifact_digest: model.artifact_digest,
            architecture: model.architecture,
            message: model.message,
            blocks: model.blocks,
            context_length: model.context_length,
            page_bytes: model.page_bytes,
            dense_bytes: model.dense_bytes,
            budget_bytes: model.budget_bytes,
            pager: PagerView {
                hits: pager.hits,
                misses: pager.misses,
                evictions: pager.evictions,
                bytes_read: pager.bytes_read,
                resident_bytes: pager.resident_bytes,
            },
            capability_expires_at: model.capability_expires_at,
            source_aggregate: model.source_aggregate,
        }
    }

    fn text(&self) -> String {
        let mut rows = vec![
            vec!["model".to_owned(), self.model.clone()],
            vec!["artifact".to_owned(), self.artifact_digest.clone()],
            vec!["architecture".to_owned(), self.architecture.clone()],
            vec!["state".to_owned(), self.state.to_owned()],
            vec![
                "pages".to_owned(),
                format!("{} of {}", self.blocks, bytes(self.page_bytes)),
            ],
            vec!["budget".to_owned(), bytes(self.budget_bytes)],
            vec!["always resident".to_owned(), bytes(self.dense_bytes)],
            vec![
                "capability until".to_owned(),
                time(self.capability_expires_at),
            ],
        ];
        if !self.message.is_empty() {
            rows.push(vec!["message".to_owned(), self.message.clone()]);
        }
        table(&rows)
    }
}
