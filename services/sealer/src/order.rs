//! A job request whose every field was checked.

use api::v1::{self, ContainerType, JobOperation, Lock, Scheme, SubmitSealJobRequest, Transform};
use api::{InvalidField, fields};
use checkpoint::check_relative;
use identifiers::{RequestId, Sha256Digest};
use prost::Message as _;
use sealing::{CatalogEntry, SealOptions};
use weight_lock::Version;

/// What a job is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub request_id: RequestId,
    /// The name of what it makes; empty where it makes nothing.
    pub model: String,
    pub work: Work,
}

/// The kind of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    Seal(SealOrder),
    /// Something with a sealed checkpoint: its artifact's digest.
    Artifact(Sha256Digest, Operation),
}

/// A source to be sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealOrder {
    /// Relative to a source root.
    pub source: String,
    /// A key id or a name.
    pub key: String,
    pub transform: weight_transform::Transform,
    pub lock: Option<Version>,
    pub scheme: sealing::Scheme,
    pub checkpoint: bool,
    pub container: bool,
    /// Matrices of the container become Q8_0.
    pub q8: bool,
}

/// What is done with a sealed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Relock,
    Unlock,
    UnlockTensor(String),
    CloudExport,
    /// Compare with the base, relative to a source root.
    Verify {
        base: String,
        ulps: u64,
    },
    Check,
    Catalog(CatalogEntry),
}

impl Order {
    /// Checks a request. A field that the operation has no use for must be empty.
    pub fn parse(request: &SubmitSealJobRequest) -> Result<Self, InvalidField> {
        let operation: Option<JobOperation> =
            fields::optional_known("operation", request.operation)?;
        let operation = operation.unwrap_or(JobOperation::Seal);
        unused(request, operation)?;
        let model = match operation {
            JobOperation::Verify | JobOperation::Check => String::new(),
            _ => fields::name("model", &request.model)?,
        };
        let operation = match operation {
            JobOperation::Unspecified | JobOperation::Seal => {
                return Ok(Self {
                    request_id: fields::request_id(&request.request_id)?,
                    model,
                    work: Work::Seal(SealOrder::parse(request)?),
                });
            }
            JobOperation::Relock => Operation::Relock,
            JobOperation::Unlock if request.tensor.is_empty() => Operation::Unlock,
            JobOperation::Unlock => Operation::UnlockTensor(tensor(&request.tensor)?),
            JobOperation::CloudExport => Operation::CloudExport,
            JobOperation::Verify => Operation::Verify {
                base: source(&request.source)?,
                ulps: request.ulps.into(),
            },
            JobOperation::Check => Operation::Check,
            JobOperation::Catalog => {
                let entry = fields::required("catalog", request.catalog.as_ref())?;
                Operation::Catalog(catalog(entry)?)
            }
        };
        let artifact = fields::digest("artifact_digest", &request.artifact_digest)?;
        Ok(Self {
            request_id: fields::request_id(&request.request_id)?,
            model,
            work: Work::Artifact(artifact, operation),
        })
    }

    /// Reads a stored request, which was checked when it was accepted.
    pub fn decode(stored: &[u8]) -> Result<Self, InvalidField> {
        let request = SubmitSealJobRequest::decode(stored);
        Self::parse(&request.map_err(|_| InvalidField::new("request", "not a stored request"))?)
    }

    /// The directory beneath a source root that the job reads, if it reads one.
    pub fn source(&self) -> Option<&str> {
        match &self.work {
            Work::Seal(order) => Some(&order.source),
            Work::Artifact(_, Operation::Verify { base, .. }) => Some(base),
            Work::Artifact(..) => None,
        }
    }
}

