//! Seal metadata: what a sealed directory says of itself.

use checkpoint::Root;
use checkpoint::json::Value;
use identifiers::Fingerprint;
use model_key::SubkeySource;
use weight_lock::Version;
use weight_transform::Transform;

use crate::error::SealingError;

/// Which code path a sealed directory takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `l1`: language models, MiniMax H3.
    L1,
    /// `client`: Z-Image whose images only the key's holder sees.
    Client,
    /// `d1-v1`: Z-Image split into trusted and untrusted parts.
    Split,
}

impl Scheme {
    /// The name in the metadata.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::Client => "client",
            Self::Split => "d1-v1",
        }
    }
}

/// The seal metadata of a directory.
#[derive(Debug, Clone, PartialEq)]
pub struct SealMetadata {
    /// The file that holds it: `kllm.json`, or `config.json` with a `kllm` object.
    pub file: String,
    /// The scheme.
    pub scheme: Scheme,
    /// The transform; a split pipeline records none.
    pub transform: Option<Transform>,
    /// Fingerprint of the model key.
    pub fingerprint: Fingerprint,
    /// The sealed architecture.
    pub architecture: String,
    /// The lock on the weights.
    pub lock: Option<Version>,
    /// The metadata object as written, for records and for people.
    pub object: Value,
}

impl SealMetadata {
    /// Recognises a directory; `None` where it is not sealed.
    pub fn recognise(root: &Root) -> Result<Option<Self>, SealingError> {
        if root.has_file(PIPELINE_FILE)? {
            let object = root.read_json(PIPELINE_FILE)?;
            return Self::parse(PIPELINE_FILE, object).map(Some);
        }
        if !root.has_file(CONFIG)? {
            return Ok(None);
        }
        match root.read_json(CONFIG)?.remove("kllm") {
            Some(object) => Self::parse(CONFIG, object).map(Some),
            None => Ok(None),
        }
    }

    /// Recognises a directory that must be sealed.
    pub fn require(root: &Root) -> Result<Self, SealingError> {
        Self::recognise(root)?.ok_or(SealingError::NotSealed)
    }

    /// Compares the recorded fingerprint with the key's. Done before anything is decrypted.
    pub fn check_key(&self, keys: &dyn SubkeySource) -> Result<(), SealingError> {
        let given = keys.fingerprint();
        if given == self.fingerprint {
            return Ok(());
        }
        Err(SealingError::OtherKey {
            file: self.file.clone(),
            sealed: self.fingerprint,
            given,
        })
    }

    /// Whether the directory is a pipeline of component folders.
    #[must_use]
    pub fn is_pipeline(&self) -> bool {
        self.file == PIPELINE_FILE
    }

    fn parse(file: &str, object: Value) -> Result<Self, SealingError> {
        let fault = |field, problem: &str| SealingError::Metadata {
            file: file.to_owned(),
            field,
            problem: problem.to_owned(),
        };
        let text = |field: &'static str| match object.get(field) {
            None => Ok(None),
            Some(value) => value
                .as_str()
                .map(Some)
                .ok_or_else(|| fault(field, "not a text")),
        };
        let scheme = match text("scheme")? {
            Some("l1") => Scheme::L1,
            Some("client") => Scheme::Client,
            Some("d1-v1") => Scheme::Split,
            _ => return Err(fault("scheme", "not l1, client or d1-v1")),
        };
        let transform = match text("transform")? {
            None => None,
            Some(name) => Some(
                Transform::from_name(name)
                    .ok_or_else(|| fault("transform", "neither perm nor orth"))?,
            ),
        };
        let fingerprint = text("fingerprint")?
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| fault("fingerprint", "not four groups of four hex digits"))?;
        let architecture = text("base_architecture")?.or(text("architecture")?);
        let architecture = architecture
            .ok_or_else(|| fault("architecture", "missing"))?
            .to_owned();
        let lock = match object.get("lock") {
            None => None,
            Some(value) => {
                let name = value.as_str().unwrap_or("of another type than text");
                Some(name.parse().map_err(|error: weight_lock::UnknownVersion| {
                    fault("lock", &error.to_string())
                })?)
            }
        };
        Ok(Self {
            file: file.to_owned(),
            scheme,
            transform,
            fingerprint,
            architecture,
            lock,
            object,
        })
    }
}

/// Sets or takes away the lock flag in the text of a metadata file.
pub(crate) fn with_lock(metadata: &SealMetadata, mut file: Value, lock: Option<Version>) -> Value {
    let object = if metadata.is_pipeline() {
        Some(&mut file)
    } else {
        file.get_mut("kllm")
    };
    if let Some(object) = object {
        match lock {
            Some(version) => object.set("lock", version.to_string().into()),
            None => {
                object.remove("lock");
            }
        }
    }
    file
}

/// The configuration of a language model.
pub(crate) const CONFIG: &str = "config.json";
/// The metadata file of a pipeline.
pub(crate) const PIPELINE_FILE: &str = "kllm.json";
