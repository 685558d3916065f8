//! Unlock requests per second of the whole suite on loopback, beside bare calls over the same
//! connection. Each unlock is a policy decision, a database record, a receipt in the log and the
//! wrapped keys of every unit. Then the subkeys of a large mixture of experts under a seal grant,
//! beside deriving them here.
//!
//! `cargo bench -p chancery-tests --bench unlock`, after `cargo build --release` of the binaries.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::client::Client;
use api::v1;
use chancery_tests::Suite;
use identifiers::{JobId, RequestId, Role, Sha256Digest};
use key_client::{GrantClient, issue_unlock};
use model_key::{Component, Label, LockVersion, ModelKey, SubkeyId, SubkeySource as _, TensorId};
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _};
use service_runtime::Identity;
use workload_identity::dev_ca;

const CALLERS: u64 = 16;
const EACH: u64 = 25;
const SUBKEYS: u32 = 100_000;

#[expect(
    clippy::print_stdout,
    reason = "a benchmark reports on standard output"
)]
#[tokio::main]
async fn main() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "bench"]);
    suite.ok(&[
        "seal",
        "submit",
        "tiny-qwen3",
        "--key",
        "bench",
        "--model",
        "bench",
        "--no-checkpoint",
        "--watch",
    ]);
    let shown = suite.json(&["artifacts", "show", "bench"]);
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let artifact: Sha256Digest = text(&shown["digest"]).parse().expect("a digest");
    let mut salt = [0; 16];
    let salt_text = text(&shown["manifest"]["container"]["salt"]);
    hex::decode_to_slice(salt_text, &mut salt).expect("hex digits");
    let units: u64 = shown["manifest"]["container"]["units"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|region| region["count"].as_u64())
        .sum();
    let client = client(&suite, Role::Inference);

    let caller = client.clone();
    let bare = rate(move |_| {
        let client = caller.clone();
        async move {
            let request = v1::GetCapabilityKeysRequest {};
            let answer = client.key_service().get_capability_keys(request).await;
            answer.expect("the bare call is answered");
        }
    })
    .await;
    let unlocks = rate(move |number| {
        let client = client.clone();
        async move {
            let mut rng = ChaCha20Rng::seed_from_u64(number);
            let mut random = [0; 10];
            rng.fill_bytes(&mut random);
            let id = RequestId::from_parts(now() * 1000, &random);
            issue_unlock(&client, id, artifact, salt, &[], &mut rng)
                .await
                .expect("the unlock is allowed");
        }
    })
    .await;
    println!(
        "{CALLERS} callers, {} calls, {units} units an unlock",
        CALLERS * EACH
    );
    println!("bare calls      {bare:8.0} /s");
    println!(
        "unlock requests {unlocks:8.0} /s   {:.2} of the bare calls",
        unlocks / bare
    );
    subkeys(&suite).await;
}

/// Fetches the lock subkeys of 100,000 tensors under a fresh grant.
#[expect(
    clippy::print_stdout,
    reason = "a benchmark reports on standard output"
)]
async fn subkeys(suite: &Suite) {
    let key = suite.json(&["keys", "create", "mixture"]);
    let grants = GrantClient::new(client(suite, Role::Sealer));
    let request = v1::OpenSealGrantRequest {
        job_id: JobId::from_parts(now() * 1000, &[1; 10]).to_string(),
        fence: 1,
        key_id: key["id"].as_str().expect("text").to_owned(),
        source_aggregate: Sha256Digest::new([1; 32]).to_string(),
        scheme: v1::Scheme::L1.into(),
        transform: v1::Transform::Perm.into(),
        lock: v1::Lock::V2.into(),
        ..Default::default()
    };
    let grant = grants.open(request).await.expect("the grant opens");
    let ids: Vec<SubkeyId> = (0..SUBKEYS).map(lock_id).collect();
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let model = ModelKey::generate(&mut rng);
    let started = now_precise();
    for id in &ids {
        std::hint::black_box(model.subkey(id).expect("it derives"));
    }
    let derived = started.elapsed().as_secs_f64();
    let started = now_precise();
    let fetched = grants.fetch(&grant, ids, &mut rng).await;
    fetched.expect("the subkeys are granted");
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{SUBKEYS} subkeys of a grant in {seconds:.2} s, {:.1} times deriving them here",
        seconds / derived
    );
}

fn lock_id(number: u32) -> SubkeyId {
    let (layer, expert) = (number / 256, number % 256);
    let name = format!("model.layers.{layer}.mlp.experts.{expert}.down_proj.weight");
    let tensor = TensorId::new(&name).expect("a tensor's name");
    SubkeyId {
        component: Component::Model,
        label: Label::Lock(LockVersion::V2, tensor),
    }
}

/// Calls a second, over all callers.
async fn rate<F: Future<Output = ()> + Send + 'static>(
    call: impl Fn(u64) -> F + Send + Sync + 'static,
) -> f64 {
    let call = Arc::new(call);
    let started = now_precise();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let call = call.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    call(caller * EACH + number).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("a caller ends");
    }
    (CALLERS * EACH) as f64 / started.elapsed().as_secs_f64()
}

fn client(suite: &Suite, role: Role) -> Client {
    let ca = dev_ca::create(&suite.state().join("ca"), "chancery.local", now()).expect("the CA");
    let files = ca
        .write(role, "bench", now(), Duration::from_secs(3600))
        .expect("a certificate");
    let identity = Identity::load(files).expect("an identity");
    let text = std::fs::read_to_string(suite.state().join("context.toml")).expect("the context");
    let context: toml::Table = toml::from_str(&text).expect("the context is TOML");
    let endpoint = context["services"]["key-service"]["rpc"]
        .as_str()
        .expect("an endpoint");
    Client::connect(endpoint, &identity, Role::KeyService).expect("a client")
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark issues a certificate for now"
)]
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is past 1970").as_secs()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now_precise() -> Instant {
    Instant::now()
}