impl SealOrder {
    fn parse(request: &SubmitSealJobRequest) -> Result<Self, InvalidField> {
        let scheme = match fields::known("scheme", request.scheme)? {
            Scheme::L1 => sealing::Scheme::L1,
            Scheme::Client => sealing::Scheme::Client,
            Scheme::D1 => sealing::Scheme::Split,
            Scheme::Unspecified => return Err(InvalidField::new("scheme", "required")),
        };
        let transform = match fields::known("transform", request.transform)? {
            Transform::Perm => weight_transform::Transform::Perm,
            Transform::Orth => weight_transform::Transform::Orth,
            Transform::Unspecified => return Err(InvalidField::new("transform", "required")),
        };
        if scheme == sealing::Scheme::Split && transform == weight_transform::Transform::Orth {
            let reason = "a split pipeline takes permutations only";
            return Err(InvalidField::new("transform", reason));
        }
        let lock = match fields::known("lock", request.lock)? {
            Lock::None => None,
            Lock::V1 => Some(Version::V1),
            Lock::V2 => Some(Version::V2),
            Lock::Unspecified => return Err(InvalidField::new("lock", "required")),
        };
        let container_type = fields::optional_known("container_type", request.container_type)?;
        if !request.checkpoint && !request.container {
            let reason = "at least one of checkpoint and container is required";
            return Err(InvalidField::new("checkpoint", reason));
        }
        if request.container && scheme != sealing::Scheme::L1 {
            let reason = "only a language model under scheme l1 becomes a container";
            return Err(InvalidField::new("container", reason));
        }
        if !request.container && container_type.is_some() {
            let reason = "set, but no container is asked for";
            return Err(InvalidField::new("container_type", reason));
        }
        Ok(Self {
            source: source(&request.source)?,
            key: key(&request.key)?,
            transform,
            lock,
            scheme,
            checkpoint: request.checkpoint,
            container: request.container,
            q8: container_type == Some(ContainerType::Q80),
        })
    }

    /// How sealing is to be done.
    pub fn seal_options(&self, salt: [u8; 16]) -> SealOptions {
        SealOptions {
            transform: self.transform,
            lock: self.lock,
            client: self.scheme == sealing::Scheme::Client,
            salt,
        }
    }

    pub fn transform_message(&self) -> Transform {
        match self.transform {
            weight_transform::Transform::Perm => Transform::Perm,
            weight_transform::Transform::Orth => Transform::Orth,
        }
    }

    pub const fn scheme_message(&self) -> Scheme {
        match self.scheme {
            sealing::Scheme::L1 => Scheme::L1,
            sealing::Scheme::Client => Scheme::Client,
            sealing::Scheme::Split => Scheme::D1,
        }
    }
}

/// A lock in a request to the key service.
pub const fn lock_message(lock: Option<Version>) -> Lock {
    match lock {
        None => Lock::None,
        Some(Version::V1) => Lock::V1,
        Some(Version::V2) => Lock::V2,
    }
}

/// A lock's name in a manifest.
pub fn lock_name(lock: Option<Version>) -> String {
    lock.map_or_else(|| "none".to_owned(), |version| version.to_string())
}

/// Refuses fields that the operation would not look at.
fn unused(request: &SubmitSealJobRequest, operation: JobOperation) -> Result<(), InvalidField> {
    use JobOperation::{Catalog, Check, Seal, Unlock, Verify};
    let is_seal = operation == Seal;
    let makes_nothing = matches!(operation, Verify | Check);
    let set = [
        ("model", makes_nothing && !request.model.is_empty()),
        ("key", !is_seal && !request.key.is_empty()),
        ("transform", !is_seal && request.transform != 0),
        ("lock", !is_seal && request.lock != 0),
        ("scheme", !is_seal && request.scheme != 0),
        ("checkpoint", !is_seal && request.checkpoint),
        ("container", !is_seal && request.container),
        ("container_type", !is_seal && request.container_type != 0),
        (
            "source",
            !is_seal && operation != Verify && !request.source.is_empty(),
        ),
        (
            "artifact_digest",
            is_seal && !request.artifact_digest.is_empty(),
        ),
        ("tensor", operation != Unlock && !request.tensor.is_empty()),
        ("ulps", operation != Verify && request.ulps != 0),
        ("catalog", operation != Catalog && request.catalog.is_some()),
    ];
    match set.into_iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((field, _)) => Err(InvalidField::new(
            field,
            "set, but the operation has no use for it",
        )),
    }
}

