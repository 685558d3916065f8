//! The published known answers, and every rule of the contract broken one at a time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use identifiers::Sha256Digest;
use proptest::prelude::*;
use serde_json::{Value, json};
use shard_identity::{Comparison, ManifestError, Question, Shard, ShardManifest, compare};

fn shard(filename: &str, size_bytes: u64, byte: u8) -> Shard {
    Shard {
        filename: filename.to_owned(),
        size_bytes,
        sha256: Sha256Digest::new([byte; 32]),
    }
}

fn two() -> ShardManifest {
    ShardManifest::new(vec![
        shard("b.safetensors", 11, 0x11),
        shard("a.safetensors", 22, 0x22),
    ])
    .unwrap()
}

#[test]
fn published_aggregates() {
    let one = ShardManifest::new(vec![shard("model.safetensors", 11, 0x42)]).unwrap();
    assert_eq!(
        one.aggregate().to_hex(),
        "c62f9f56234c61c943716ae3b8783c851fb41a2551e31f17d15f1b0c346339b5"
    );
    assert_eq!(
        two().aggregate().to_hex(),
        "813979f1d3dd938e49874427651a97344cd1af5409e75aceaa741707616cd7a5"
    );
}

#[test]
fn json_has_the_contracts_field_order_and_reads_back() {
    let text = two().to_json();
    let value: Value = serde_json::from_str(&text).unwrap();
    let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "schema_version",
            "manifest_type",
            "aggregate_algorithm",
            "aggregate_sha256",
            "total_size_bytes",
            "shards"
        ]
    );
    let shard: Vec<&String> = value["shards"][0].as_object().unwrap().keys().collect();
    assert_eq!(shard, ["filename", "size_bytes", "sha256"]);
    assert_eq!(ShardManifest::from_json(text.as_bytes()).unwrap(), two());
}

#[test]
fn every_broken_rule_is_refused() {
    let good: Value = serde_json::from_str(&two().to_json()).unwrap();
    type Break = fn(&mut Value);

    let broken: &[(&str, Break)] = &[
        ("schema_version", |v| v["schema_version"] = json!(2)),
        ("manifest_type", |v| {
            v["manifest_type"] = json!("kiln.base-weight-shards.v2")
        }),
        ("aggregate_algorithm", |v| {
            v["aggregate_algorithm"] = json!("sha256")
        }),
        ("aggregate_sha256 is", |v| {
            v["aggregate_sha256"] = json!(format!("sha256:{}", "0".repeat(64)));
        }),
        ("64 lowercase hex", |v| {
            v["shards"][0]["sha256"] = json!(format!("sha256:{}", "A".repeat(64)));
        }),
        ("prefix", |v| {
            v["shards"][0]["sha256"] = json!("22".repeat(32))
        }),
        ("total_size_bytes", |v| v["total_size_bytes"] = json!(34)),
        ("size_bytes is 0", |v| {
            v["shards"][0]["size_bytes"] = json!(0)
        }),
        ("overflow", |v| {
            v["shards"][0]["size_bytes"] = json!(u64::MAX)
        }),
        ("unknown field", |v| v["extra"] = json!(1)),
        ("unknown field", |v| v["shards"][1]["extra"] = json!(1)),
        ("0 shards", |v| v["shards"] = json!([])),
        ("not sorted", |v| {
            v["shards"].as_array_mut().unwrap().reverse()
        }),
        ("occurs twice", |v| {
            v["shards"][1]["filename"] = json!("a.safetensors")
        }),
        ("not a portable", |v| {
            v["shards"][0]["filename"] = json!("a/b.safetensors")
        }),
        ("not a portable", |v| {
            v["shards"][0]["filename"] = json!("a b.safetensors")
        }),
        ("not a portable", |v| {
            v["shards"][0]["filename"] = json!("a.SAFETENSORS")
        }),
        ("not a portable", |v| {
            v["shards"][0]["filename"] = json!("é.safetensors")
        }),
        ("not a portable", |v| {
            v["shards"][0]["filename"] = json!(format!("{}.safetensors", "a".repeat(244)));
        }),
    ];
    for (expected, change) in broken {
        let mut value = good.clone();
        change(&mut value);
        let error = ShardManifest::from_json(value.to_string().as_bytes()).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn at_most_4096_shards_and_the_largest_size() {
    let many = |n: usize| {
        (0..n)
            .map(|i| shard(&format!("{i:05}.safetensors"), 1, 1))
            .collect()
    };
    assert!(ShardManifest::new(many(4096)).is_ok());
    assert_eq!(
        ShardManifest::new(many(4097)),
        Err(ManifestError::ShardCount(4097))
    );
    assert!(ShardManifest::new(vec![shard("a.safetensors", u64::MAX, 1)]).is_ok());
}

#[test]
fn comparing_follows_the_decision_table() {
    let renamed = ShardManifest::new(vec![
        shard("x.safetensors", 11, 0x11),
        shard("y.safetensors", 22, 0x22),
    ])
    .unwrap();
    let other = ShardManifest::new(vec![shard("b.safetensors", 11, 0x11)]).unwrap();
    let same = compare(Question::SameWeights, Some(&two()), Some(&renamed));
    assert_eq!(same, Comparison::SameBytes { also_needed: &[] });
    let Comparison::SameBytes { also_needed } =
        compare(Question::ExactResume, Some(&two()), Some(&renamed))
    else {
        panic!("the bytes are the same");
    };
    assert!(also_needed.contains(&"optimizer"));
    assert_eq!(
        compare(Question::SameWeights, Some(&two()), Some(&other)),
        Comparison::Different
    );
    assert_eq!(
        compare(Question::ExactResume, Some(&two()), None),
        Comparison::Unproven
    );
}

proptest! {
    #[test]
    fn the_aggregate_depends_on_content_alone(
        records in proptest::collection::vec((any::<[u8; 32]>(), 1_u64..1 << 40), 1..20),
        rotation in 0_usize..20,
    ) {
        let named = |prefix: &str, records: &[([u8; 32], u64)]| {
            ShardManifest::new(
                records
                    .iter()
                    .enumerate()
                    .map(|(i, (digest, size))| Shard {
                        filename: format!("{prefix}{i}.safetensors"),
                        size_bytes: *size,
                        sha256: Sha256Digest::new(*digest),
                    })
                    .collect(),
            )
            .unwrap()
        };
        let mut rotated = records.clone();
        rotated.rotate_left(rotation % records.len());
        prop_assert_eq!(named("a", &records).aggregate(), named("b", &rotated).aggregate());
        let mut grown = records.clone();
        grown[0].1 += 1;
        prop_assert_ne!(named("a", &records).aggregate(), named("a", &grown).aggregate());
        let mut repeated = records.clone();
        repeated.push(records[0]);
        prop_assert_ne!(named("a", &records).aggregate(), named("a", &repeated).aggregate());
    }
}
