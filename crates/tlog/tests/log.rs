//! The log against the golden values of its specifications, and against a naive tree.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::convert::Infallible;

use ed25519_dalek::SigningKey;
use proptest::prelude::*;
use tlog::*;

const GOLDEN_VKEY: &str = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
const GOLDEN_NOTE: &str = "This is an example message.\n\n— example.com/foo \
    Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n";

/// The definition of RFC 6962, section 2.1, as it stands there.
fn naive_root(entries: &[Vec<u8>]) -> Hash {
    match entries {
        [] => empty_root(),
        [entry] => leaf_hash(entry),
        _ => {
            let mut left = 1;
            while left * 2 < entries.len() {
                left *= 2;
            }
            node_hash(&naive_root(&entries[..left]), &naive_root(&entries[left..]))
        }
    }
}

struct Tree {
    entries: Vec<Vec<u8>>,
    nodes: HashMap<NodeId, Hash>,
    frontier: Frontier,
}

impl Tree {
    fn of(size: u64) -> Self {
        let entries: Vec<Vec<u8>> = (0..size)
            .map(|n| n.to_be_bytes()[7 - (n > 255) as usize..].to_vec())
            .collect();
        let mut frontier = Frontier::new();
        let nodes = entries
            .iter()
            .flat_map(|entry| frontier.append(leaf_hash(entry)))
            .collect();
        Self {
            entries,
            nodes,
            frontier,
        }
    }

    fn proof(&self, plan: ProofPlan) -> Vec<Hash> {
        plan.hashes(|id| self.nodes.get(&id).copied()).unwrap()
    }
}

fn signer(name: &str) -> NoteSigner {
    NoteSigner::new(name, SigningKey::from_bytes(&[9; 32])).unwrap()
}

