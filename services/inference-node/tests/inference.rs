//! The inference node beside a real registry, key service and storage node, over mutual TLS: a sealed
//! container is loaded by capability, paged, run, refused and revoked.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::time::Duration;

use api::client::Client;
use api::v1::generate_request::Input;
use api::v1::{
    FinishReason, GenerateRequest, GenerateResponse, ListModelsRequest, LoadModelRequest,
    LoadedModel, ModelState, TokenIds, UnloadModelRequest,
};
use futures::TryStreamExt as _;
use serde_json::Value;
use tonic::{Code, Status};
use world::{Form, World};

fn reference() -> Value {
    let path = world::data().join("tiny-qwen3.reference.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

fn generate(model: &str, input: Input, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        model: model.to_owned(),
        input: Some(input),
        max_tokens,
        ignore_stop: true,
        ..GenerateRequest::default()
    }
}

async fn load(world: &World, model: &str, budget_bytes: u64) -> Result<LoadedModel, Status> {
    let request = LoadModelRequest {
        model: model.to_owned(),
        budget_bytes,
    };
    let answer = world.client.inference_service().load_model(request).await?;
    Ok(answer.into_inner())
}

async fn run(world: &World, request: GenerateRequest) -> Result<Vec<GenerateResponse>, Status> {
    run_with(&world.client, request).await
}

async fn run_with(
    client: &Client,
    request: GenerateRequest,
) -> Result<Vec<GenerateResponse>, Status> {
    let answers = client.inference_service().generate(request).await?;
    answers.into_inner().try_collect().await
}

async fn models(world: &World) -> Vec<LoadedModel> {
    let mut service = world.client.inference_service();
    let answer = service.list_models(ListModelsRequest {}).await.unwrap();
    answer.into_inner().models
}

async fn unload(world: &World, model: &str) {
    let request = UnloadModelRequest {
        model: model.to_owned(),
    };
    world
        .client
        .inference_service()
        .unload_model(request)
        .await
        .unwrap();
}

fn tokens(answers: &[GenerateResponse]) -> Vec<u32> {
    let tokens = answers.iter().filter(|answer| answer.finish.is_none());
    tokens.map(|answer| answer.token).collect()
}

fn text(answers: &[GenerateResponse]) -> String {
    answers.iter().map(|answer| answer.text.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sealed_model_under_two_pages_gives_the_references_tokens() {
    let world = World::start(300).await;
    let digest = world.publish("tiny", Form::Sealed).await;

    let refused = load(&world, "tiny", 1).await.unwrap_err();
    assert_eq!(api::reason(&refused), Some("BUDGET_TOO_SMALL"), "{refused}");
    let page = load(&world, "tiny", 0).await.unwrap().page_bytes;
    unload(&world, "tiny").await;

    let loaded = load(&world, "tiny", 2 * page).await.unwrap();
    assert_eq!(loaded.artifact_digest, digest);
    assert_eq!(loaded.budget_bytes, 2 * page);
    assert_eq!(loaded.state(), ModelState::Ready);
    let again = load(&world, &digest, 0).await.unwrap();
    assert_eq!(again.budget_bytes, 2 * page, "it is given as it is");
    let wider = load(&world, &digest, 3 * page).await.unwrap();
    assert_eq!(wider.budget_bytes, 3 * page, "it gets the budget asked for");
    let refused = load(&world, &digest, page).await.unwrap_err();
    assert_eq!(api::reason(&refused), Some("BUDGET_TOO_SMALL"), "{refused}");
    let narrow = load(&world, "tiny", 2 * page).await.unwrap();
    assert_eq!(narrow.budget_bytes, 2 * page);

    let reference = reference();
    for prompt in reference["prompts"].as_array().unwrap() {
        let input = Input::Prompt(prompt["text"].as_str().unwrap().to_owned());
        let expected = ids(&prompt["greedy_ids"]);
        let count = u32::try_from(expected.len()).unwrap();
        let answers = run(&world, generate("tiny", input, count)).await.unwrap();
        let margins = prompt["top2_margins"].as_array().unwrap().iter();
        // Past a narrow choice the two may go separate ways.
        let clear = margins
            .take_while(|margin| margin.as_f64().unwrap() > 0.02)
            .count();
        let found = tokens(&answers);
        assert_eq!(found[..clear], expected[..clear], "{}", prompt["name"]);
        if clear == expected.len() {
            assert_eq!(text(&answers), prompt["greedy_text"], "{}", prompt["name"]);
        }
        let finish = answers.last().unwrap().finish.unwrap();
        assert_eq!(finish.reason(), FinishReason::Length);
        assert_eq!(finish.generated_tokens, count);
        assert_eq!(
            finish.prompt_tokens as usize,
            ids(&prompt["input_ids"]).len()
        );
    }
    let described = models(&world).await.remove(0);
    let pager = described.pager.unwrap();
    assert!(
        pager.evictions > 0,
        "the budget is below the model: {pager:?}"
    );
    assert!(pager.resident_bytes <= 2 * page, "{pager:?}");

    let health = world.health("/v1/health").await;
    let identity = &health["base_weight_identity"];
    assert_eq!(identity["aggregate_sha256"], described.source_aggregate);
    assert_eq!(identity.as_object().unwrap().len(), 5);
    let state = world.health("/v1/debug/model-state").await;
    let shards = &state["models"][0]["base_weight_identity"]["shards"];
    assert_eq!(shards.as_array().unwrap().len(), 2);

    unload(&world, "tiny").await;
    unload(&world, "tiny").await;
    assert!(models(&world).await.is_empty());
    let events = world.events().await;
    let count = |event: &str| events.iter().filter(|e| *e == event).count();
    assert_eq!(count("loaded"), 2, "{events:?}");
    assert_eq!(count("unloaded"), 2, "{events:?}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_served_say_why() {
    let world = World::start(300).await;
    world.publish("tiny", Form::Sealed).await;
    world.publish("plain", Form::Plain).await;
    world.publish("other", Form::OtherSalt).await;
    for (model, code, reason) in [
        ("absent", Code::NotFound, "ARTIFACT_NOT_FOUND"),
        ("plain", Code::FailedPrecondition, "PLAIN_CONTAINER"),
        ("other", Code::DataLoss, "CONTAINER_IS_ANOTHER"),
    ] {
        let refused = load(&world, model, 0).await.unwrap_err();
        assert_eq!(refused.code(), code, "{model}: {refused}");
        assert_eq!(api::reason(&refused), Some(reason), "{model}");
    }
    let loaded = load(&world, "tiny", 0).await.unwrap();
    let prompt = |ids: Vec<u32>| Input::Tokens(TokenIds { ids });
    let context = loaded.context_length;
    let long = vec![1; context as usize + 1];
    for (request, code, reason) in [
        (
            generate("absent", prompt(vec![1]), 1),
            Code::NotFound,
            "MODEL_NOT_LOADED",
        ),
        (
            generate("tiny", prompt(vec![]), 1),
            Code::InvalidArgument,
            "EMPTY_PROMPT",
        ),
        (
            generate("tiny", prompt(long), 1),
            Code::InvalidArgument,
            "CONTEXT_TOO_SHORT",
        ),
        (
            generate("tiny", prompt(vec![u32::MAX]), 1),
            Code::InvalidArgument,
            "TOKEN_OUTSIDE_VOCABULARY",
        ),
        (
            generate("tiny", prompt(vec![1]), context + 1),
            Code::InvalidArgument,
            "INVALID_ARGUMENT",
        ),
    ] {
        let refused = run(&world, request).await.unwrap_err();
        assert_eq!(
            (refused.code(), api::reason(&refused)),
            (code, Some(reason)),
            "{refused}"
        );
    }
    // To the end of the context.
    let full = vec![1; context as usize - 2];
    let answers = run(&world, generate("tiny", prompt(full), 50))
        .await
        .unwrap();
    let finish = answers.last().unwrap().finish.unwrap();
    assert_eq!(finish.reason(), FinishReason::Context);
    assert_eq!(finish.generated_tokens, 3);

    // A client that goes away frees the node for the next one.
    let mut service = world.client.inference_service();
    let abandoned = service
        .generate(generate("tiny", prompt(vec![1]), context))
        .await
        .unwrap();
    drop(abandoned);
    let sampled = GenerateRequest {
        temperature: 0.8,
        top_p: 0.9,
        seed: 7,
        ..generate("tiny", prompt(vec![1, 2, 3]), 12)
    };
    let first = run(&world, sampled.clone()).await.unwrap();
    let second = run(&world, sampled).await.unwrap();
    assert_eq!(tokens(&first), tokens(&second), "a seed repeats its draws");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_model_loses_its_keys_and_pages_within_seconds() {
    let world = World::start(4).await;
    let digest = world.publish("tiny", Form::Sealed).await;
    load(&world, "tiny", 0).await.unwrap();
    let prompt = || Input::Prompt("In the beginning".to_owned());
    run(&world, generate("tiny", prompt(), 4)).await.unwrap();
    let before = models(&world).await.remove(0).capability_expires_at;
    let renewed = async {
        while models(&world).await[0].capability_expires_at <= before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), renewed)
        .await
        .unwrap();
    run(&world, generate("tiny", prompt(), 4)).await.unwrap();

    let context = models(&world).await[0].context_length;
    let sessions: Vec<_> = (0..24)
        .map(|_| {
            let (client, request) = (world.client.clone(), generate("tiny", prompt(), context));
            tokio::spawn(async move { run_with(&client, request).await })
        })
        .collect();
    world.revoke(&digest).await;
    let revoked = async {
        loop {
            let model = models(&world).await.remove(0);
            if model.state() == ModelState::Revoked {
                return model;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let model = tokio::time::timeout(Duration::from_secs(10), revoked)
        .await
        .unwrap();
    assert!(model.message.contains("revoked"), "{}", model.message);
    assert_eq!(model.pager.unwrap().resident_bytes, 0);
    let mut cancelled = 0;
    for session in sessions {
        if let Err(ended) = session.await.unwrap() {
            assert_eq!(api::reason(&ended), Some("MODEL_REVOKED"), "{ended}");
            cancelled += 1;
        }
    }
    assert!(cancelled > 0, "a session was running or waiting");
    let refused = run(&world, generate("tiny", prompt(), 4))
        .await
        .unwrap_err();
    assert_eq!(api::reason(&refused), Some("MODEL_REVOKED"), "{refused}");
    let refused = load(&world, "tiny", 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert_eq!(
        world.health("/health").await["base_weight_identity"],
        Value::Null
    );
    let recorded = async {
        // One by the key service, one by the node.
        while world
            .events()
            .await
            .iter()
            .filter(|event| *event == "revoked")
            .count()
            < 2
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), recorded)
        .await
        .unwrap();
    world.stop().await;
}