fn tensor(name: &str) -> Result<String, InvalidField> {
    if name.len() > MAX_TEXT || name.chars().any(char::is_control) {
        let reason = "longer than 1024 bytes, or has a control character";
        return Err(InvalidField::new("tensor", reason));
    }
    Ok(name.to_owned())
}

fn catalog(entry: &v1::CatalogEntry) -> Result<CatalogEntry, InvalidField> {
    let text = |field: &'static str, value: &str| {
        if value.is_empty() || value.len() > MAX_TEXT || value.chars().any(char::is_control) {
            let reason = "expected 1 to 1024 bytes without control characters";
            return Err(InvalidField::new(field, reason));
        }
        Ok(value.to_owned())
    };
    Ok(CatalogEntry {
        name: text("catalog.name", &entry.name)?,
        repo_id: text("catalog.repo_id", &entry.repo_id)?,
        revision: text("catalog.revision", &entry.revision)?,
        license: text("catalog.license", &entry.license)?,
        modality: text("catalog.modality", &entry.modality)?,
        client: entry.client,
        key_version: entry.key_version,
        kllm: text("catalog.kllm", &entry.kllm)?,
        embargo_days: entry.embargo_days,
        gated: entry.gated,
    })
}

/// A path strictly beneath a root: relative, without `.`, `..` and empty parts.
fn source(path: &str) -> Result<String, InvalidField> {
    if path.len() > MAX_SOURCE {
        return Err(InvalidField::new("source", "longer than 1024 bytes"));
    }
    if path.chars().any(char::is_control) {
        return Err(InvalidField::new("source", "has a control character"));
    }
    match check_relative(path) {
        Ok(()) => Ok(path.to_owned()),
        Err(_) => Err(InvalidField::new(
            "source",
            "expected a relative path beneath a source root, without . and ..",
        )),
    }
}

fn key(key: &str) -> Result<String, InvalidField> {
    fields::name("key", key)
        .map_err(|_| InvalidField::new("key", "expected a key's id or its name"))
}

