//! The whole log in a folder, and its verification with no service at hand.
//!
//! A folder holds `checkpoint` (signed note), `trust.toml`, and for each entry
//! `receipts/<index>.json` (the DSSE envelope: the entry's bytes) with
//! `receipts/<index>.tlog-proof`, so that one receipt can also be given away with its proof.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use custody::Trust;
use receipt::Receipt;
use serde::Serialize;
use service_runtime::TrustFile;
use tlog::{Checkpoint, Frontier, Hash, NodeId, OfflineProof, inclusion_plan, leaf_hash};

use crate::files::parent;

/// Every entry of a log up to a signed checkpoint.
pub struct Log {
    /// The signed note.
    pub checkpoint: String,
    /// Entries by index.
    pub entries: Vec<Vec<u8>>,
}

/// What a verification found; all of it holds.
#[derive(Debug, Serialize)]
pub struct Audit {
    /// Entries in the log.
    pub entries: u64,
    /// The root that the checkpoint signs.
    pub root: String,
    /// The log's name.
    pub origin: String,
    /// Receipts by event.
    pub events: BTreeMap<&'static str, u64>,
    /// Size of the checkpoint that was held from before.
    pub extends: Option<u64>,
    /// Proof files that were checked beside the entries.
    pub proofs: u64,
}

impl Log {
    /// Checks everything: the checkpoint's signature, that these entries and no others have its
    /// root, every receipt's signature and form, that no receipt is there twice, and that the log
    /// extends the `held` checkpoint.
    pub fn verify(&self, trust: &Trust, held: Option<&str>) -> Result<Audit> {
        let checkpoint = Checkpoint::verify(&self.checkpoint, &trust.log)?;
        let held = held
            .map(|note| Checkpoint::verify(note, &trust.log).context("the held checkpoint"))
            .transpose()?;
        ensure!(
            checkpoint.size == self.entries.len() as u64,
            "the checkpoint has {} entries, {} are here",
            checkpoint.size,
            self.entries.len()
        );
        if let Some(held) = &held {
            ensure!(
                held.size <= checkpoint.size,
                "the log went back: {} entries were seen before, it has {}",
                held.size,
                checkpoint.size
            );
        }
        let mut tree = Frontier::new();
        let mut events = BTreeMap::new();
        let mut seen = HashMap::new();
        let extends = |tree: &Frontier| match &held {
            Some(held) if held.size == tree.size() => {
                ensure!(
                    held.root == tree.root(),
                    "the log forked: its first {} entries are not those seen before",
                    held.size
                );
                Ok(())
            }
            _ => Ok(()),
        };
        extends(&tree)?;
        for (index, entry) in self.entries.iter().enumerate() {
            let verified =
                Receipt::verify(entry, &trust.signers).with_context(|| format!("entry {index}"))?;
            let receipt = verified.receipt();
            if let Some(first) = seen.insert(receipt.id, index) {
                bail!("entry {index}: its receipt is entry {first} too");
            }
            *events.entry(receipt.event.as_str()).or_insert(0) += 1;
            tree.append(leaf_hash(entry));
            extends(&tree)?;
        }
        ensure!(
            tree.root() == checkpoint.root,
            "the entries do not have the checkpoint's root"
        );
        Ok(Audit {
            entries: checkpoint.size,
            root: hex::encode(checkpoint.root.as_bytes()),
            origin: checkpoint.origin,
            events,
            extends: held.map(|held| held.size),
            proofs: 0,
        })
    }

    /// Writes the folder, which must not exist; nothing stays of a folder that fails.
    pub fn export(&self, folder: &Path, trust: &TrustFile) -> Result<()> {
        ensure!(!folder.exists(), "{} exists already", folder.display());
        let staged = tempfile::Builder::new()
            .prefix(".receipts-")
            .tempdir_in(parent(folder))
            .with_context(|| format!("cannot write beside {}", folder.display()))?;
        self.write(staged.path(), trust)
            .with_context(|| format!("cannot write {}", folder.display()))?;
        fs::rename(staged.keep(), folder)
            .with_context(|| format!("cannot write {}", folder.display()))
    }

    fn write(&self, folder: &Path, trust: &TrustFile) -> Result<()> {
        let receipts = folder.join(RECEIPTS);
        fs::create_dir(&receipts)?;
        fs::write(folder.join(CHECKPOINT), &self.checkpoint)?;
        fs::write(folder.join(TRUST), trust.to_toml())?;
        let nodes = self.nodes();
        let size = self.entries.len() as u64;
        for (index, entry) in (0..).zip(&self.entries) {
            let hashes = inclusion_plan(index, size)?
                .hashes(|node| nodes.get(&node).copied())
                .context("the tree lacks a node")?;
            let proof = OfflineProof {
                extra: None,
                index,
                hashes,
                checkpoint: self.checkpoint.clone(),
            };
            fs::write(receipts.join(format!("{index}.json")), entry)?;
            fs::write(
                receipts.join(format!("{index}.tlog-proof")),
                proof.to_string(),
            )?;
        }
        Ok(())
    }

    fn nodes(&self) -> HashMap<NodeId, Hash> {
        let mut tree = Frontier::new();
        let leaves = self.entries.iter().map(|entry| leaf_hash(entry));
        leaves.flat_map(|leaf| tree.append(leaf)).collect()
    }

    /// Reads a folder's checkpoint and entries.
    pub fn import(folder: &Path) -> Result<Self> {
        let checkpoint = read_text(&folder.join(CHECKPOINT))?;
        let mut entries = Vec::new();
        loop {
            let path = entry_path(folder, entries.len(), "json");
            if !path.exists() {
                break;
            }
            entries.push(read(&path)?);
        }
        Ok(Self {
            checkpoint,
            entries,
        })
    }
}

