//! Grants and unlocks against a small key service over real mutual-TLS sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use api::client::Client;
use api::v1::key_service_server::{KeyService, KeyServiceServer};
use api::{UnitRange, v1};
use futures::{Stream, StreamExt};
use identifiers::{CapabilityId, GrantId, RequestId, Role, Sha256Digest};
use key_client::{
    GrantClient, KeyClientError, Salts, SealGrant, issue_unlock, sealed_to_proto,
    subkey_from_proto, unit_ids,
};
use key_wrap::{Purpose, seal_subkeys};
use model_key::{
    Component, Label, LockVersion, ModelKey, Subkey, SubkeyId, SubkeySource, TensorId,
};
use secret::Secret;
use service_runtime::{
    CancellationToken, Clock, Identity, Randomness, Running, Server, ServerSettings, SystemClock,
    SystemRandomness,
};
use tonic::{Request, Response, Status, Streaming};
use workload_identity::dev_ca;

const SALTS: Salts = Salts {
    blob: None,
    container: Some([5; 16]),
};

#[derive(Clone)]
struct Keys {
    model: Arc<ModelKey>,
    grant: GrantId,
    capability: CapabilityId,
    /// Answers one subkey fewer than asked for.
    short: bool,
    traffic: Arc<Traffic>,
}

/// What was asked of the service.
#[derive(Default)]
struct Traffic {
    streams: AtomicUsize,
    batches: AtomicUsize,
    largest: AtomicUsize,
}

type Answers = Pin<Box<dyn Stream<Item = Result<v1::DeriveSubkeysResponse, Status>> + Send>>;

impl Keys {
    fn seal(&self, recipient: &[u8], purpose: Purpose, ids: &[SubkeyId]) -> v1::HpkeSealed {
        let subkeys: Vec<Subkey> = ids
            .iter()
            .map(|id| self.model.subkey(id).unwrap())
            .collect();
        let randomness: &dyn Randomness = &SystemRandomness;
        let recipient = recipient.try_into().unwrap();
        let sealed =
            seal_subkeys(&mut randomness.rng(), &recipient, purpose, ids, &subkeys).unwrap();
        sealed_to_proto(sealed)
    }

    fn derive(&self, request: &v1::DeriveSubkeysRequest) -> v1::DeriveSubkeysResponse {
        self.traffic.batches.fetch_add(1, Relaxed);
        self.traffic
            .largest
            .fetch_max(request.subkeys.len(), Relaxed);
        let mut ids: Vec<SubkeyId> = request
            .subkeys
            .iter()
            .map(|spec| subkey_from_proto(spec, &SALTS).unwrap())
            .collect();
        if self.short {
            ids.pop();
        }
        v1::DeriveSubkeysResponse {
            subkeys: Some(self.seal(&request.recipient, Purpose::Grant(self.grant), &ids)),
            count: ids.len() as u32,
        }
    }
}

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not in this test"))
}

#[tonic::async_trait]
impl KeyService for Keys {
    type DeriveSubkeysStream = Answers;

    async fn derive_subkeys(
        &self,
        request: Request<Streaming<v1::DeriveSubkeysRequest>>,
    ) -> Result<Response<Answers>, Status> {
        self.traffic.streams.fetch_add(1, Relaxed);
        let keys = self.clone();
        let answers = request
            .into_inner()
            .map(move |request| Ok(keys.derive(&request?)));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn issue_unlock(
        &self,
        request: Request<v1::IssueUnlockRequest>,
    ) -> Result<Response<v1::IssueUnlockResponse>, Status> {
        let request = request.into_inner();
        let units = UnitRange::from_protos(&request.units)?;
        let ids = unit_ids([5; 16], &units);
        let purpose = Purpose::Capability(self.capability);
        Ok(Response::new(v1::IssueUnlockResponse {
            capability: "marker-secret".to_owned(),
            capability_id: self.capability.to_string(),
            expires_at: 7,
            unit_keys: Some(self.seal(&request.recipient, purpose, &ids)),
            units: request.units,
        }))
    }

    async fn create_key(
        &self,
        _: Request<v1::CreateKeyRequest>,
    ) -> Result<Response<v1::Key>, Status> {
        unused()
    }

    async fn get_import_key(
        &self,
        _: Request<v1::GetImportKeyRequest>,
    ) -> Result<Response<v1::ImportKey>, Status> {
        unused()
    }

    async fn import_key(
        &self,
        _: Request<v1::ImportKeyRequest>,
    ) -> Result<Response<v1::Key>, Status> {
        unused()
    }

    async fn get_key(&self, _: Request<v1::GetKeyRequest>) -> Result<Response<v1::Key>, Status> {
        unused()
    }

    async fn list_keys(
        &self,
        _: Request<v1::ListKeysRequest>,
    ) -> Result<Response<v1::ListKeysResponse>, Status> {
        unused()
    }

    async fn disable_key(
        &self,
        _: Request<v1::DisableKeyRequest>,
    ) -> Result<Response<v1::Key>, Status> {
        unused()
    }

    async fn open_seal_grant(
        &self,
        _: Request<v1::OpenSealGrantRequest>,
    ) -> Result<Response<v1::SealGrant>, Status> {
        unused()
    }

    async fn close_seal_grant(
        &self,
        _: Request<v1::CloseSealGrantRequest>,
    ) -> Result<Response<v1::SealGrant>, Status> {
        unused()
    }

    async fn get_capability_keys(
        &self,
        _: Request<v1::GetCapabilityKeysRequest>,
    ) -> Result<Response<v1::CapabilityKeys>, Status> {
        unused()
    }

    async fn revoke_unlock(
        &self,
        _: Request<v1::RevokeUnlockRequest>,
    ) -> Result<Response<v1::Revocation>, Status> {
        unused()
    }
}

struct World {
    _dir: tempfile::TempDir,
    _running: Running,
    keys: Keys,
    caller: Client,
}

impl World {
    async fn start(caller: Role, short: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemClock.unix_seconds().try_into().unwrap();
        let ca = dev_ca::create(dir.path(), "chancery.test", now).unwrap();
        let hour = Duration::from_secs(3600);
        let identity = |role| Identity::load(ca.write(role, "one", now, hour).unwrap()).unwrap();
        let keys = Keys {
            model: Arc::new(ModelKey::new(Secret::fill_with(|bytes| bytes.fill(9)))),
            grant: GrantId::from_parts(1, &[1; 10]),
            capability: CapabilityId::from_parts(1, &[2; 10]),
            short,
            traffic: Arc::default(),
        };
        let running = Server::builder(ServerSettings::loopback(), identity(Role::KeyService))
            .service(KeyServiceServer::new(keys.clone()))
            .serve(CancellationToken::new())
            .await
            .unwrap();
        let endpoint = running.endpoint();
        Self {
            _dir: dir,
            _running: running,
            keys,
            caller: Client::connect(&endpoint, &identity(caller), Role::KeyService).unwrap(),
        }
    }

