//! Every row of `sealed/index.json`: sealed as the reference does, and opened back.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use checkpoint::{Dtype, Header, Root, StagedDir};
use model_key::{GrantedSubkeys, ModelKey, SubkeySource};
use sealing::{Monitor, SealOptions, SealPlan, open_trusted, seal, show, unlock, verify};
use serde_json::Value;
use sha2::{Digest, Sha256};
use weight_transform::Transform;

use crate::fixtures;

const SALT: [u8; 16] = [7; 16];

/// Every case of the index by name: one that is renamed, added or dropped must be noticed here.
const CASES: [&str; 51] = [
    "qwen3-tied.perm.no-lock",
    "qwen3-tied.perm.lock-v2",
    "qwen3-tied.perm.lock-v1",
    "qwen3-tied.orth.no-lock",
    "qwen3-tied.orth.lock-v2",
    "qwen3-untied.perm.no-lock",
    "qwen3-untied.perm.lock-v2",
    "qwen3-untied.orth.no-lock",
    "qwen3-untied.orth.lock-v2",
    "qwen3-bias.perm.no-lock",
    "qwen3-bias.orth.lock-v2",
    "qwen3-f32.perm.lock-v2",
    "qwen3-f32.perm.lock-v1",
    "qwen3-f32.orth.no-lock",
    "qwen2.perm.no-lock",
    "qwen2.perm.lock-v2",
    "qwen2.orth.no-lock",
    "qwen2.orth.lock-v2",
    "qwen3-moe.perm.no-lock",
    "qwen3-moe.perm.lock-v2",
    "qwen3-moe.orth.no-lock",
    "qwen3-moe.orth.lock-v2",
    "qwen3-fp8-block128.perm.no-lock",
    "qwen3-fp8-block128.perm.lock-v2",
    "qwen3-fp8-block16.perm.no-lock",
    "qwen3-fp8-block16.perm.lock-v2",
    "qwen3-moe-fp8.perm.lock-v2",
    "qwen3-fp8-tensor.perm.no-lock",
    "qwen3-fp8-tensor.perm.lock-v2",
    "qwen3-fp8-channel.perm.no-lock",
    "qwen3-fp8-channel.perm.lock-v2",
    "glm5.perm.no-lock",
    "glm5.perm.lock-v2",
    "glm5-fp8.perm.lock-v2",
    "dsv4.perm.no-lock",
    "dsv4.perm.lock-v2",
    "glm5next.perm.no-lock",
    "glm5next.perm.lock-v2",
    "h3.perm.no-lock",
    "h3.perm.lock-v2",
    "h3.perm.lock-v1",
    "h3.orth.no-lock",
    "h3.orth.lock-v2",
    "zimage.perm.no-lock",
    "zimage.perm.lock-v2",
    "zimage.orth.no-lock",
    "zimage.orth.lock-v2",
    "zimage-d1.no-lock",
    "zimage-d1.lock-v2",
    "tiny-qwen3.perm.lock-v2",
    "tiny-qwen3.orth.lock-v2",
];

fn options(case: &Value) -> SealOptions {
    SealOptions {
        transform: match case["transform"].as_str() {
            Some("orth") => Transform::Orth,
            _ => Transform::Perm,
        },
        lock: case["lock"]
            .as_str()
            .map(|version| version.parse().unwrap()),
        client: case["client"].as_bool().unwrap(),
        salt: SALT,
    }
}

/// A source that holds only the subkeys that a plan lists.
fn grant(plan: &SealPlan, key: &ModelKey) -> GrantedSubkeys {
    let mut grant = GrantedSubkeys::new(key.fingerprint());
    for id in plan.subkeys().unwrap() {
        let subkey = key.subkey(&id).unwrap();
        grant.insert(id, subkey);
    }
    grant
}

