//! Bodies of the fuzz targets.

use weight_lock::{LockTable, Version};

/// A lock record of either version: what is accepted comes out as its canonical text, which reads
/// as the same record.
pub fn record(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for version in [Version::V1, Version::V2] {
        let Ok(table) = LockTable::parse(text, version) else {
            continue;
        };
        let canonical = table.to_text();
        let again = LockTable::parse(&canonical, version).expect("what was written reads");
        assert_eq!(again.to_text(), canonical);
        assert_eq!(again.entries().len(), table.entries().len());
        for (tensor, _) in table.entries() {
            for dtype in ["BF16", "F8_E8M0", "I64", "U8", "BOOL"] {
                let _ = table.domain(tensor, dtype);
            }
        }
    }
}
