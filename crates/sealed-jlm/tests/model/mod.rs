//! A small mixture of experts, sealed in memory.

#![allow(clippy::unwrap_used, reason = "test support")]
#![allow(dead_code, reason = "each binary uses its part")]

use std::convert::Infallible;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use identifiers::Sha256Digest;
use jlm::{
    Arch, Config, DType, Draft, Region, Role, Span, TensorEntry, TensorKey, Version, Vocab,
    VocabKind, WriterFingerprint,
};
use model_key::{ModelKey, SubkeySource};
use sealed_jlm::{
    ChunkSize, Finding, SealParameters, SealedHeader, SealedJlmError, Sealer, TRAILER_LEN, Trailer,
};
use secret::Secret;
use sha2::{Digest, Sha256};

#[derive(Clone)]
pub struct SealedFile {
    pub bytes: Vec<u8>,
}

pub fn key() -> ModelKey {
    ModelKey::new(Secret::fill_with(|bytes| bytes.fill(7)))
}

pub fn other_key() -> ModelKey {
    ModelKey::new(Secret::fill_with(|bytes| bytes.fill(8)))
}

/// Two mixture blocks of three experts; every byte of a region is pseudo-random.
pub fn plain() -> Vec<u8> {
    let mut vocab = Vocab::new(VocabKind::Bpe);
    vocab.tokens = ["a", "b", "c"].map(str::to_owned).to_vec();
    let vocab = vocab.encode();
    let mut config = Config::new(Arch::LLAMA);
    config.n_layer = 2;
    config.n_expert = 3;
    config.n_expert_used = 2;
    let mut tensors = vec![entry(Role::TOKEN_EMBD, -1, &[64, 3])];
    for block in 0..2 {
        tensors.push(entry(Role::ATTN_NORM, block, &[64]));
        tensors.push(entry(Role::ATTN_Q, block, &[64, 33]));
        tensors.push(entry(Role::ROUTER, block, &[64, 3]));
        tensors.push(entry(Role::EXP_GATE_BANK, block, &[64, 32, 3]));
        tensors.push(entry(Role::EXP_DOWN_BANK, block, &[32, 64, 3]));
    }
    let container = Draft {
        version: Version::V27,
        config,
        vision_len: 24,
        vocab_len: vocab.len() as u64,
        tensors,
        fingerprint: WriterFingerprint::default(),
    }
    .lay_out()
    .unwrap();
    let mut file = container.encode_meta(&[5; 24], &vocab).unwrap();
    let mut block = Sha256::digest(b"weights");
    while (file.len() as u64) < container.header().file_len() {
        block = Sha256::digest(block);
        file.extend_from_slice(&block);
    }
    file
}

/// A container of one block with one page of about `bytes` bytes.
pub fn large(bytes: u64) -> Vec<u8> {
    let container = Draft {
        version: Version::V27,
        config: Config::new(Arch::LLAMA),
        vision_len: 0,
        vocab_len: 0,
        tensors: vec![
            entry(Role::OUTPUT_NORM, -1, &[64]),
            entry(Role::FFN_UP, 0, &[1024, bytes / 4096]),
        ],
        fingerprint: WriterFingerprint::default(),
    }
    .lay_out()
    .unwrap();
    let mut file = container.encode_meta(&[], &[]).unwrap();
    file.resize(container.header().file_len() as usize, 0xa5);
    file
}

fn entry(role: Role, block: i32, dims: &[u64]) -> TensorEntry {
    TensorEntry {
        key: TensorKey {
            role,
            block,
            index: -1,
        },
        dtype: DType::F32,
        dims: dims.to_vec(),
        qs_off: 0,
        d_off: 0,
        sc_off: 0,
        name: format!("{}.{block}", role.name()),
    }
}

pub fn sealer(plain: &[u8], chunk: u64, key: &ModelKey) -> Sealer {
    // A salt seals one file: each call has its own.
    static SALT: AtomicU8 = AtomicU8::new(0);
    let meta_len = jlm::Header::decode(plain, plain.len() as u64)
        .unwrap()
        .meta_len();
    let parameters = SealParameters {
        salt: [SALT.fetch_add(1, Ordering::Relaxed); 16],
        chunk: ChunkSize::new(chunk).unwrap(),
        aggregate: Sha256Digest::new([3; 32]),
        fingerprint: key.fingerprint(),
    };
    Sealer::new(&plain[..meta_len as usize], &parameters).unwrap()
}

pub fn seal(plain: &[u8]) -> SealedFile {
    seal_with(plain, 4096, &key())
}