    async fn fetch(&self, ids: Vec<SubkeyId>) -> Result<model_key::GrantedSubkeys, KeyClientError> {
        let grant = SealGrant {
            id: self.keys.grant,
            fence: 1,
            fingerprint: self.keys.model.fingerprint(),
            salts: SALTS,
            expires_at: 0,
        };
        let randomness: &dyn Randomness = &SystemRandomness;
        GrantClient::new(self.caller.clone())
            .fetch(&grant, ids, &mut randomness.rng())
            .await
    }
}

fn lock_ids(count: usize) -> Vec<SubkeyId> {
    (0..count)
        .map(|unit| SubkeyId {
            component: Component::Model,
            label: Label::Lock(
                LockVersion::V2,
                TensorId::new(&format!("model.layers.{unit}.mlp.down_proj.weight")).unwrap(),
            ),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_subkeys_come_in_batches_and_are_those_of_the_key() {
    let world = World::start(Role::Sealer, false).await;
    let ids = lock_ids(100_000);
    #[expect(clippy::disallowed_methods, reason = "the test says what it measured")]
    let now = Instant::now;
    let started = now();
    let granted = world.fetch(ids.clone()).await.unwrap();
    let fetched = started.elapsed().as_secs_f64();
    let traffic = &world.keys.traffic;
    assert_eq!(traffic.streams.load(Relaxed), 1);
    assert_eq!(traffic.batches.load(Relaxed), ids.len().div_ceil(4096));
    assert_eq!(traffic.largest.load(Relaxed), 4096);
    assert_eq!(granted.len(), ids.len());
    let started = now();
    for id in &ids {
        let own = world.keys.model.subkey(id).unwrap();
        assert!(granted.subkey(id).unwrap() == own, "{id:?}");
    }
    let derived = started.elapsed().as_secs_f64();
    eprintln!(
        "100,000 subkeys in {fetched:.2} s: {:.1} times their derivation alone ({derived:.2} s)",
        fetched / derived
    );
}

#[tokio::test]
async fn an_answer_of_another_length_is_refused() {
    let world = World::start(Role::Sealer, true).await;
    let error = world.fetch(lock_ids(10)).await.unwrap_err();
    assert!(
        matches!(
            error,
            KeyClientError::Count {
                expected: 10,
                found: 9
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_label_of_another_salt_never_leaves() {
    let world = World::start(Role::Sealer, false).await;
    let id = SubkeyId {
        component: Component::Model,
        label: Label::TrustedBlob([1; 16]),
    };
    let error = world.fetch(vec![id]).await.unwrap_err();
    assert!(matches!(error, KeyClientError::OtherSalt(_)), "{error}");
}

#[tokio::test]
async fn a_refusal_says_why() {
    let world = World::start(Role::Platform, false).await;
    let error = world.fetch(lock_ids(1)).await.unwrap_err();
    let status = error.status().unwrap();
    assert_eq!(api::reason(status), Some("ROLE_NOT_ALLOWED"));
    assert!(error.to_string().contains("platform"), "{error}");
}

#[tokio::test]
async fn an_unlock_gives_the_key_of_every_unit_and_hides_its_token() {
    let world = World::start(Role::Inference, false).await;
    let randomness: &dyn Randomness = &SystemRandomness;
    let units = [(3, 0, 1), (4, 2, 6)].map(|(region, start, end)| UnitRange { region, start, end });
    let unlocked = issue_unlock(
        &world.caller,
        RequestId::from_parts(1, &[3; 10]),
        Sha256Digest::new([1; 32]),
        [5; 16],
        &units,
        &mut randomness.rng(),
    )
    .await
    .unwrap();
    assert_eq!(unlocked.keys.len(), 5);
    for id in unit_ids([5; 16], &units) {
        let Label::ContainerUnit { region, unit, .. } = id.label else {
            panic!("{id:?}");
        };
        let unit = jlm::UnitId::new(jlm::Region::from_id(region).unwrap(), unit);
        assert!(unlocked.keys[&unit] == world.keys.model.subkey(&id).unwrap());
    }
    assert!(!format!("{unlocked:?}").contains("marker-secret"));
}
