//! Where a container was written: compared on load, never enforced.

use codec::{DecodeError, Reader, Writer};

/// The host, device and program that wrote a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriterFingerprint {
    /// Host name.
    pub host: String,
    /// Device name.
    pub device: String,
    /// Program and version.
    pub writer: String,
    /// Device memory in bytes.
    pub vram: u64,
}

impl WriterFingerprint {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut text = |field| {
            let length = usize::from(reader.u16(field)?);
            reader
                .text(field, length, usize::from(u16::MAX))
                .map(str::to_owned)
        };
        let (host, device, writer) = (text("Host")?, text("Device")?, text("Writer")?);
        let vram = reader.u64("VRAM")?;
        reader.finish("fingerprint")?;
        Ok(Self {
            host,
            device,
            writer,
            vram,
        })
    }

    /// `None` when a text is longer than 65535 bytes.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Writer::new();
        for text in [&self.host, &self.device, &self.writer] {
            out.u16(u16::try_from(text.len()).ok()?);
            out.bytes(text.as_bytes());
        }
        out.u64(self.vram);
        Some(out.into_bytes())
    }
}