pub fn seal_with(plain: &[u8], chunk: u64, key: &ModelKey) -> SealedFile {
    let mut sealer = sealer(plain, chunk, key);
    let mut bytes = plain.to_vec();
    let meta_len = sealer.container().header().meta_len() as usize;
    sealer
        .seal_meta(&mut bytes[..meta_len], |id| {
            Ok::<_, SealedJlmError>(key.subkey(id).unwrap())
        })
        .unwrap();
    for unit in sealer
        .container()
        .clone()
        .units()
        .filter(|unit| unit.region >= Region::Dense)
    {
        let span = sealer.container().unit(unit).unwrap();
        let subkey = key.subkey(&sealer.subkey_id(unit)).unwrap();
        let range = span.offset as usize..span.end().unwrap() as usize;
        sealer.seal_unit(unit, &subkey, &mut bytes[range]).unwrap();
    }
    bytes.extend_from_slice(&sealer.finish().unwrap());
    SealedFile { bytes }
}

pub fn cached() -> SealedFile {
    static FILE: OnceLock<SealedFile> = OnceLock::new();
    FILE.get_or_init(|| seal(&plain())).clone()
}

impl SealedFile {
    fn read(&self, span: Span, out: &mut [u8]) -> Result<(), Infallible> {
        out.copy_from_slice(&self.bytes[span.offset as usize..span.end().unwrap() as usize]);
        Ok(())
    }

    pub fn fsck(&self) -> Result<SealedHeader, Finding> {
        let mut read = |span, out: &mut [u8]| self.read(span, out);
        let Ok(result) = sealed_jlm::fsck(self.bytes.len() as u64, &mut read);
        result
    }

    pub fn verify(&self, key: &ModelKey) -> Vec<Finding> {
        let mut read = |span, out: &mut [u8]| self.read(span, out);
        let Ok(findings) = sealed_jlm::verify(self.bytes.len() as u64, &mut read, key);
        findings
    }

    pub fn header(&self) -> Result<SealedHeader, SealedJlmError> {
        let (trailer, section) = self.trailer();
        let meta_len = SealedHeader::meta_len(&self.bytes, &trailer)?;
        SealedHeader::decode(
            &self.bytes[..meta_len as usize],
            &trailer,
            &self.bytes[section],
        )
    }

    fn trailer(&self) -> (Trailer, Range<usize>) {
        let at = self.bytes.len() - TRAILER_LEN as usize;
        let trailer = Trailer::decode(&self.bytes[at..], self.bytes.len() as u64).unwrap();
        let section = trailer.section();
        (
            trailer,
            section.offset as usize..section.end().unwrap() as usize,
        )
    }

    /// The file with its seal header edited, and lengths and digest made to fit again.
    pub fn with_header(&self, from: &str, to: &str) -> Self {
        let (_, section) = self.trailer();
        let length = u32::from_le_bytes(self.bytes[section.start..][..4].try_into().unwrap());
        let json_end = section.start + 4 + length as usize;
        let json = std::str::from_utf8(&self.bytes[section.start + 4..json_end]).unwrap();
        assert!(json.contains(from), "{from} is not in {json}");
        let json = json.replacen(from, to, 1);
        let mut new = (json.len() as u32).to_le_bytes().to_vec();
        new.extend_from_slice(json.as_bytes());
        new.extend_from_slice(&self.bytes[json_end..section.end]);
        let mut bytes = self.bytes[..section.start].to_vec();
        bytes.extend_from_slice(&new);
        bytes.extend_from_slice(b"JLMSEAL1");
        bytes.extend_from_slice(&(section.start as u64).to_le_bytes());
        bytes.extend_from_slice(&(new.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&Sha256::digest(&new));
        Self { bytes }
    }

    /// Byte classes of the file: header, other plain metadata, the four kinds of units, section,
    /// trailer.
    pub fn class(&self, class: usize) -> Range<usize> {
        let header = self.header().unwrap();
        let of = |span: Span| span.offset as usize..span.end().unwrap() as usize;
        let region = |region| of(header.container().region(region));
        let (_, section) = self.trailer();
        match class {
            0 => 0..192,
            1 => 192..header.container().header().meta_len() as usize,
            2 => region(Region::Vocab),
            3 => region(Region::Dense),
            4 => region(Region::Text),
            5 => region(Region::Experts),
            6 => section,
            _ => section.end..self.bytes.len(),
        }
    }
}

/// Opens every unit of a sealed file and undoes the version words: the plain file.
pub fn open_all(file: &SealedFile, header: &SealedHeader) -> Result<Vec<u8>, SealedJlmError> {
    let mut bytes = file.bytes[..header.container().header().file_len() as usize].to_vec();
    for unit in header.container().units() {
        let span = header.container().unit(unit).unwrap();
        let subkey = key().subkey(&header.subkey_id(unit)).unwrap();
        let range = span.offset as usize..span.end().unwrap() as usize;
        header.open_unit(unit, &subkey, &mut bytes[range])?;
    }
    bytes[..192].copy_from_slice(&header.container().header().encode());
    Ok(bytes)
}
