//! Peers that may not: another role, an unknown CA, an expired certificate, another's capability.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::client::Client;
use api::v1;
use chancery_tests::Suite;
use identifiers::{RequestId, Role, Sha256Digest};
use key_client::{Unlocked, issue_unlock};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use service_runtime::Identity;
use tonic::{Code, Status};
use workload_identity::dev_ca::{self, DevCa};

use crate::path::seal;

#[tokio::test(flavor = "multi_thread")]
async fn every_peer_that_may_not_is_refused() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "demo"]);
    let job = seal(&suite, "tiny-qwen3", "demo", "tiny", &["--no-checkpoint"]);
    let artifact: Sha256Digest = job["artifacts"][0]["digest"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let shown = suite.json(&["artifacts", "show", "tiny"]);
    let blob = shown["manifest"]["files"][0]["sha256"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut salt = [0; 16];
    let text = shown["manifest"]["container"]["salt"].as_str().unwrap();
    hex::decode_to_slice(text, &mut salt).unwrap();

    let ca = authority(&suite.state().join("ca"));
    let now = now();
    let hour = Duration::from_secs(3600);
    let identity =
        |role, name: &str| Identity::load(ca.write(role, name, now, hour).unwrap()).unwrap();
    let keys = endpoint(&suite, "key-service");
    let storage = endpoint(&suite, "storage-node");

    // The wrong role.
    let auditor = client(&keys, &identity(Role::Auditor, "eve"), Role::KeyService);
    let refused = create_key(&auditor).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let sealer = client(&keys, &identity(Role::Sealer, "eve"), Role::KeyService);
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let refused = unlock(&sealer, artifact, salt, &mut rng).await.unwrap_err();
    assert!(refused.contains("may not call"), "{refused}");

    // An unknown CA, and a certificate that has expired.
    let other = tempfile::tempdir().unwrap();
    let forged = dev_ca::create(other.path(), "chancery.local", now).unwrap();
    let mut files = forged.write(Role::Operator, "eve", now, hour).unwrap();
    files.ca = ca.certificate();
    let stranger = client(&keys, &Identity::load(files).unwrap(), Role::KeyService);
    let refused = create_key(&stranger).await.unwrap_err();
    assert!(
        api::client::explain(&refused).contains("certificate"),
        "{refused}"
    );
    let old = ca.write(Role::Operator, "old", now - 7200, hour).unwrap();
    let expired = client(&keys, &Identity::load(old).unwrap(), Role::KeyService);
    let refused = create_key(&expired).await.unwrap_err();
    assert!(
        api::client::explain(&refused).contains("expired"),
        "{refused}"
    );

    // A server of another role is not talked to.
    let operator = client(&storage, &identity(Role::Operator, "op"), Role::KeyService);
    assert!(create_key(&operator).await.is_err());

    // A capability: good for the node it was made for, useless to another and without one.
    let node = identity(Role::Inference, "node-a");
    let unlocked = unlock(
        &client(&keys, &node, Role::KeyService),
        artifact,
        salt,
        &mut rng,
    )
    .await
    .unwrap();
    let own = client(&storage, &node, Role::Storage);
    assert!(read(&own, &blob, &unlocked.capability).await.unwrap() > 0);
    let thief = client(
        &storage,
        &identity(Role::Inference, "node-b"),
        Role::Storage,
    );
    let refused = read(&thief, &blob, &unlocked.capability).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let refused = read(&own, &blob, "").await.unwrap_err();
    assert_ne!(refused.code(), Code::Ok, "{refused}");
    let mut altered = unlocked.capability.clone();
    let last = altered.pop().unwrap();
    altered.push(if last == 'A' { 'Q' } else { 'A' });
    assert!(read(&own, &blob, &altered).await.is_err());
    // A blob that the capability does not name.
    let unnamed = Sha256Digest::new([7; 32]).to_string();
    let refused = read(&own, &unnamed, &unlocked.capability)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");

    // The same request id for something else is refused; the same request is answered again.
    let id = RequestId::from_parts(1, &[9; 10]);
    let service = client(&keys, &node, Role::KeyService);
    let first = issue_unlock(&service, id, artifact, salt, &[], &mut rng)
        .await
        .unwrap();
    let again = issue_unlock(&service, id, artifact, salt, &[], &mut rng).await;
    assert!(again.is_err(), "another recipient key is another request");
    assert!(!first.keys.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capability_ends_when_it_says() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "demo"]);
    let job = seal(&suite, "tiny-qwen3", "demo", "tiny", &["--no-checkpoint"]);
    crate::path::shorten_capabilities(&suite, 1);
    let artifact: Sha256Digest = job["artifacts"][0]["digest"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let shown = suite.json(&["artifacts", "show", "tiny"]);
    let blob = shown["manifest"]["files"][0]["sha256"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut salt = [0; 16];
    let text = shown["manifest"]["container"]["salt"].as_str().unwrap();
    hex::decode_to_slice(text, &mut salt).unwrap();
    let ca = authority(&suite.state().join("ca"));
    let files = ca
        .write(Role::Inference, "node-a", now(), Duration::from_secs(3600))
        .unwrap();
    let node = Identity::load(files).unwrap();
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    let keys = client(&endpoint(&suite, "key-service"), &node, Role::KeyService);
    let unlocked = unlock(&keys, artifact, salt, &mut rng).await.unwrap();
    let storage = client(&endpoint(&suite, "storage-node"), &node, Role::Storage);
    // Storage forgives at most 30 seconds of clock difference.
    let mut refused = None;
    for _ in 0..45 {
        match read(&storage, &blob, &unlocked.capability).await {
            Ok(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            Err(status) => {
                refused = Some(status);
                break;
            }
        }
    }
    let refused = refused.expect("the capability ends");
    assert!(refused.message().contains("expired"), "{refused}");
}

fn authority(folder: &Path) -> DevCa {
    dev_ca::create(folder, "chancery.local", now()).unwrap()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test issues certificates for now"
)]
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn endpoint(suite: &Suite, service: &str) -> String {
    let text = std::fs::read_to_string(suite.state().join("context.toml")).unwrap();
    let context: toml::Table = toml::from_str(&text).unwrap();
    context["services"][service]["rpc"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn client(endpoint: &str, identity: &Arc<Identity>, expected: Role) -> Client {
    Client::connect(endpoint, identity, expected).unwrap()
}

async fn create_key(client: &Client) -> Result<(), Status> {
    let request = v1::CreateKeyRequest {
        request_id: RequestId::from_parts(1, &[1; 10]).to_string(),
        name: "stolen".to_owned(),
    };
    client.key_service().create_key(request).await.map(drop)
}

async fn unlock(
    client: &Client,
    artifact: Sha256Digest,
    salt: [u8; 16],
    rng: &mut ChaCha20Rng,
) -> Result<Unlocked, String> {
    let mut random = [0; 10];
    rand_core::Rng::fill_bytes(rng, &mut random);
    let id = RequestId::from_parts(now() * 1000, &random);
    issue_unlock(client, id, artifact, salt, &[], rng)
        .await
        .map_err(|error| {
            let mut text = error.to_string();
            let mut next = std::error::Error::source(&error);
            while let Some(source) = next {
                text = format!("{text}: {source}");
                next = source.source();
            }
            text
        })
}

async fn read(client: &Client, blob: &str, capability: &str) -> Result<usize, Status> {
    let request = v1::GetBlobRequest {
        digest: blob.to_owned(),
        offset: 0,
        length: 4096,
        capability: capability.to_owned(),
    };
    let mut stream = client
        .storage_service()
        .get_blob(request)
        .await?
        .into_inner();
    let mut bytes = 0;
    while let Some(part) = stream.message().await? {
        bytes += part.data.len();
    }
    Ok(bytes)
}