/// Verifies an exported folder: what [`Log::verify`] checks, and every proof file. The trusted keys
/// are `trust`'s, or the folder's own.
pub fn verify_folder(folder: &Path, trust: Option<&Path>, held: Option<&str>) -> Result<Audit> {
    let trust_path = trust.map_or_else(|| folder.join(TRUST), Path::to_owned);
    let trust = Trust::try_from(&TrustFile::load(&trust_path)?)?;
    let log = Log::import(folder)?;
    let mut audit = log.verify(&trust, held)?;
    for (index, entry) in log.entries.iter().enumerate() {
        let path = entry_path(folder, index, "tlog-proof");
        let in_proof = || format!("{}", path.display());
        let proof: OfflineProof = read_text(&path)?.parse().with_context(in_proof)?;
        proof.verify(entry, &trust.log).with_context(in_proof)?;
        ensure!(
            proof.index == index as u64,
            "{}: a proof of entry {}",
            path.display(),
            proof.index
        );
        audit.proofs += 1;
    }
    Ok(audit)
}

fn entry_path(folder: &Path, index: usize, extension: &str) -> PathBuf {
    folder.join(RECEIPTS).join(format!("{index}.{extension}"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

const CHECKPOINT: &str = "checkpoint";
const TRUST: &str = "trust.toml";
const RECEIPTS: &str = "receipts";

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;
    use identifiers::ReceiptId;
    use receipt::{Event, NewReceipt};
    use service_runtime::trust::{PublicKey, Signer};
    use tlog::NoteSigner;

    use super::*;

    struct World {
        receipts: SigningKey,
        log: NoteSigner,
        trust: TrustFile,
    }

    const SIGNER: &str = "spiffe://chancery.test/key-service/one";

    impl World {
        fn new() -> Self {
            let receipts = SigningKey::from_bytes(&[1; 32]);
            let log =
                NoteSigner::new("chancery.test/log", SigningKey::from_bytes(&[2; 32])).unwrap();
            let trust = TrustFile {
                log: log.verifier().to_string(),
                signers: vec![Signer {
                    spiffe: SIGNER.parse().unwrap(),
                    public_key: PublicKey(receipts.verifying_key().to_bytes()),
                }],
                capability_keys: Vec::new(),
            };
            Self {
                receipts,
                log,
                trust,
            }
        }

        fn entry(&self, number: u8) -> Vec<u8> {
            let new = NewReceipt {
                id: ReceiptId::from_parts(1_700_000_000_000, &[number; 10]),
                event: Event::KeyCreated,
                actor: "spiffe://chancery.test/operator/one".parse().unwrap(),
                replica: SIGNER.parse().unwrap(),
                time: 1_700_000_000_000,
            };
            Receipt::from(new).sign(&self.receipts).unwrap()
        }

        fn log(&self, entries: Vec<Vec<u8>>) -> Log {
            let mut tree = Frontier::new();
            for entry in &entries {
                tree.append(leaf_hash(entry));
            }
            let checkpoint = Checkpoint {
                origin: "chancery.test/log".to_owned(),
                size: tree.size(),
                root: tree.root(),
            };
            Log {
                checkpoint: checkpoint.sign(&self.log).unwrap(),
                entries,
            }
        }

        fn trust(&self) -> Trust {
            Trust::try_from(&self.trust).unwrap()
        }
    }

    #[test]
    fn an_exported_log_verifies_offline_and_extends_an_earlier_one() {
        let world = World::new();
        let entries: Vec<_> = (0..5).map(|number| world.entry(number)).collect();
        let earlier = world.log(entries[..3].to_vec()).checkpoint;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("export");
        world.log(entries).export(&folder, &world.trust).unwrap();
        let audit = verify_folder(&folder, None, Some(&earlier)).unwrap();
        assert_eq!(
            (audit.entries, audit.proofs, audit.extends),
            (5, 5, Some(3))
        );
        assert_eq!(audit.events["key-created"], 5);
        assert!(world.log(Vec::new()).export(&folder, &world.trust).is_err());
    }

    #[test]
    fn an_altered_export_is_refused() {
        let world = World::new();
        let entries: Vec<_> = (0..4).map(|number| world.entry(number)).collect();
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("export");
        world
            .log(entries.clone())
            .export(&folder, &world.trust)
            .unwrap();
        let first = folder.join("receipts/0.json");
        fs::write(&first, &entries[1]).unwrap();
        assert!(verify_folder(&folder, None, None).is_err());
        fs::write(&first, &entries[0]).unwrap();
        verify_folder(&folder, None, None).unwrap();
        fs::remove_file(folder.join("receipts/3.json")).unwrap();
        let error = verify_folder(&folder, None, None).unwrap_err();
        assert!(error.to_string().contains("3 are here"), "{error}");
    }

    #[test]
    fn a_log_that_forked_went_back_or_repeats_is_refused() {
        let world = World::new();
        let entries: Vec<_> = (0..4).map(|number| world.entry(number)).collect();
        let log = world.log(entries.clone());
        let other = world.log(vec![world.entry(9), world.entry(8)]).checkpoint;
        let forked = log.verify(&world.trust(), Some(&other)).unwrap_err();
        assert!(forked.to_string().contains("forked"), "{forked}");
        let longer = log.checkpoint.clone();
        let back = world.log(entries[..2].to_vec());
        let back = back.verify(&world.trust(), Some(&longer)).unwrap_err();
        assert!(back.to_string().contains("went back"), "{back}");
        let twice = world.log(vec![entries[0].clone(), entries[0].clone()]);
        let twice = twice.verify(&world.trust(), None).unwrap_err();
        assert!(twice.to_string().contains("entry 0 too"), "{twice}");
    }
}
