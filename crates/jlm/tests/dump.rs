//! The dump of every container equals the reference's, field for field.

#![allow(clippy::unwrap_used, reason = "test support")]

mod fixtures;

use std::convert::Infallible;

use serde_json::Value;

#[test]
fn every_container_dumps_as_the_reference_does() {
    for (name, bytes) in fixtures::containers() {
        let mut read = |span: jlm::Span, out: &mut [u8]| {
            out.copy_from_slice(&bytes[span.offset as usize..span.end().unwrap() as usize]);
            Ok::<_, Infallible>(())
        };
        let ours = jlm::dump(&name, bytes.len() as u64, &mut read).unwrap();
        let theirs = fixtures::json(&format!("dumps/{}", name.replace(".jlm", ".json"))).unwrap();
        compare(&name, &ours, &theirs);
    }
}

/// Field by field, so that a difference is named.
fn compare(path: &str, ours: &Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = |map: &serde_json::Map<String, Value>| {
                let mut keys: Vec<_> = map.keys().cloned().collect();
                keys.sort();
                keys
            };
            assert_eq!(keys(a), keys(b), "{path}");
            a.iter()
                .for_each(|(key, value)| compare(&format!("{path}.{key}"), value, &b[key]));
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{path}");
            for (at, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{at}]"), a, b);
            }
        }
        _ => assert_eq!(ours, theirs, "{path}"),
    }
}
