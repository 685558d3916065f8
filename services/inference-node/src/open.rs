//! From a verified manifest and an unlock to a model that can run.

use std::sync::Arc;

use direct_io::AlignedBuf;
use engine::{KvPool, Model, Paged};
use jlm::{JlmError, Region, UnitId, Vocab};
use key_client::UnitKeys;
use model_key::Subkey;
use pager::{ContainerUnsealer, Geometry, KeyRing, Pager, SealedSource};
use registry_domain::{ArtifactManifest, ContainerRecord, ManifestFile, RegionUnits};
use sealed_jlm::{SealedHeader, TRAILER_LEN, Trailer};
use secret::SecretBytes;
use text::{ChatError, ChatTemplate, RenderLimits, Tokenizer};

use crate::blob::Blob;
use crate::error::NodeError;

/// Everything of a model that a revocation takes away.
pub(crate) struct Open {
    pub model: Arc<Model>,
    pub weights: Arc<Paged<Dense>>,
    pub pager: Arc<Pager>,
    pub keys: Arc<KeyRing>,
    pub pool: Arc<KvPool>,
    pub tokenizer: Tokenizer,
    /// The chat template, or why there is none.
    pub template: Result<ChatTemplate, String>,
    pub page_bytes: u64,
}

/// The dense region in the clear, wiped when dropped.
pub(crate) struct Dense(AlignedBuf);

impl AsRef<[u8]> for Dense {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// How a model is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Bytes of pages; `None` for the default.
    pub budget: Option<u64>,
    pub default_budget: u64,
    pub kv: u64,
}

/// The file and the record of a manifest that is of a container.
pub(crate) fn container_of(
    manifest: &ArtifactManifest,
) -> Result<(&ManifestFile, &ContainerRecord), NodeError> {
    match (manifest.files.as_slice(), &manifest.container) {
        ([file], Some(container)) => Ok((file, container)),
        _ => Err(NodeError::NotContainer),
    }
}

/// Reads and checks the container's header, then opens what is always resident. Blocks.
pub(crate) fn open(
    blob: Arc<Blob>,
    manifest: &ArtifactManifest,
    mut keys: UnitKeys,
    sizes: Sizes,
) -> Result<Open, NodeError> {
    let (meta, header) = header_of(&blob, manifest)?;
    let container = header.container();
    if let Some(missing) = container.units().find(|unit| !keys.contains_key(unit)) {
        return Err(NodeError::NoKey(missing));
    }
    let model = Arc::new(Model::new(container)?);
    let geometry = Paged::geometry(container)?;
    let minimum = minimum_budget(&geometry);
    let budget = match sizes.budget {
        Some(asked) if asked < minimum => return Err(NodeError::Budget { asked, minimum }),
        Some(asked) => asked,
        None => sizes.default_budget.max(minimum),
    };

    let vocab = vocab_of(&header, &meta, &mut keys)?;
    let tokenizer = Tokenizer::new(&vocab).map_err(NodeError::Vocabulary)?;
    let template = ChatTemplate::new(&vocab, &tokenizer, "", RenderLimits::default());
    let template = template.map_err(|error| sentence(&error));
    let dense = dense_of(&blob, &header, &mut keys)?;

    let ring = Arc::new(KeyRing::new());
    for (unit, key) in keys {
        ring.insert(unit, key);
    }
    let page_bytes = container.unit_len(Region::Text);
    let header = Arc::new(header);
    let unsealer = ContainerUnsealer::new(header.clone(), ring.clone());
    let source = SealedSource::new(blob, geometry, unsealer);
    let pager = Arc::new(Pager::new(Arc::new(source), geometry, budget)?);
    Ok(Open {
        weights: Arc::new(Paged::new(header.container(), pager.clone(), dense)),
        pool: KvPool::new(model.kv_shape(), sizes.kv),
        model,
        pager,
        keys: ring,
        tokenizer,
        template,
        page_bytes,
    })
}

/// The smallest budget that a model runs with.
pub(crate) fn minimum_budget(geometry: &Geometry) -> u64 {
    geometry.largest_page().saturating_mul(MINIMUM_PAGES)
}

impl Open {
    /// Positions of a session: the model's context, or less where the memory for keys and values
    /// is less.
    pub(crate) fn context(&self) -> usize {
        self.model.context().min(self.pool.capacity())
    }
}

