//! Written files and directories.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;

use checkpoint::{
    Checkpoint, CheckpointError, Dtype, PlannedShard, ShardPlan, ShardWriter, StagedDir,
    TensorSource, TensorSpec,
};
use proptest::prelude::*;
use sha2::Digest;

fn spec(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
    }
}

fn metadata(extra: &[(&str, &str)]) -> Vec<(String, String)> {
    let entries = [("format", "pt")].into_iter().chain(extra.iter().copied());
    entries.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(bytes).into()
}

fn specs() -> Vec<TensorSpec> {
    vec![
        spec("b.weight", Dtype::BF16, &[3, 2]),
        spec("a.weight", Dtype::F8_E4M3, &[5]),
        spec("a.scale", Dtype::F32, &[]),
        spec("c\"é\u{2028}", Dtype::I64, &[0, 4]),
        spec("a.bias", Dtype::BF16, &[1]),
    ]
}

fn data(spec: &TensorSpec) -> Vec<u8> {
    let length = spec.dtype.byte_length(&spec.shape).unwrap();
    let seed = spec.name.len();
    (0..length as usize)
        .map(|at| (at * 7 + seed) as u8)
        .collect()
}

#[test]
fn a_shard_equals_what_the_safetensors_library_writes() {
    let folder = tempfile::tempdir().unwrap();
    let plan = PlannedShard::new("x.safetensors", specs()).unwrap();
    let mut writer = ShardWriter::create(folder.path(), &plan, &metadata(&[])).unwrap();
    for info in plan.tensors() {
        writer.write(&info.name, &data(&info.into())).unwrap();
    }
    assert!(
        !folder.path().join("x.safetensors").exists(),
        "not named before it is whole"
    );
    let written = writer.finish().unwrap();
    let file = fs::read(folder.path().join("x.safetensors")).unwrap();
    assert_eq!(written.sha256.as_bytes(), &sha256(&file));
    assert_eq!(written.bytes, file.len() as u64);

    let all: Vec<(TensorSpec, Vec<u8>)> =
        specs().into_iter().map(|s| (s.clone(), data(&s))).collect();
    let views = all.iter().map(|(spec, bytes)| {
        let dtype = serde_json::from_str(&format!("\"{}\"", spec.dtype)).unwrap();
        let shape = spec.shape.iter().map(|&d| d as usize).collect();
        let view = safetensors::tensor::TensorView::new(dtype, shape, bytes).unwrap();
        (spec.name.clone(), view)
    });
    let one = [("format".to_owned(), "pt".to_owned())];
    let reference = safetensors::serialize(views, Some(one.into())).unwrap();
    assert_eq!(file, reference);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn metadata_known_only_at_the_end_fits_the_room_kept_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let plan = PlannedShard::new("x.safetensors", specs()).unwrap();
    let widest = metadata(&[("kllm.lock", "9999999999")]);
    let mut writer = ShardWriter::create_reserving(folder.path(), &plan, &widest).unwrap();
    for info in plan.tensors() {
        writer.write(&info.name, &data(&info.into())).unwrap();
    }
    let written = writer
        .finish_with(&metadata(&[("kllm.lock", "1")]))
        .unwrap();
    let file = fs::read(folder.path().join("x.safetensors")).unwrap();
    assert_eq!(written.sha256.as_bytes(), &sha256(&file));
    let opened = Checkpoint::open(folder.path()).unwrap();
    let header = opened.shards()[0].header();
    assert_eq!(header.metadata_value("kllm.lock"), Some("1"));
    safetensors::SafeTensors::deserialize(&file).unwrap();

    let mut writer = ShardWriter::create_reserving(
        &folder.path().join("."),
        &PlannedShard::new("y.safetensors", specs()).unwrap(),
        &widest,
    )
    .unwrap();
    for info in plan.tensors() {
        writer.write(&info.name, &data(&info.into())).unwrap();
    }
    let wider = metadata(&[("kllm.lock", "99999999999999999999")]);
    let error = writer.finish_with(&wider).unwrap_err();
    assert!(
        matches!(error, CheckpointError::HeaderRoom { .. }),
        "{error}"
    );
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing is left behind"
    );
}

