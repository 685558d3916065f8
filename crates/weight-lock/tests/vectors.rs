//! The reference's lock, to the bit.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may panic and says when it is skipped"
)]

use std::path::{Path, PathBuf};

use hkdf::Hkdf;
use safetensors::SafeTensors;
use secret::Secret;
use serde_json::Value;
use sha2::{Digest, Sha256};
use weight_lock::{
    Domain, Element, Format, HEADER_KEY, Implementation, Lock, LockError, LockTable, RecordError,
    Scan, Version,
};

fn fixtures() -> Option<PathBuf> {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures"
    ));
    if !path.is_dir() {
        eprintln!("skipped: {} is absent", path.display());
        return None;
    }
    Some(path.to_owned())
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn model_key(fixtures: &Path, name: &str) -> [u8; 32] {
    let index = read_json(&fixtures.join("keys/index.json"));
    let secret = index["keys"][name]["secret"].as_str().unwrap();
    hex::decode(secret).unwrap().try_into().unwrap()
}

fn stream_key(model_key: &[u8; 32], version: Version, id: &str) -> Secret<32> {
    Secret::fill_with(|bytes| {
        Hkdf::<Sha256>::new(Some(b"kllm/v1"), model_key)
            .expand(format!("lock/{version}/{id}").as_bytes(), bytes)
            .unwrap();
    })
}

