//! `chancery artifacts`.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use api::client::Client;
use api::v1::{
    Artifact, ArtifactKind, GetArtifactRequest, ListArtifactsRequest, ModelRef,
    RevokeUnlockRequest, get_artifact_request::Which,
};
use identifiers::{ArtifactId, Sha256Digest};
use serde::Serialize;

use crate::args::ArtifactsCommand;
use crate::context::{Context, Person, Workload, request_id};
use crate::fetch::fetch;
use crate::outcome::{Outcome, bytes, heading, table, time};
use crate::seal::kind_name;

/// Runs a command.
pub async fn execute(state: &Path, command: ArtifactsCommand) -> Result<Outcome> {
    let context = Context::load(state)?;
    match command {
        ArtifactsCommand::List { model } => {
            let client = context.client(Workload::Registry, Person::Platform)?;
            list(&client, model.unwrap_or_default()).await
        }
        ArtifactsCommand::Show { artifact } => show(&context, artifact).await,
        ArtifactsCommand::Fetch { artifact, output } => fetch(&context, artifact, output).await,
        ArtifactsCommand::Revoke {
            artifact,
            node,
            reason,
            request,
        } => {
            let digest = match artifact.parse::<Sha256Digest>() {
                // Needs no registry.
                Ok(_) => artifact,
                Err(_) => {
                    let kind = ArtifactKind::Container;
                    verified(&context, artifact, kind).await?.0.digest
                }
            };
            let client = context.client(Workload::KeyService, Person::Operator)?;
            let request = RevokeUnlockRequest {
                request_id: request_id(request.request_id.as_deref())?,
                artifact_digest: digest.clone(),
                node: node.unwrap_or_default(),
                reason,
            };
            let answer = client
                .call(|| {
                    let (mut service, request) = (client.key_service(), request.clone());
                    async move { service.revoke_unlock(request).await }
                })
                .await?
                .into_inner();
            let text = format!("revoked {digest}, epoch {}", answer.epoch);
            let view = RevocationView {
                digest,
                epoch: answer.epoch,
            };
            Ok(Outcome::new(&view, text))
        }
    }
}

#[derive(Serialize)]
struct RevocationView {
    digest: String,
    epoch: u64,
}

#[derive(Serialize)]
struct ArtifactView {
    id: String,
    digest: String,
    model: String,
    kind: &'static str,
    key_id: String,
    fingerprint: String,
    source_aggregate: String,
    registered_at: i64,
}

impl ArtifactView {
    fn of(artifact: &Artifact) -> Self {
        Self {
            id: artifact.id.clone(),
            digest: artifact.digest.clone(),
            model: artifact.model.clone(),
            kind: kind_name(artifact.kind()),
            key_id: artifact.key_id.clone(),
            fingerprint: artifact.fingerprint.clone(),
            source_aggregate: artifact.source_aggregate.clone(),
            registered_at: artifact.registered_at,
        }
    }
}

async fn list(client: &Client, model: String) -> Result<Outcome> {
    let mut views = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListArtifactsRequest {
            page_token,
            model: model.clone(),
            ..Default::default()
        };
        let page = client
            .call(|| {
                let (mut service, request) = (client.registry_service(), request.clone());
                async move { service.list_artifacts(request).await }
            })
            .await?
            .into_inner();
        views.extend(page.artifacts.iter().map(ArtifactView::of));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let mut rows = vec![heading(&["MODEL", "KIND", "REGISTERED", "DIGEST"])];
    rows.extend(views.iter().map(|artifact| {
        vec![
            artifact.model.clone(),
            artifact.kind.to_owned(),
            time(artifact.registered_at),
            artifact.digest.clone(),
        ]
    }));
    Ok(Outcome::new(&views, table(&rows)))
}

/// An artifact with its manifest, whose signature was checked.
#[derive(Serialize)]
struct FullView {
    #[serde(flatten)]
    artifact: ArtifactView,
    manifest: registry_domain::ArtifactManifest,
    log_index: Option<u64>,
}

/// An artifact by its id, its digest, or the model's name and the `kind` of its newest; with its
/// manifest, whose signature was checked.
pub async fn verified(
    context: &Context,
    which: String,
    kind: ArtifactKind,
) -> Result<(Artifact, registry_domain::ArtifactManifest)> {
    let which = match (which.parse::<ArtifactId>(), which.parse::<Sha256Digest>()) {
        (Ok(_), _) => Which::Id(which),
        (_, Ok(_)) => Which::Digest(which),
        _ => Which::Model(ModelRef {
            model: which,
            kind: kind.into(),
        }),
    };
    let client = context.client(Workload::Registry, Person::Platform)?;
    let asked = which.clone();
    let request = GetArtifactRequest { which: Some(which) };
    let artifact = client
        .call(|| {
            let (mut service, request) = (client.registry_service(), request.clone());
            async move { service.get_artifact(request).await }
        })
        .await?
        .into_inner();
    let trust = custody::Trust::try_from(&context.trusted()?)?;
    let verified =
        registry_domain::VerifiedManifest::verify(&artifact.manifest_envelope, &trust.signers)
            .context("the artifact's manifest does not verify")?;
    let manifest = verified.manifest().clone();
    // The registry's word for which artifact this is counts for nothing against the signature.
    ensure!(
        artifact.digest == verified.digest().to_string() && artifact.model == manifest.model,
        "the registry gave the manifest of another artifact"
    );
    match asked {
        Which::Digest(digest) => ensure!(
            digest == artifact.digest,
            "the registry gave another artifact than {digest}"
        ),
        Which::Model(asked) => ensure!(
            asked.model == artifact.model && asked.kind == artifact.kind,
            "the registry gave an artifact of another model or kind"
        ),
        Which::Id(_) => {}
    }
    Ok((artifact, manifest))
}

async fn show(context: &Context, which: String) -> Result<Outcome> {
    let (artifact, manifest) = verified(context, which, ArtifactKind::Container).await?;
    let mut rows = vec![
        vec!["model".to_owned(), artifact.model.clone()],
        vec!["kind".to_owned(), kind_name(artifact.kind()).to_owned()],
        vec!["digest".to_owned(), artifact.digest.clone()],
        vec!["fingerprint".to_owned(), artifact.fingerprint.clone()],
        vec!["source".to_owned(), artifact.source_aggregate.clone()],
        vec![
            "seal".to_owned(),
            format!(
                "{} {}, lock {}, {}",
                manifest.seal.scheme,
                manifest.seal.transform,
                manifest.seal.lock,
                manifest.seal.architecture
            ),
        ],
        vec!["sealer".to_owned(), manifest.sealer.to_string()],
        vec!["sealed".to_owned(), time(manifest.sealed_at)],
        vec!["signature".to_owned(), "verified".to_owned()],
    ];
    rows.extend(manifest.files.iter().map(|file| {
        vec![
            "file".to_owned(),
            format!("{} {} {}", file.path, bytes(file.size), file.sha256),
        ]
    }));
    let view = FullView {
        artifact: ArtifactView::of(&artifact),
        manifest,
        log_index: artifact.receipt.map(|receipt| receipt.index),
    };
    Ok(Outcome::new(&view, table(&rows)))
}