#[test]
fn an_unfinished_shard_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let plan = PlannedShard::new("x.safetensors", specs()).unwrap();
    let mut writer = ShardWriter::create(folder.path(), &plan, &metadata(&[])).unwrap();
    let [first, second, ..] = plan.tensors() else {
        panic!("{plan:?}");
    };
    let early = writer.write(&second.name, &data(&second.into()));
    let early = early.unwrap_err();
    assert!(matches!(early, CheckpointError::Order { .. }), "{early}");
    assert!(early.to_string().contains(&second.name), "{early}");
    let too_long = vec![0; first.bytes as usize + 1];
    let too_long = writer.write(&first.name, &too_long).unwrap_err();
    let named = format!("tensor {:?}: bytes 0..1 ", first.name);
    assert!(too_long.to_string().starts_with(&named), "{too_long}");
    writer.write(&first.name, &data(&first.into())).unwrap();
    let twice = writer.write(&first.name, &data(&first.into()));
    let twice = twice.unwrap_err();
    assert!(matches!(twice, CheckpointError::Order { .. }), "{twice}");
    assert!(matches!(
        writer.write("z", &[]),
        Err(CheckpointError::NoTensor { .. })
    ));
    let error = writer.finish().unwrap_err();
    assert!(
        matches!(error, CheckpointError::Incomplete { .. }),
        "{error}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn tensors_are_spread_over_shards_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out");
    let plan = ShardPlan::new(specs(), 9).unwrap();
    let files: Vec<_> = plan.shards().iter().map(|s| s.tensors().len()).collect();
    assert_eq!(files, [1, 2, 2], "12 bytes; 5 and 4 bytes; 0 and 2 bytes");
    let staged = StagedDir::create(&target).unwrap();
    staged.require_space(plan.data_length()).unwrap();
    for shard in plan.shards() {
        let mut writer = ShardWriter::create(staged.path(), shard, &metadata(&[])).unwrap();
        for info in shard.tensors() {
            writer.write(&info.name, &data(&info.into())).unwrap();
        }
        writer.finish().unwrap();
    }
    let index = plan.index_json();
    staged
        .write_file("model.safetensors.index.json", index.as_bytes())
        .unwrap();
    staged.write_file("folder/config.json", b"{}").unwrap();
    staged.commit().unwrap();
    let opened = Checkpoint::open(&target).unwrap();
    assert_eq!(opened.tensors().len(), specs().len());
    for spec in specs() {
        let mut bytes = data(&spec);
        let expected = bytes.clone();
        bytes.fill(0);
        opened.read(&spec.name, &mut bytes).unwrap();
        assert_eq!(bytes, expected);
    }
    let again = StagedDir::create(&target).unwrap_err();
    assert!(matches!(again, CheckpointError::Exists { .. }), "{again}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_staged_directory_is_removed_unless_kept_and_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out");
    let staged = StagedDir::create(&target).unwrap();
    staged.write_file("a", b"a").unwrap();
    assert!(staged.write_file("../a", b"a").is_err());
    let second = StagedDir::resume(&target).unwrap_err();
    assert!(matches!(second, CheckpointError::Exists { .. }), "{second}");
    drop(staged);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

    let staged = StagedDir::resume(&target).unwrap();
    staged.write_file("a", b"a").unwrap();
    drop(staged);
    let staged = StagedDir::resume(&target).unwrap();
    assert_eq!(fs::read(staged.path().join("a")).unwrap(), b"a");
    drop(staged);
    let staged = StagedDir::create(&target).unwrap();
    assert!(
        !staged.path().join("a").exists(),
        "a fresh start removes an abandoned run"
    );
    fs::create_dir(&target).unwrap();
    let error = staged.commit().unwrap_err();
    assert!(matches!(error, CheckpointError::Exists { .. }), "{error}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "the other directory stays"
    );
}

#[test]
fn tensors_that_no_reader_would_take_are_not_planned() {
    for tensors in [
        vec![spec("a", Dtype::U8, &[1]), spec("a", Dtype::U8, &[1])],
        vec![spec("", Dtype::U8, &[1])],
        vec![spec("__metadata__", Dtype::U8, &[1])],
        vec![spec("a", Dtype::F4, &[3])],
        vec![spec("a", Dtype::U8, &[u64::MAX, 2])],
        vec![
            spec("a", Dtype::U8, &[u64::MAX]),
            spec("b", Dtype::U8, &[1]),
        ],
    ] {
        assert!(
            ShardPlan::new(tensors.clone(), u64::MAX).is_err(),
            "{tensors:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_file_of_any_lengths_has_the_hash_that_was_taken_as_it_was_written(
        lengths in prop::collection::vec(0_u64..20_000, 1..6),
        reserved in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let tensors: Vec<_> = lengths.iter().enumerate()
            .map(|(at, n)| spec(&format!("t{at}"), Dtype::U8, &[*n])).collect();
        let plan = PlannedShard::new("x.safetensors", tensors).unwrap();
        let create = if reserved { ShardWriter::create_reserving } else { ShardWriter::create };
        let mut writer = create(folder.path(), &plan, &metadata(&[])).unwrap();
        for info in plan.tensors() {
            writer.write(&info.name, &data(&info.into())).unwrap();
        }
        let written = if reserved {
            writer.finish_with(&metadata(&[])).unwrap()
        } else {
            writer.finish().unwrap()
        };
        let file = fs::read(folder.path().join("x.safetensors")).unwrap();
        prop_assert_eq!(written.sha256.as_bytes(), &sha256(&file));
        let opened = Checkpoint::open(folder.path()).unwrap();
        for info in plan.tensors() {
            let mut bytes = vec![0; info.bytes as usize];
            opened.read(&info.name, &mut bytes).unwrap();
            prop_assert_eq!(bytes, data(&info.into()));
        }
    }
}
