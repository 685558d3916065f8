//! The fixtures' models as containers in memory, and what they should compute.

use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, TensorSource};
use convert::{Options, SourceFiles};
use jlm::Container;
use serde_json::Value;

pub fn fixtures() -> Option<PathBuf> {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures"
    ));
    if path.is_dir() {
        return Some(path.to_owned());
    }
    eprintln!("skipped: {} is absent", path.display());
    None
}

pub fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// f32 tensors of a reference file, one after another, by name.
pub fn floats(path: impl AsRef<Path>, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let info = &header[name];
    assert_eq!(info["dtype"], "F32");
    let at = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize;
    let (values, _) = data[at(0)..at(1)].as_chunks::<4>();
    values
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

/// A plain container in memory.
pub struct Made {
    pub container: Container,
    pub bytes: Vec<u8>,
}

impl Made {
    /// Converts a checkpoint folder.
    pub fn from_folder(folder: &Path, options: &Options) -> Self {
        let source = Checkpoint::open(folder).unwrap();
        let files = SourceFiles::collect(|name| match std::fs::read(folder.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        });
        Self::convert(&source, &files.unwrap(), options)
    }

    pub fn convert(source: &dyn TensorSource, files: &SourceFiles, options: &Options) -> Self {
        let plan = convert::plan(source, files, options).unwrap();
        let mut bytes = plan.meta().to_vec();
        for unit in plan.units() {
            let span = plan.container().unit(unit).unwrap();
            let start = bytes.len();
            assert_eq!(span.offset, start as u64, "units are back to back");
            bytes.resize(start + span.length as usize, 0);
            plan.write_unit(unit, &mut bytes[start..]).unwrap();
        }
        let container = plan.container().clone();
        assert_eq!(
            Container::decode(&bytes, bytes.len() as u64).unwrap(),
            container
        );
        Self { container, bytes }
    }
}
