//! Bodies of the fuzz targets.

#![allow(dead_code, reason = "each fuzz target uses one of them")]

use checkpoint::json::{self, Style, Value};
use checkpoint::{Header, Index, PlannedShard, TensorSpec};

/// A safetensors file: what is accepted covers its data exactly and can be laid out again.
pub fn header(bytes: &[u8]) {
    let Ok(header) = Header::parse_file(bytes) else {
        return;
    };
    let covered: u64 = header.tensors().iter().map(|info| info.bytes).sum();
    assert_eq!(header.data_start() + covered, bytes.len() as u64);
    let tensors = header.tensors().iter().map(TensorSpec::from).collect();
    let plan = PlannedShard::in_order("x.safetensors", tensors).expect("readers took it");
    let mut again = plan.header(header.metadata(), 0);
    again.extend_from_slice(&bytes[header.data_start() as usize..]);
    let again = Header::parse_file(&again).expect("what was written reads");
    assert_eq!(again.metadata(), header.metadata());
    assert_eq!(again.tensors().len(), header.tensors().len());
}

/// An index: what is accepted comes out again.
pub fn index(bytes: &[u8]) {
    let Ok(index) = Index::parse(bytes) else {
        return;
    };
    let entries = index.weight_map().iter();
    let text = Index::encode(entries.map(|(tensor, shard)| (tensor.as_str(), shard.as_str())));
    assert_eq!(Index::parse(text.as_bytes()).as_ref(), Ok(&index));
}

/// JSON: every style reads back to the same value.
pub fn json(bytes: &[u8]) {
    let Ok(value) = json::parse(bytes) else {
        return;
    };
    for style in [Style::Indented, Style::Utf8, Style::Ascii] {
        let text = json::write(&value, style);
        let again = json::parse(text.as_bytes()).expect("what was written reads");
        assert_eq!(json::write(&again, style), text);
        assert!(again == value || holds_nan(&value));
    }
}

fn holds_nan(value: &Value) -> bool {
    match value {
        Value::Float(value) => value.is_nan(),
        Value::Array(items) => items.iter().any(holds_nan),
        Value::Object(entries) => entries.iter().any(|(_, value)| holds_nan(value)),
        _ => false,
    }
}