const MAX_SOURCE: usize = 1024;
const MAX_TEXT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> SubmitSealJobRequest {
        SubmitSealJobRequest {
            request_id: RequestId::from_parts(1, &[1; 10]).to_string(),
            source: "models/tiny".to_owned(),
            model: "tiny".to_owned(),
            key: "tiny-key".to_owned(),
            transform: Transform::Perm.into(),
            lock: Lock::V2.into(),
            scheme: Scheme::L1.into(),
            checkpoint: true,
            container: true,
            container_type: ContainerType::Q80.into(),
            ..Default::default()
        }
    }

    fn of(operation: JobOperation) -> SubmitSealJobRequest {
        SubmitSealJobRequest {
            request_id: RequestId::from_parts(1, &[1; 10]).to_string(),
            model: "tiny".to_owned(),
            operation: operation.into(),
            artifact_digest: Sha256Digest::new([7; 32]).to_string(),
            ..Default::default()
        }
    }

    fn verify() -> SubmitSealJobRequest {
        SubmitSealJobRequest {
            model: String::new(),
            source: "models/tiny".to_owned(),
            ulps: 1,
            ..of(JobOperation::Verify)
        }
    }

    fn catalog() -> SubmitSealJobRequest {
        let text = || "text".to_owned();
        SubmitSealJobRequest {
            catalog: Some(v1::CatalogEntry {
                name: text(),
                repo_id: text(),
                revision: text(),
                license: text(),
                modality: text(),
                kllm: text(),
                ..Default::default()
            }),
            ..of(JobOperation::Catalog)
        }
    }

    #[test]
    fn a_stored_request_reads_as_it_was_accepted() {
        let order = Order::parse(&seal()).unwrap();
        assert_eq!(Order::decode(&seal().encode_to_vec()), Ok(order.clone()));
        assert_eq!(order.source(), Some("models/tiny"));
        let Work::Seal(order) = order.work else {
            panic!("not a seal");
        };
        assert!(order.q8 && order.lock == Some(Version::V2));
        assert_eq!(lock_name(order.lock), "v2");
        assert!(Order::decode(b"\xff").is_err());
    }

    #[test]
    fn every_operation_reads() {
        let artifact = Sha256Digest::new([7; 32]);
        let relock = Order::parse(&of(JobOperation::Relock)).unwrap();
        assert_eq!(relock.work, Work::Artifact(artifact, Operation::Relock));
        assert_eq!(relock.source(), None);
        let mut unlock = of(JobOperation::Unlock);
        let order = Order::parse(&unlock).unwrap();
        assert_eq!(order.work, Work::Artifact(artifact, Operation::Unlock));
        unlock.tensor = "lm_head.weight".to_owned();
        let one = Operation::UnlockTensor("lm_head.weight".to_owned());
        let order = Order::parse(&unlock).unwrap();
        assert_eq!(order.work, Work::Artifact(artifact, one));
        let order = Order::parse(&verify()).unwrap();
        assert_eq!(order.source(), Some("models/tiny"));
        assert_eq!(order.model, "");
        Order::parse(&catalog()).unwrap();
    }

    #[test]
    fn every_wrong_field_is_named() {
        type Change = fn(&mut SubmitSealJobRequest);
        let wrong: &[(&str, SubmitSealJobRequest, Change)] = &[
            ("request_id", seal(), |r| r.request_id.clear()),
            ("source", seal(), |r| r.source = "../tiny".to_owned()),
            ("source", seal(), |r| r.source = "/tiny".to_owned()),
            ("source", seal(), |r| r.source = ".".to_owned()),
            ("source", seal(), |r| r.source.clear()),
            ("source", seal(), |r| r.source = "a//b".to_owned()),
            ("source", seal(), |r| r.source = "a\nb".to_owned()),
            ("source", seal(), |r| r.source = "a".repeat(1025)),
            ("model", seal(), |r| r.model = "a/b".to_owned()),
            ("key", seal(), |r| r.key = String::new()),
            ("transform", seal(), |r| r.transform = 0),
            ("transform", seal(), |r| r.transform = 9),
            ("lock", seal(), |r| r.lock = 0),
            ("scheme", seal(), |r| r.scheme = 0),
            ("container_type", seal(), |r| r.container_type = 7),
            ("container_type", seal(), |r| r.container = false),
            ("container", seal(), |r| r.scheme = Scheme::Client.into()),
            ("checkpoint", seal(), |r| {
                r.checkpoint = false;
                r.container = false;
            }),
            ("transform", seal(), |r| {
                r.scheme = Scheme::D1.into();
                r.transform = Transform::Orth.into();
            }),
            ("operation", seal(), |r| r.operation = 99),
            ("tensor", seal(), |r| r.tensor = "a".to_owned()),
            ("artifact_digest", seal(), |r| {
                r.artifact_digest = Sha256Digest::new([7; 32]).to_string();
            }),
            ("artifact_digest", of(JobOperation::Relock), |r| {
                r.artifact_digest.clear();
            }),
            ("key", of(JobOperation::Relock), |r| r.key = "k".to_owned()),
            ("lock", of(JobOperation::Relock), |r| r.lock = 3),
            ("source", of(JobOperation::Check), |r| {
                r.model.clear();
                r.source = "a".to_owned();
            }),
            ("model", of(JobOperation::Check), |_| {}),
            ("model", of(JobOperation::CloudExport), |r| r.model.clear()),
            ("source", verify(), |r| r.source.clear()),
            ("model", verify(), |r| r.model = "tiny".to_owned()),
            ("ulps", of(JobOperation::Unlock), |r| r.ulps = 1),
            ("tensor", of(JobOperation::Unlock), |r| {
                r.tensor = "a\n".to_owned();
            }),
            ("catalog", of(JobOperation::Catalog), |_| {}),
            ("catalog.license", catalog(), |r| {
                r.catalog.as_mut().unwrap().license.clear();
            }),
        ];
        for (field, request, change) in wrong {
            let mut changed = request.clone();
            change(&mut changed);
            assert_eq!(Order::parse(&changed).unwrap_err().field, *field);
        }
    }
}
