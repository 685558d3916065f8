use std::collections::BTreeSet;

use identifiers::SpiffeId;

use crate::peer::Peer;

/// Workloads and certificates that are refused though their certificates are valid.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DenyList {
    ids: BTreeSet<SpiffeId>,
    serials: BTreeSet<String>,
}

impl DenyList {
    /// Reads one entry a line: a SPIFFE id, or `serial:` and a certificate's serial number in hex.
    /// Blank lines and lines that start with `#` say nothing. The error is the line's number.
    pub fn parse(text: &str) -> Result<Self, usize> {
        let mut list = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line.strip_prefix("serial:") {
                Some(serial) => {
                    let bytes = hex::decode(serial).map_err(|_| index + 1)?;
                    list.serials.insert(hex::encode(bytes));
                }
                None => {
                    list.ids.insert(line.parse().map_err(|_| index + 1)?);
                }
            }
        }
        Ok(list)
    }

    /// Whether the peer is refused, by id or by serial number.
    #[must_use]
    pub fn contains(&self, peer: &Peer) -> bool {
        self.ids.contains(&peer.spiffe) || self.serials.contains(&peer.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer {
            spiffe: "spiffe://test/sealer/one".parse().unwrap(),
            cert_sha256: [0; 32],
            not_after: 0,
            serial: "00ab".to_owned(),
        }
    }

    #[test]
    fn ids_and_serials_are_denied() {
        let by_id = DenyList::parse("# gone\n\nspiffe://test/sealer/one\n").unwrap();
        assert!(by_id.contains(&peer()));
        let by_serial = DenyList::parse("serial:00AB").unwrap();
        assert!(by_serial.contains(&peer()));
        let other = DenyList::parse("serial:ab\nspiffe://test/sealer/two").unwrap();
        assert!(!other.contains(&peer()));
    }

    #[test]
    fn a_malformed_line_is_named() {
        assert_eq!(DenyList::parse("\nserial:xyz"), Err(2));
        assert_eq!(DenyList::parse("sealer/one"), Err(1));
    }
}
