//! The byte-level alphabet: one printable character per byte (GPT-2's table).

/// The character that stands for each byte.
pub(crate) fn characters() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        table[usize::from(byte)] = if is_printable(byte) {
            char::from(byte)
        } else {
            let stand_in = char::from_u32(next).expect("0x100..0x143 are characters");
            next += 1;
            stand_in
        };
    }
    table
}

/// The byte each character of the alphabet stands for, over characters below [`LIMIT`].
#[derive(Debug)]
pub(crate) struct Bytes([Option<u8>; LIMIT]);

impl Bytes {
    pub(crate) fn new() -> Self {
        let mut table = [None; LIMIT];
        for (byte, character) in (0..=255u8).zip(characters()) {
            table[character as usize] = Some(byte);
        }
        Self(table)
    }

    /// The bytes of a token's text; `None` when a character is not of the alphabet.
    pub(crate) fn of(&self, text: &str) -> Option<Vec<u8>> {
        text.chars()
            .map(|c| self.0.get(c as usize).copied().flatten())
            .collect()
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// 256 plus the 68 bytes that need a stand-in.
const LIMIT: usize = 0x144;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let table = Bytes::new();
        for (byte, character) in (0..=255u8).zip(characters()) {
            assert_eq!(table.of(&character.to_string()), Some(vec![byte]));
        }
        assert_eq!(characters()[usize::from(b' ')], 'Ġ');
        assert_eq!(characters()[usize::from(b'\n')], 'Ċ');
        assert_eq!(table.of("a b"), None);
        assert_eq!(table.of("▁"), None);
    }
}
