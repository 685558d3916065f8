//! A job request whose every field was checked.

use api::v1::{ContainerType, Lock, Scheme, SubmitSealJobRequest, Transform};
use api::{InvalidField, fields};
use checkpoint::check_relative;
use identifiers::RequestId;
use prost::Message as _;
use sealing::SealOptions;
use weight_lock::Version;

/// What a job is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub request_id: RequestId,
    /// Relative to a source root.
    pub source: String,
    pub model: String,
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

impl Order {
    /// Checks a request.
    pub fn parse(request: &SubmitSealJobRequest) -> Result<Self, InvalidField> {
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
            request_id: fields::request_id(&request.request_id)?,
            source: source(&request.source)?,
            model: fields::name("model", &request.model)?,
            key: key(&request.key)?,
            transform,
            lock,
            scheme,
            checkpoint: request.checkpoint,
            container: request.container,
            q8: container_type == Some(ContainerType::Q80),
        })
    }

    /// Reads a stored request, which was checked when it was accepted.
    pub fn decode(stored: &[u8]) -> Result<Self, InvalidField> {
        let request = SubmitSealJobRequest::decode(stored);
        Self::parse(&request.map_err(|_| InvalidField::new("request", "not a stored request"))?)
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

    /// The lock's name in a manifest.
    pub fn lock_name(&self) -> String {
        self.lock
            .map_or_else(|| "none".to_owned(), |version| version.to_string())
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

    pub const fn lock_message(&self) -> Lock {
        match self.lock {
            None => Lock::None,
            Some(Version::V1) => Lock::V1,
            Some(Version::V2) => Lock::V2,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> SubmitSealJobRequest {
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
        }
    }

    #[test]
    fn a_stored_request_reads_as_it_was_accepted() {
        let order = Order::parse(&request()).unwrap();
        assert_eq!(Order::decode(&request().encode_to_vec()), Ok(order.clone()));
        assert!(order.q8 && order.lock == Some(Version::V2));
        assert_eq!(order.lock_name(), "v2");
        assert!(Order::decode(b"\xff").is_err());
    }

    #[test]
    fn every_wrong_field_is_named() {
        type Change = fn(&mut SubmitSealJobRequest);
        let wrong: &[(&str, Change)] = &[
            ("request_id", |r| r.request_id.clear()),
            ("source", |r| r.source = "../tiny".to_owned()),
            ("source", |r| r.source = "/tiny".to_owned()),
            ("source", |r| r.source = ".".to_owned()),
            ("source", |r| r.source.clear()),
            ("source", |r| r.source = "a//b".to_owned()),
            ("source", |r| r.source = "a\nb".to_owned()),
            ("source", |r| r.source = "a".repeat(1025)),
            ("model", |r| r.model = "a/b".to_owned()),
            ("key", |r| r.key = String::new()),
            ("transform", |r| r.transform = 0),
            ("transform", |r| r.transform = 9),
            ("lock", |r| r.lock = 0),
            ("scheme", |r| r.scheme = 0),
            ("container_type", |r| r.container_type = 7),
            ("container_type", |r| r.container = false),
            ("container", |r| r.scheme = Scheme::Client.into()),
            ("checkpoint", |r| {
                r.checkpoint = false;
                r.container = false;
            }),
            ("transform", |r| {
                r.scheme = Scheme::D1.into();
                r.transform = Transform::Orth.into();
            }),
        ];
        for (field, change) in wrong {
            let mut changed = request();
            change(&mut changed);
            assert_eq!(Order::parse(&changed).unwrap_err().field, *field);
        }
    }
}
