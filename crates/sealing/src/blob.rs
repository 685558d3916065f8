//! The trusted blob of a sealed directory.

use checkpoint::{Dtype, Root, TensorSpec};
use model_key::SubkeySource;
use secret::SecretBytes;
use trusted_blob::{DEFAULT_CHUNK, PayloadWriter, TrustedTensor};

use crate::error::SealingError;
use crate::metadata::{Scheme, SealMetadata};

/// The decrypted files and tensors of a trusted blob.
pub type TrustedFiles = trusted_blob::Payload;

/// What goes into a blob.
#[derive(Default)]
pub(crate) struct Payload {
    files: Vec<(String, SecretBytes)>,
    tensors: Vec<(TensorSpec, SecretBytes)>,
}

impl Payload {
    pub(crate) fn add_file(&mut self, path: &str, bytes: Vec<u8>) {
        self.files.push((path.to_owned(), SecretBytes::new(bytes)));
    }

    pub(crate) fn add_tensor(&mut self, tensor: TensorSpec, bytes: Vec<u8>) {
        self.tensors.push((tensor, SecretBytes::new(bytes)));
    }

    fn write(&self, file: &str) -> Result<SecretBytes, SealingError> {
        let refused = |error: trusted_blob::PayloadError| SealingError::Payload {
            file: file.to_owned(),
            problem: error.to_string(),
        };
        let mut shapes = Vec::with_capacity(self.tensors.len());
        for (tensor, _) in &self.tensors {
            shapes.push(tensor.shape.iter().map(|d| *d as usize).collect::<Vec<_>>());
        }
        let mut writer = PayloadWriter::new();
        for (path, bytes) in &self.files {
            writer.file(path, bytes.expose()).map_err(refused)?;
        }
        for ((tensor, bytes), shape) in self.tensors.iter().zip(&shapes) {
            let dtype = dtype(tensor.dtype).ok_or_else(|| SealingError::Payload {
                file: file.to_owned(),
                problem: format!("tensor {}: no element type {}", tensor.name, tensor.dtype),
            })?;
            let entry = TrustedTensor {
                dtype,
                shape,
                data: bytes.expose(),
            };
            writer.tensor(&tensor.name, entry).map_err(refused)?;
        }
        writer.finish().map_err(refused)
    }
}

/// The blob's bytes.
pub(crate) fn seal_blob(
    keys: &dyn SubkeySource,
    salt: [u8; 16],
    file: &str,
    payload: &Payload,
) -> Result<Vec<u8>, SealingError> {
    let payload = payload.write(file)?;
    trusted_blob::encode(keys, salt, DEFAULT_CHUNK, payload.expose()).map_err(|source| {
        SealingError::Blob {
            file: file.to_owned(),
            source,
        }
    })
}

/// Decrypts the trusted blob of a sealed directory: the permuted tokenizer, and for a split
/// pipeline its trusted tensors. The fingerprint of the directory is compared first.
pub fn open_trusted(root: &Root, keys: &dyn SubkeySource) -> Result<TrustedFiles, SealingError> {
    let metadata = SealMetadata::require(root)?;
    metadata.check_key(keys)?;
    let file = blob_path(metadata.scheme);
    let blob = root.read_file(file, MAX_BLOB)?;
    let payload = trusted_blob::decode(keys, &blob).map_err(|source| SealingError::Blob {
        file: file.to_owned(),
        source,
    })?;
    TrustedFiles::parse(payload).map_err(|error| SealingError::Payload {
        file: file.to_owned(),
        problem: error.to_string(),
    })
}

/// The salt of a sealed directory's trusted blob, which its header states in clear.
pub(crate) fn blob_salt(root: &Root, scheme: Scheme) -> Result<[u8; 16], SealingError> {
    let file = blob_path(scheme);
    let blob = root.open_file(file)?;
    let mut start = vec![0; blob.length().min(trusted_blob::MAX_PREAMBLE as u64) as usize];
    blob.read_at(0, &mut start)?;
    let header = trusted_blob::Header::parse(&start).map_err(|source| SealingError::Blob {
        file: file.to_owned(),
        source: source.into(),
    })?;
    Ok(header.0.salt)
}

const fn blob_path(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Split => crate::scheme::SPLIT_BLOB,
        Scheme::L1 | Scheme::Client => "trusted.kllm",
    }
}

fn dtype(dtype: Dtype) -> Option<trusted_blob::Dtype> {
    serde_json::from_value(serde_json::Value::from(dtype.name())).ok()
}

/// A blob is held in memory whole.
const MAX_BLOB: u64 = 64 << 30;