/// The container's metadata, proven and compared with the manifest before anything is made of it. No
/// key is used. It holds the tags of every page, so that pages need no proof of their own.
fn header_of(
    blob: &Blob,
    manifest: &ArtifactManifest,
) -> Result<(Vec<u8>, SealedHeader), NodeError> {
    let (file, record) = container_of(manifest)?;
    let read = |offset: u64, length: u64| {
        if length > MAX_METADATA {
            return Err(NodeError::MetadataTooLarge(length));
        }
        match offset.checked_add(length) {
            Some(end) if end <= file.size => Ok(blob.read_proven(offset..end)?),
            _ => Err(NodeError::Mismatch("size")),
        }
    };
    let start = read(0, file.size.min(jlm::HEADER_LEN))?;
    SealedHeader::refuse_plain(&start)?;
    let end = file
        .size
        .checked_sub(TRAILER_LEN)
        .ok_or(NodeError::Mismatch("size"))?;
    let trailer = Trailer::decode(&read(end, TRAILER_LEN)?, file.size)?;
    let meta = read(0, SealedHeader::meta_len(&start, &trailer)?)?;
    let section = read(trailer.section().offset, trailer.section().length)?;
    let header = SealedHeader::decode(&meta, &trailer, &section)?;
    compare(&header, manifest, record)?;
    Ok((meta, header))
}

fn compare(
    header: &SealedHeader,
    manifest: &ArtifactManifest,
    record: &ContainerRecord,
) -> Result<(), NodeError> {
    header.require_fingerprint(manifest.fingerprint)?;
    if Some(*header.salt()) != record.salt_bytes() {
        return Err(NodeError::Mismatch("salt"));
    }
    if header.aggregate() != manifest.source.aggregate() {
        return Err(NodeError::Mismatch("source aggregate"));
    }
    let mut recorded = record.units.clone();
    recorded.sort_unstable_by_key(|units| units.region);
    let container = header.container();
    let counts = Region::ALL.map(|region| RegionUnits {
        region: region.id(),
        count: container.unit_count(region),
    });
    let present = counts.iter().filter(|units| units.count > 0);
    if !present.eq(recorded.iter()) {
        return Err(NodeError::Mismatch("list of units"));
    }
    Ok(())
}

fn vocab_of(header: &SealedHeader, meta: &[u8], keys: &mut UnitKeys) -> Result<Vocab, NodeError> {
    let unit = UnitId::new(Region::Vocab, 0);
    let span = header
        .container()
        .unit(unit)
        .ok_or(NodeError::NoVocabulary)?;
    let key = take(keys, unit)?;
    let sealed = usize::try_from(span.offset)
        .ok()
        .and_then(|start| meta.get(start..)?.get(..usize::try_from(span.length).ok()?))
        .ok_or(NodeError::NoVocabulary)?;
    let mut bytes = sealed.to_vec();
    header.open_unit(unit, &key, &mut bytes)?;
    let bytes = SecretBytes::new(bytes);
    let vocab = Vocab::decode(bytes.expose()).map_err(|source| JlmError::Section {
        section: "vocab",
        source,
    })?;
    Ok(vocab)
}

fn dense_of(blob: &Blob, header: &SealedHeader, keys: &mut UnitKeys) -> Result<Dense, NodeError> {
    let unit = UnitId::new(Region::Dense, 0);
    let span = header.container().region(Region::Dense);
    let key = take(keys, unit)?;
    let length = usize::try_from(span.length).map_err(|_| NodeError::Mismatch("size"))?;
    let mut bytes = AlignedBuf::wiped(length)?;
    blob.read(span.offset, &mut bytes)?;
    header.open_unit(unit, &key, &mut bytes)?;
    Ok(Dense(bytes))
}

/// A template's error and its cause.
fn sentence(error: &ChatError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Takes a key out, so that it is wiped once it was used.
fn take(keys: &mut UnitKeys, unit: UnitId) -> Result<Subkey, NodeError> {
    keys.remove(&unit).ok_or(NodeError::NoKey(unit))
}

/// One page computes while the next is read.
const MINIMUM_PAGES: u64 = 2;
/// Header, config, tables, vocabulary; or the seal section.
const MAX_METADATA: u64 = 1 << 30;
