//! What the fuzz target runs: any file is a finding or a structure whose units lie in it.

#![allow(clippy::unwrap_used, reason = "test support")]

use std::convert::Infallible;

use sealed_jlm::fsck;

/// A whole file.
pub fn sealed(data: &[u8]) {
    let mut read = |span: jlm::Span, out: &mut [u8]| {
        out.copy_from_slice(&data[span.offset as usize..][..span.length as usize]);
        Ok::<_, Infallible>(())
    };
    let Ok(result) = fsck(data.len() as u64, &mut read);
    if let Ok(header) = result {
        for unit in header.container().units().take(1 << 12) {
            let span = header.container().unit(unit).unwrap();
            assert!(span.end().unwrap() <= data.len() as u64, "{unit}");
        }
    }
}