fn hash(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// What is wrong with `found` against the listed `files`: sizes, hashes, headers.
fn compare_files(
    found: &Path,
    reference: &Path,
    listed: &Value,
    ulps: bool,
    wrong: &mut Vec<String>,
) {
    let listed = listed.as_object().unwrap();
    let names: BTreeSet<String> = listed.keys().cloned().collect();
    let present: BTreeSet<String> = fixtures::files(found)
        .into_iter()
        .filter(|path| !path.ends_with("trusted.kllm"))
        .collect();
    for path in names.symmetric_difference(&present) {
        wrong.push(format!("{path}: only on one side"));
    }
    for (path, expected) in listed.iter().filter(|(path, _)| present.contains(*path)) {
        let ours = std::fs::read(found.join(path)).unwrap();
        if hash(&ours) == expected["sha256"].as_str().unwrap() {
            continue;
        }
        let Some(data) = expected["data_sha256"].as_str() else {
            wrong.push(format!("{path}: differs"));
            continue;
        };
        let header = Header::parse_file(&ours).unwrap();
        let start = header.data_start() as usize;
        if hash(&ours[start..]) == data {
            let file = reference.join(path);
            if file.exists() {
                compare_headers(path, &ours, &std::fs::read(&file).unwrap(), wrong);
            }
        } else if !ulps {
            wrong.push(format!("{path}: data differs"));
            let file = reference.join(path);
            if file.exists() {
                compare_tensors(path, &ours, &std::fs::read(&file).unwrap(), 0, wrong);
            }
        } else {
            let theirs = std::fs::read(reference.join(path)).unwrap();
            compare_headers(path, &ours, &theirs, wrong);
            compare_tensors(path, &ours, &theirs, 1, wrong);
        }
    }
}

fn compare_headers(path: &str, ours: &[u8], theirs: &[u8], wrong: &mut Vec<String>) {
    let header = |bytes: &[u8]| {
        let header = Header::parse_file(bytes).unwrap();
        let mut metadata = header.metadata().to_vec();
        metadata.sort();
        let tensors = header
            .tensors()
            .iter()
            .map(|t| (t.name.clone(), t.dtype, t.shape.clone()));
        (metadata, tensors.collect::<Vec<_>>())
    };
    if header(ours) != header(theirs) {
        wrong.push(format!("{path}: header differs"));
    }
}

fn compare_tensors(path: &str, ours: &[u8], theirs: &[u8], ulps: i64, wrong: &mut Vec<String>) {
    let (a, b) = (
        Header::parse_file(ours).unwrap(),
        Header::parse_file(theirs).unwrap(),
    );
    for tensor in b.tensors() {
        let Some(own) = a.tensors().iter().find(|own| own.name == tensor.name) else {
            wrong.push(format!("{path}: {} is missing", tensor.name));
            continue;
        };
        let own = &ours[own.offset as usize..][..own.bytes as usize];
        let expected = &theirs[tensor.offset as usize..][..tensor.bytes as usize];
        if own.len() != expected.len() {
            wrong.push(format!("{path}: {} has another length", tensor.name));
            continue;
        }
        let width = (tensor.dtype.bits() / 8) as usize;
        let pairs = own.chunks(width).zip(expected.chunks(width));
        let bad: Vec<usize> = pairs
            .enumerate()
            .filter(|(_, (x, y))| {
                x != y
                    && (ulps == 0
                        || (ordinal(tensor.dtype, x) - ordinal(tensor.dtype, y)).abs() > ulps)
            })
            .map(|(at, _)| at)
            .collect();
        if let Some(first) = bad.first() {
            wrong.push(format!(
                "{path}: {} differs at {} of {} (first {first}: {:02x?} for {:02x?})",
                tensor.name,
                bad.len(),
                own.len() / width,
                &own[first * width..][..width],
                &expected[first * width..][..width],
            ));
        }
    }
}

fn ordinal(_dtype: Dtype, bytes: &[u8]) -> i64 {
    let bits = bytes
        .iter()
        .rev()
        .fold(0_i64, |bits, byte| bits << 8 | i64::from(*byte));
    let sign = 1_i64 << (8 * bytes.len() - 1);
    if bits & sign == 0 {
        bits
    } else {
        -(bits & !sign)
    }
}

fn compare_trusted(directory: &Path, key: &ModelKey, case: &Value, wrong: &mut Vec<String>) {
    let trusted = match open_trusted(&Root::open(directory).unwrap(), key) {
        Ok(trusted) => trusted,
        Err(error) => return wrong.push(format!("trusted.kllm: {error}")),
    };
    let expected = &case["trusted"];
    let blob = std::fs::read(directory.join(expected["path"].as_str().unwrap())).unwrap();
    let payload = trusted_blob::decode(key, &blob).unwrap();
    if hash(payload.expose()) != expected["payload_sha256"].as_str().unwrap() {
        wrong.push("trusted.kllm: payload differs".to_owned());
    }
    for (name, file) in expected["files"].as_object().unwrap() {
        let path = name.strip_prefix("file/").unwrap();
        let found = trusted.file(path).map(hash);
        if found.as_deref() != file["sha256"].as_str() {
            wrong.push(format!("trusted.kllm: {name} differs"));
        }
    }
}

/// What is wrong with our sealing of a case's input, against what the reference wrote.
fn check_sealed(fixtures: &Path, case: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let sealed = fixtures.join("sealed");
    let input = sealed.join(case["input"].as_str().unwrap());
    let reference = sealed.join(case["sealed"].as_str().unwrap());
    let key = fixtures::key(fixtures, case["key"].as_str().unwrap());
    let ulps = case["compare"] == "1 ulp";
    let work = tempfile::tempdir().unwrap();

    // Under a grant of exactly the listed subkeys.
    let plan = match SealPlan::new(&input, options(case)) {
        Ok(plan) => plan,
        Err(error) => return vec![format!("plan: {error}")],
    };
    let grant = grant(&plan, &key);
    let ours = work.path().join("ours");
    if let Err(error) = seal(&input, &grant, options(case), &ours, &Monitor::none()) {
        return vec![format!(
            "seal: {error}: {:?}",
            std::error::Error::source(&error)
        )];
    }
    if ulps && !case["lock"].is_null() {
        // Locked bytes depend on every value: compare after unlocking.
        let unlocked = work.path().join("ours-unlocked");
        let theirs = work.path().join("theirs-unlocked");
        unlock(&ours, &key, &unlocked, &Monitor::none()).unwrap();
        unlock(&reference, &key, &theirs, &Monitor::none()).unwrap();
        compare_files(
            &unlocked,
            &theirs,
            &case["unlocked_files"],
            true,
            &mut wrong,
        );
    } else {
        compare_files(&ours, &reference, &case["files"], ulps, &mut wrong);
    }
    compare_trusted(&ours, &key, case, &mut wrong);
    wrong
}

/// What is wrong with our opening of what the reference sealed.
fn check_opened(fixtures: &Path, case: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let sealed = fixtures.join("sealed");
    let input = sealed.join(case["input"].as_str().unwrap());
    let reference = sealed.join(case["sealed"].as_str().unwrap());
    let key = fixtures::key(fixtures, case["key"].as_str().unwrap());
    let ulps = case["compare"] == "1 ulp";
    let work = tempfile::tempdir().unwrap();

    let shown = show(&reference).unwrap();
    let recognised = serde_json::json!({
        "scheme": shown.scheme,
        "transform": shown.transform,
        "lock": shown.lock,
        "fingerprint": shown.fingerprint,
        "architecture": shown.architecture,
    });
    for (field, found) in recognised.as_object().unwrap() {
        if *found != case[field] {
            wrong.push(format!("{field}: {found} for {}", case[field]));
        }
    }
    compare_trusted(&reference, &key, case, &mut wrong);
    if let Some(listed) = case.get("unlocked_files") {
        let theirs = work.path().join("theirs");
        match unlock(&reference, &key, &theirs, &Monitor::none()) {
            Ok(_) => compare_files(&theirs, &reference, listed, false, &mut wrong),
            Err(error) => wrong.push(format!("unlock: {error}")),
        }
    }
    match verify(&reference, &input, &key, u64::from(ulps), &Monitor::none()) {
        Ok(report) => wrong.extend(
            report
                .differences
                .iter()
                .map(|d| format!("verify: {}: {}", d.what, d.how)),
        ),
        Err(error) => wrong.push(format!("verify: {error}")),
    }
    wrong
}

#[test]
fn every_case_is_sealed_as_the_reference_does_and_opened_back() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    let index = fixtures::json(&fixtures.join("sealed/index.json"));
    let listed = index["cases"].as_array().unwrap();
    let ids: Vec<&str> = listed
        .iter()
        .map(|case| case["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, CASES, "the index lists other cases");
    let mut failed = Vec::new();
    for (id, case) in CASES.iter().zip(listed) {
        for (direction, wrong) in [
            ("sealed", check_sealed(&fixtures, case)),
            ("opened", check_opened(&fixtures, case)),
        ] {
            if wrong.is_empty() {
                eprintln!("{id}: {direction} as the reference does");
            } else {
                failed.push(format!(
                    "{id}, {direction}:\n    {}",
                    wrong[..wrong.len().min(6)].join("\n    ")
                ));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{}\n{} failures",
        failed.join("\n"),
        failed.len()
    );
}

#[test]
fn an_interrupted_seal_resumes_to_the_same_bytes() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    let input = fixtures.join("sealed/inputs/zimage");
    let key = fixtures::key(&fixtures, "a");
    let options = SealOptions {
        transform: Transform::Perm,
        lock: Some(weight_lock::Version::V2),
        client: true,
        salt: SALT,
    };
    let work = tempfile::tempdir().unwrap();
    let whole = work.path().join("whole");
    let report = seal(&input, &key, options, &whole, &Monitor::none()).unwrap();

    let target = work.path().join("resumed");
    let plan = SealPlan::new(&input, options).unwrap();
    let first = {
        let mut out = StagedDir::create(&target).unwrap();
        out.keep(true);
        let sealer = plan.bind(&key).unwrap();
        let first = sealer.seal_shard(0, &out, &Monitor::none()).unwrap();
        // Cancelled in the middle of the second shard: nothing of it stays.
        let cancel = AtomicBool::new(false);
        let stop = |_| cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        let monitor = Monitor {
            progress: &stop,
            cancel: &cancel,
        };
        assert!(sealer.seal_shard(1, &out, &monitor).is_err());
        first
    };
    let plan = SealPlan::new(&input, options).unwrap();
    let source = plan.check_source(&report.source, &Monitor::none()).unwrap();
    let sealer = plan.bind(&key).unwrap();
    let out = StagedDir::resume(&target).unwrap();
    let mut shards = vec![first];
    for shard in 1..sealer.shards() {
        shards.push(sealer.seal_shard(shard, &out, &Monitor::none()).unwrap());
    }
    let files = sealer.seal_files(&out).unwrap();
    let resumed = sealer.report(source, &shards, files).unwrap();
    out.commit().unwrap();
    assert_eq!(resumed.written, report.written);
    assert_eq!(resumed.lock_table, report.lock_table);
    assert_eq!(fixtures::files(&whole), fixtures::files(&target));
    for path in fixtures::files(&whole) {
        let bytes = |root: &Path| std::fs::read(root.join(&path)).unwrap();
        assert_eq!(bytes(&whole), bytes(&target), "{path}");
    }
}