fn dtype_name(dtype: safetensors::Dtype) -> String {
    serde_json::to_value(dtype)
        .unwrap()
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn every_tensor_locks_to_the_reference_and_back() {
    let Some(fixtures) = fixtures() else { return };
    let vectors = fixtures.join("vectors");
    let load = |name: &str| std::fs::read(vectors.join(name)).unwrap();
    let plain_file = load("lock-plain.safetensors");
    let plain = SafeTensors::deserialize(&plain_file).unwrap();
    let index = read_json(&vectors.join("lock-tensors.json"));
    let mut compared = 0;
    for case in index["cases"].as_array().unwrap() {
        let text = |field: &str| case[field].as_str().unwrap();
        let name = text("name");
        let version: Version = text("version").parse().unwrap();
        let tensor = plain.tensor(name).unwrap();
        let packed = name.starts_with("fp4");
        let element = Element::of_dtype(&dtype_name(tensor.dtype()), packed);
        let domain = element.and_then(|element| {
            let mut scan = Scan::new(element);
            scan.update(0, tensor.data()).unwrap();
            scan.domain()
        });
        let entry = &case["entry"];
        if entry.is_null() {
            assert_eq!(domain, None, "{name}");
            continue;
        }
        let domain = domain.unwrap();
        if version == Version::V1 {
            assert_eq!(entry.as_u64(), Some(domain.size()), "{name}");
        } else {
            assert_eq!(entry[0].as_u64(), Some(domain.size()), "{name}");
            assert_eq!(
                entry[1].as_str(),
                Some(domain.element().format().name()),
                "{name}"
            );
        }
        assert!(domain.element().is_coded_by(version));
        let locked_file = load(text("locked"));
        let locked = SafeTensors::deserialize(&locked_file).unwrap();
        let expected = locked.tensor(name).unwrap().data();
        let key = stream_key(
            &model_key(&fixtures, text("key")),
            version,
            text("tensor_id"),
        );
        for implementation in Implementation::available() {
            let lock = Lock::with(implementation, version, &key, domain);
            let mut bytes = tensor.data().to_vec();
            lock.lock(0, &mut bytes).unwrap();
            assert_eq!(bytes, expected, "{name} {version} {implementation:?}");
            lock.unlock(0, &mut bytes).unwrap();
            assert_eq!(bytes, tensor.data(), "{name} {version} {implementation:?}");
        }
        compared += 1;
    }
    assert!(compared > 100, "only {compared}");
}

#[test]
fn what_the_reference_refuses_is_refused() {
    let Some(fixtures) = fixtures() else { return };
    let vectors = fixtures.join("vectors");
    let file = std::fs::read(vectors.join("lock-refused.safetensors")).unwrap();
    for (name, tensor) in SafeTensors::deserialize(&file).unwrap().tensors() {
        let element = Element::of_dtype(&dtype_name(tensor.dtype()), false).unwrap();
        let error = Scan::new(element).update(0, tensor.data()).unwrap_err();
        assert!(
            matches!(error, LockError::NotFinite { .. }),
            "{name}: {error}"
        );
        let lock = Lock::new(
            Version::V2,
            &Secret::fill_with(|_| {}),
            Domain::widest(element),
        );
        let again = lock.lock(0, &mut tensor.data().to_vec()).unwrap_err();
        assert_eq!(again, error, "{name}");
    }
    let index = read_json(&vectors.join("lock-tensors.json"));
    for case in index["refused_to_unlock"].as_array().unwrap() {
        let entry = &case["entry"];
        let (version, size, format) = match entry.as_u64() {
            Some(size) => (Version::V1, size, Format::Float),
            None => {
                let format = Format::from_name(entry[1].as_str().unwrap()).unwrap();
                (Version::V2, entry[0].as_u64().unwrap(), format)
            }
        };
        let dtype = match case["dtype"].as_str().unwrap() {
            "e8m0" => "F8_E8M0".to_owned(),
            other => other.to_uppercase(),
        };
        let element = Element::of_locked(&dtype, format).unwrap();
        let domain = Domain::new(element, size).unwrap();
        let lock = Lock::new(version, &Secret::fill_with(|_| {}), domain);
        let mut bytes = hex::decode(case["hex"].as_str().unwrap()).unwrap();
        let error = lock.unlock(0, &mut bytes).unwrap_err();
        assert!(
            matches!(error, LockError::Outside { .. }),
            "{case}: {error}"
        );
    }
}

/// The offsets, seen through the lock: a tensor of zero codes locks to the offsets' codes.
#[test]
fn offsets_equal_the_reference_from_any_value() {
    let Some(fixtures) = fixtures() else { return };
    let index = read_json(&fixtures.join("vectors/lock-streams.json"));
    let model_key = model_key(&fixtures, index["key"].as_str().unwrap());
    let tensor = index["tensor"].as_str().unwrap();
    let mut compared = 0;
    for (version, cases) in [(Version::V1, &index["v1"]), (Version::V2, &index["v2"])] {
        for case in cases.as_array().unwrap() {
            let element = match case["dtype"].as_str().unwrap() {
                "bf16" => Element::Bf16,
                "f16" => Element::F16,
                "f32" => Element::F32,
                "f8_e4m3fn" => Element::F8E4m3,
                "f8_e5m2" => Element::F8E5m2,
                "e8m0" => Element::E8m0,
                "index" => Element::I64,
                "e2m1x2" => Element::E2m1x2,
                other => panic!("{other}"),
            };
            let span = case["span"].as_u64().unwrap();
            let signed = matches!(element.format(), Format::Float | Format::E2m1x2);
            let size = if signed { span / 2 } else { span };
            let Ok(domain) = Domain::new(element, size) else {
                continue;
            };
            let first = case["first"].as_u64().unwrap_or(0);
            let values: Vec<u64> = case["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|value| value.as_u64().unwrap())
                .collect();
            // Packed pairs start at even values: leave out the first of an odd run.
            let pairs = element.values_per_unit();
            let lead = if first % pairs == 0 { 0 } else { 1 };
            let units = (values.len() - lead) / pairs as usize;
            let at = (first + lead as u64) / pairs * element.width() as u64;
            for implementation in Implementation::available() {
                let key = stream_key(&model_key, version, tensor);
                let lock = Lock::with(implementation, version, &key, domain);
                let mut bytes = vec![0; units * element.width()];
                lock.lock(at, &mut bytes).unwrap();
                let codes = codes(element, &bytes, size);
                assert_eq!(codes, values[lead..lead + codes.len()], "{version} {case}");
                compared += 1;
            }
        }
    }
    assert!(compared > 100, "only {compared}");
}

/// The stream's words up to its last: the widest table's offsets are their upper 31 bits.
#[test]
fn words_equal_the_reference_up_to_the_end_of_the_stream() {
    let Some(fixtures) = fixtures() else { return };
    let index = read_json(&fixtures.join("vectors/lock-streams.json"));
    let key = hex::decode(index["v2_stream_key"].as_str().unwrap()).unwrap();
    for case in index["chacha_words"].as_array().unwrap() {
        let words = hex::decode(case["hex"].as_str().unwrap()).unwrap();
        let words = words
            .chunks_exact(4)
            .map(|w| u32::from_le_bytes(w.try_into().unwrap()) >> 1);
        let words: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        for implementation in Implementation::available() {
            let key = Secret::fill_with(|bytes| bytes.copy_from_slice(&key));
            let domain = Domain::widest(Element::I32);
            let lock = Lock::with(implementation, Version::V2, &key, domain);
            let mut bytes = vec![0; words.len()];
            lock.lock(case["start"].as_u64().unwrap() * 4, &mut bytes)
                .unwrap();
            assert_eq!(bytes, words, "{implementation:?} {case}");
        }
    }
    for case in index["chacha_refusals"].as_array().unwrap() {
        let lock = Lock::new(
            Version::V2,
            &Secret::fill_with(|_| {}),
            Domain::widest(Element::I32),
        );
        let mut bytes = vec![0; case["n"].as_u64().unwrap() as usize * 4];
        let error = lock
            .lock(case["start"].as_u64().unwrap() * 4, &mut bytes)
            .unwrap_err();
        assert_eq!(error, LockError::StreamEnd);
    }
}

/// The indices that locked codes stand for.
fn codes(element: Element, bytes: &[u8], size: u64) -> Vec<u64> {
    let whole = |unit: &[u8]| {
        let mut wide = [0; 8];
        wide[..unit.len()].copy_from_slice(unit);
        u64::from_le_bytes(wide)
    };
    let signed = |code: u64, bits: u32| {
        let sign = code >> (bits - 1);
        (code & !(1 << (bits - 1))) + sign * size
    };
    let units = bytes.chunks_exact(element.width()).map(whole);
    match element {
        Element::E2m1x2 => units
            .flat_map(|u| [signed(u & 15, 4), signed(u >> 4, 4)])
            .collect(),
        _ if element.format() == Format::Float => units
            .map(|u| signed(u, 8 * element.width() as u32))
            .collect(),
        _ => units.collect(),
    }
}

/// Hashes that the reference pins.
#[test]
fn pinned_hashes() {
    let key: [u8; 32] = std::array::from_fn(|at| at as u8);
    let mut plain = Vec::new();
    for k in 0..4000_i32 {
        let value = (((k % 97) - 48) as f32) / 300.0;
        // Nearest even, as the reference's cast.
        let bits = value.to_bits();
        let rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
        plain.extend_from_slice(&(rounded as u16).to_le_bytes());
    }
    let mut scan = Scan::new(Element::Bf16);
    scan.update(0, &plain).unwrap();
    let domain = scan.domain().unwrap();
    assert_eq!(domain.size(), 16000);
    for (version, hash) in [
        (
            Version::V1,
            "4ea4d248244f5afdb7dbfd685aaa146487f630467a15a2c2605e1331adae5aaf",
        ),
        (
            Version::V2,
            "ea589ac4fba455416e2926b5f08df59ba458e5765f5cff338f8567bc90496e87",
        ),
    ] {
        let key = stream_key(&key, version, "layers.0.w");
        let mut locked = plain.clone();
        Lock::new(version, &key, domain)
            .lock(0, &mut locked)
            .unwrap();
        assert_eq!(hex::encode(Sha256::digest(&locked)), hash, "{version}");
    }
}

/// Every record that the reference wrote reads, fits its shard, and comes out again to the byte.
#[test]
fn records_repeat() {
    let Some(fixtures) = fixtures() else { return };
    let index = read_json(&fixtures.join("sealed/index.json"));
    let mut records = 0;
    for case in index["cases"].as_array().unwrap() {
        let Some(version) = case["lock"].as_str() else {
            continue;
        };
        let version: Version = version.parse().unwrap();
        for file in case["files"].as_object().unwrap().keys() {
            if !file.ends_with(".safetensors") {
                continue;
            }
            let path = fixtures
                .join("sealed")
                .join(case["sealed"].as_str().unwrap())
                .join(file);
            let bytes = std::fs::read(path).unwrap();
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            let metadata = header.metadata().as_ref();
            let Some(text) = metadata.and_then(|metadata| metadata.get(HEADER_KEY)) else {
                continue;
            };
            let table = LockTable::parse(text, version).unwrap();
            let dtypes = header.tensors().into_iter();
            let dtypes: Vec<_> = dtypes
                .map(|(name, info)| (name, dtype_name(info.dtype)))
                .collect();
            table
                .check(dtypes.iter().map(|(n, d)| (n.as_str(), d.as_str())))
                .unwrap();
            assert_eq!(&table.to_text(), text, "{file}");
            let other = if version == Version::V1 {
                Version::V2
            } else {
                Version::V1
            };
            let error = LockTable::parse(text, other).unwrap_err();
            assert!(matches!(error, RecordError::OtherVersion { .. }), "{error}");
            records += 1;
        }
    }
    assert!(records > 20, "only {records}");
}

#[test]
fn bad_records_are_refused_by_name() {
    let Some(fixtures) = fixtures() else { return };
    let cases = [
        ("absent-tensor", "which the shard does not hold"),
        ("unknown-format", "\"e3m4\" is not a format"),
        (
            "wrong-format-for-dtype",
            "format e8m0 does not fit dtype BF16",
        ),
        ("record-not-json", "kllm.lock: "),
        ("outside-domain", "lm_head.weight"),
    ];
    for (name, message) in cases {
        let path = format!("bad/sealed/{name}/model-00001-of-00001.safetensors");
        let bytes = std::fs::read(fixtures.join(path)).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let text = &header.metadata().as_ref().unwrap()[HEADER_KEY];
        let dtypes: Vec<_> = header
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, dtype_name(info.dtype)))
            .collect();
        let error = LockTable::parse(text, Version::V2)
            .and_then(|table| table.check(dtypes.iter().map(|(n, d)| (n.as_str(), d.as_str()))))
            .unwrap_err();
        assert!(error.to_string().contains(message), "{name}: {error}");
    }
    assert_eq!(
        "v9".parse::<Version>().unwrap_err().to_string(),
        "lock version \"v9\" is not one this reads (v1, v2)"
    );
}