#[test]
fn golden_roots() {
    for (size, root) in [
        (
            0,
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        (
            1,
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        ),
        (
            2,
            "a20bf9a7cc2dc8a08f5f415a71b19f6ac427bab54d24eec868b5d3103449953a",
        ),
        (
            3,
            "3b6cccd7e3e023ff393006f030315ee7ad9eb111b022b41fba7e5b7a3973f688",
        ),
        (
            5,
            "b855b42d6c30f5b087e05266783fbd6e394f7b926013ccaa67700a8b0c5a596f",
        ),
    ] {
        assert_eq!(Tree::of(size).frontier.root().to_hex(), root, "{size}");
    }
}

#[test]
fn every_proof_of_every_tree_up_to_200_verifies_and_its_changes_do_not() {
    let whole = Tree::of(200);
    let roots: Vec<Hash> = (0..=200)
        .map(|size| naive_root(&whole.entries[..size]))
        .collect();
    for size in 0..=200u64 {
        let root = roots[size as usize];
        let peaks = Frontier::peak_ids(size)
            .iter()
            .map(|id| whole.nodes[id])
            .collect();
        assert_eq!(Frontier::from_peaks(size, peaks).unwrap().root(), root);
        for index in 0..size {
            let leaf = leaf_hash(&whole.entries[index as usize]);
            let proof = whole.proof(inclusion_plan(index, size).unwrap());
            assert_eq!(verify_inclusion(&leaf, index, size, &proof, &root), Ok(()));
            let wrong = leaf_hash(b"another");
            assert!(verify_inclusion(&wrong, index, size, &proof, &root).is_err());
            if index + 1 < size {
                assert!(verify_inclusion(&leaf, index + 1, size, &proof, &root).is_err());
            }
        }
        for old in 0..=size {
            let proof = whole.proof(consistency_plan(old, size).unwrap());
            let old_root = roots[old as usize];
            assert_eq!(
                verify_consistency(old, size, &proof, &old_root, &root),
                Ok(())
            );
            if old > 0 && old < size {
                let forked = leaf_hash(b"another");
                assert!(verify_consistency(old, size, &proof, &forked, &root).is_err());
                assert!(verify_consistency(old, size, &proof, &old_root, &forked).is_err());
                assert!(verify_consistency(old, size, &proof[1..], &old_root, &root).is_err());
                let longer = [&proof[..], &[forked]].concat();
                assert!(verify_consistency(old, size, &longer, &old_root, &root).is_err());
            }
        }
    }
    assert!(inclusion_plan(200, 200).is_err());
    assert!(consistency_plan(201, 200).is_err());
}

#[test]
fn golden_note() {
    let verifier: NoteVerifier = GOLDEN_VKEY.parse().unwrap();
    let note: Note = GOLDEN_NOTE.parse().unwrap();
    assert_eq!(note.text, "This is an example message.\n");
    assert_eq!(verifier.verify(&note), Ok(None));
    assert_eq!(verifier.to_string(), GOLDEN_VKEY);
    assert_eq!(note.encode(), GOLDEN_NOTE);
    let changed: Note = GOLDEN_NOTE
        .replace("example message", "altered message")
        .parse()
        .unwrap();
    let refused = NoteError::BadSignature("example.com/foo".to_owned());
    assert_eq!(verifier.verify(&changed), Err(refused));
}

#[test]
fn unknown_signatures_are_ignored_and_malformed_notes_refused() {
    let verifier: NoteVerifier = GOLDEN_VKEY.parse().unwrap();
    let mut note: Note = GOLDEN_NOTE.parse().unwrap();
    let other = signer("example.com/bar").sign(&note.text, 0).unwrap();
    note.signatures.insert(0, other);
    assert_eq!(verifier.verify(&note.encode().parse().unwrap()), Ok(None));
    note.signatures.truncate(1);
    assert!(matches!(
        verifier.verify(&note),
        Err(NoteError::NotSigned(_))
    ));
    for bad in [
        "",
        "text\n",
        "text\n\n",
        "text\n\n\u{2014} a b\n",
        "text\n\n- a AAAAAAA=\n",
        "te\tx\n\n\u{2014} a AAAAAAA=\n",
        "text\n\n\u{2014} a AAAAAAA=",
        "text\n\n\u{2014} a+b AAAAAAA=\n",
        "text\n\n\u{2014} a AAAA\n",
    ] {
        assert!(bad.parse::<Note>().is_err(), "{bad:?}");
    }
    assert!("text\n\n\u{2014} a AAAAAAA=\n".parse::<Note>().is_ok());
    let many = format!(
        "text\n\n{}",
        "\u{2014} a AAAAAAA=\n".repeat(MAX_SIGNATURES + 1)
    );
    assert!(many.parse::<Note>().is_err());
}

#[test]
fn malformed_verifier_keys_are_refused() {
    for bad in [
        "",
        "a",
        "a+530d903a",
        "example.com/foo+00000000+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
        "example.com/bar+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
        "example.com/foo+530d903a+AukyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
        "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv",
    ] {
        assert!(bad.parse::<NoteVerifier>().is_err(), "{bad}");
    }
}

#[test]
fn checkpoints_round_trip_and_only_the_logs_own_are_accepted() {
    let log = signer("log.chancery.test");
    let checkpoint = Checkpoint {
        origin: "log.chancery.test".to_owned(),
        size: 3,
        root: Tree::of(3).frontier.root(),
    };
    let note = checkpoint.sign(&log).unwrap();
    assert_eq!(
        Checkpoint::verify(&note, log.verifier()),
        Ok(checkpoint.clone())
    );
    let other = NoteSigner::new("log.chancery.test", SigningKey::from_bytes(&[1; 32])).unwrap();
    assert!(Checkpoint::verify(&note, other.verifier()).is_err());
    assert!(Checkpoint::verify(&note.replace("\n3\n", "\n4\n"), log.verifier()).is_err());
    assert!(checkpoint.sign(&signer("elsewhere")).is_err());
    let root = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=";
    assert!(Checkpoint::parse_body(&format!("a\n1\n{root}\n")).is_ok());
    assert!(Checkpoint::parse_body(&format!("a\n1\n{root}\nextension\n")).is_ok());
    for bad in [
        format!("\n1\n{root}\n"),
        format!("a\n01\n{root}\n"),
        format!("a\n+1\n{root}\n"),
        format!("a\n1\n{root}"),
        format!("a\n-1\n{root}\n"),
        "a\n1\nAAAA\n".to_owned(),
        "a\n1\n".to_owned(),
        format!("a\n1\n{root}\n\n"),
        format!("a\n18446744073709551616\n{root}\n"),
    ] {
        assert!(Checkpoint::parse_body(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_cosignature_states_its_time() {
    let witness = NoteSigner::cosigner("witness.test", SigningKey::from_bytes(&[3; 32])).unwrap();
    let text = "log\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n";
    let signature = witness.sign(text, 1_700_000_000).unwrap();
    assert_eq!(signature.signature.len(), 72);
    let mut note = Note {
        text: text.to_owned(),
        signatures: vec![signature],
    };
    let verifier: NoteVerifier = witness.verifier().to_string().parse().unwrap();
    assert_eq!(verifier.verify(&note), Ok(Some(1_700_000_000)));
    note.signatures[0].signature[7] ^= 1;
    assert!(verifier.verify(&note).is_err());
}

#[test]
fn offline_proofs_verify_and_every_change_is_refused() {
    let log = signer("log.chancery.test");
    let tree = Tree::of(11);
    let checkpoint = Checkpoint {
        origin: "log.chancery.test".to_owned(),
        size: 11,
        root: tree.frontier.root(),
    };
    for extra in [None, Some(b"x".to_vec())] {
        let proof = OfflineProof {
            extra,
            index: 6,
            hashes: tree.proof(inclusion_plan(6, 11).unwrap()),
            checkpoint: checkpoint.sign(&log).unwrap(),
        };
        let text = proof.to_string();
        let parsed: OfflineProof = text.parse().unwrap();
        assert_eq!(parsed, proof);
        assert_eq!(
            parsed.verify(&tree.entries[6], log.verifier()),
            Ok(checkpoint.clone())
        );
        assert!(parsed.verify(&tree.entries[7], log.verifier()).is_err());
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else {
                continue;
            };
            let in_extra = proof.extra.is_some() && at < text.find("\nindex").unwrap();
            let verified = changed
                .parse::<OfflineProof>()
                .is_ok_and(|proof| proof.verify(&tree.entries[6], log.verifier()).is_ok());
            assert!(!verified || in_extra, "{at}");
        }
        for end in 0..text.len() {
            let cut = text
                .get(..end)
                .and_then(|text| text.parse::<OfflineProof>().ok());
            assert!(
                cut.is_none_or(|proof| proof.verify(&tree.entries[6], log.verifier()).is_err())
            );
        }
    }
}

#[test]
fn tile_paths_are_those_of_the_specification() {
    for (text, index, width) in [
        ("tile/0/x001/x234/067", 1_234_067, 256),
        ("tile/0/000", 0, 256),
        ("tile/0/273.p/112", 273, 112),
        ("tile/0/x273/000", 273_000, 256),
    ] {
        let path = TilePath {
            kind: TileKind::Hashes { level: 0 },
            index,
            width,
        };
        assert_eq!(path.to_string(), text);
        assert_eq!(text.parse(), Ok(path));
    }
    assert_eq!(
        "tile/entries/001.p/1".parse(),
        Ok(TilePath {
            kind: TileKind::Entries,
            index: 1,
            width: 1
        })
    );
    for bad in [
        "",
        "tile/0/1",
        "tile/0/0001",
        "tile/64/000",
        "tile/00/000",
        "tile/0/001/000",
        "tile/0/x000/001",
        "tile/0/000.p/0",
        "tile/0/000.p/256",
        "tile/0/000.p/01",
        "tile/0/000/",
        "tile/-1/000",
        "tile/entries/x00",
        "tile/0/+01",
        "tile/0/x999/x999/x999/x999/x999/x999/999",
    ] {
        assert!(bad.parse::<TilePath>().is_err(), "{bad}");
    }
    let tiles: Vec<TilePath> = TilePath::all(70_000).collect();
    let row = |kind| {
        tiles
            .iter()
            .filter(|tile| tile.kind == kind)
            .map(|tile| tile.width)
            .collect::<Vec<_>>()
    };
    let level_0 = row(TileKind::Hashes { level: 0 });
    assert_eq!((level_0.len(), level_0[273]), (274, 112));
    assert_eq!(row(TileKind::Hashes { level: 1 }), [256, 17]);
    assert_eq!(row(TileKind::Hashes { level: 2 }), [1]);
    assert_eq!(row(TileKind::Entries).len(), 274);
    assert!(tiles.iter().all(|tile| tile.exists_at(70_000)));
    assert!(
        !TilePath {
            kind: TileKind::Hashes { level: 0 },
            index: 273,
            width: 113
        }
        .exists_at(70_000)
    );
}

struct Stored(HashMap<TilePath, Vec<u8>>);

impl TileReader for Stored {
    type Error = &'static str;

    fn read(&mut self, path: &TilePath) -> Result<Vec<u8>, Self::Error> {
        self.0.get(path).cloned().ok_or("no such tile")
    }
}

fn stored(tree: &Tree) -> Stored {
    let tile = |path: TilePath| {
        let range = path.index * 256..path.index * 256 + u64::from(path.width);
        let bytes = match path.kind {
            TileKind::Entries => {
                encode_entries(range.map(|index| &tree.entries[index as usize][..])).unwrap()
            }
            TileKind::Hashes { level } => {
                let hashes: Vec<Hash> = range
                    .map(|index| {
                        tree.nodes[&NodeId {
                            level: level * 8,
                            index,
                        }]
                    })
                    .collect();
                encode_hashes(&hashes)
            }
        };
        (path, bytes)
    };
    Stored(TilePath::all(tree.frontier.size()).map(tile).collect())
}

#[test]
fn a_stored_log_is_clean_and_each_damage_is_found() {
    for size in [0, 1, 255, 256, 257, 700] {
        let tree = Tree::of(size);
        let checkpoint = Checkpoint {
            origin: "log".to_owned(),
            size,
            root: tree.frontier.root(),
        };
        let report = fsck(&checkpoint, &mut stored(&tree));
        assert!(report.is_clean(), "{size}: {report:?}");
        assert_eq!(report.entries, size);
        let paths: Vec<TilePath> = stored(&tree).0.into_keys().collect();
        for path in paths {
            let mut damaged = stored(&tree);
            *damaged.0.get_mut(&path).unwrap().last_mut().unwrap() ^= 1;
            assert!(!fsck(&checkpoint, &mut damaged).is_clean(), "{path}");
            let mut missing = stored(&tree);
            missing.0.remove(&path);
            assert!(!fsck(&checkpoint, &mut missing).is_clean(), "{path}");
            let mut cut = stored(&tree);
            cut.0.get_mut(&path).unwrap().pop();
            assert!(!fsck(&checkpoint, &mut cut).is_clean(), "{path}");
        }
        let wrong = Checkpoint {
            root: leaf_hash(b"x"),
            ..checkpoint
        };
        assert!(!fsck(&wrong, &mut stored(&tree)).is_clean());
    }
}

#[test]
fn chunk_roots_are_log_roots_over_mebibytes() {
    let bytes: Vec<u8> = (0..3 * CHUNK_BYTES + 5)
        .map(|at| (at % 251) as u8)
        .collect();
    let chunks: Vec<Vec<u8>> = bytes.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect();
    assert_eq!(chunk_root(&bytes), naive_root(&chunks));
    assert_eq!(chunk_root(&[]), empty_root());
    assert_eq!(chunk_root(b"abc"), leaf_hash(b"abc"));
    let mut hasher = ChunkHasher::new();
    for piece in bytes.chunks(70_001) {
        hasher.update(piece);
    }
    assert_eq!(hasher.finish().root(), chunk_root(&bytes));
}

#[test]
fn every_range_of_chunks_up_to_20_is_proved() {
    for size in 1..=20u64 {
        let leaves: Vec<Hash> = (0..size).map(|n| leaf_hash(&[n as u8])).collect();
        let tree = ChunkTree::from_leaves(leaves.clone());
        let root = tree.root();
        for first in 0..size {
            for end in first + 1..=size {
                let proof = tree.range_proof(first, end).unwrap();
                let range = &leaves[first as usize..end as usize];
                assert_eq!(verify_chunks(range, first, size, &proof, &root), Ok(()));
                let mut wrong = range.to_vec();
                wrong[0] = leaf_hash(b"another");
                assert!(verify_chunks(&wrong, first, size, &proof, &root).is_err());
                let longer = [&proof[..], &[root]].concat();
                assert!(verify_chunks(range, first, size, &longer, &root).is_err());
            }
        }
        assert!(tree.range_proof(0, size + 1).is_err());
        assert!(tree.range_proof(size, size).is_err());
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "(.|\n){0,200}") {
        let _: Result<Note, _> = text.parse();
        let _: Result<OfflineProof, _> = text.parse();
        let _: Result<TilePath, _> = text.parse();
        let _: Result<NoteVerifier, _> = text.parse();
        let _ = Checkpoint::parse_body(&text);
    }

    #[test]
    fn entry_bundles_round_trip(entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)) {
        let bundle = encode_entries(entries.iter().map(Vec::as_slice)).unwrap();
        let width = entries.len() as u32;
        prop_assert_eq!(decode_entries(&bundle, width).unwrap(), entries.iter().map(Vec::as_slice).collect::<Vec<_>>());
        prop_assert!(decode_entries(&bundle, width + 1).is_err());
    }
}

#[test]
fn a_report_stops_at_its_bound() {
    struct Empty;
    impl TileReader for Empty {
        type Error = Infallible;
        fn read(&mut self, _: &TilePath) -> Result<Vec<u8>, Infallible> {
            Ok(Vec::new())
        }
    }
    let checkpoint = Checkpoint {
        origin: "log".to_owned(),
        size: 300_000,
        root: empty_root(),
    };
    assert_eq!(fsck(&checkpoint, &mut Empty).faults.len(), MAX_FAULTS);
}
