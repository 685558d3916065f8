//! One source block's payload as the words of the packed layout, and back (spec: container, B.6).
//!
//! A block's words are those of its sub-blocks in order, each sub-block's primary words first.
//! Words are little-endian: byte `j` of a sub-block is byte `j % 4` of word `j / 4`.

use crate::dtype::DType;

/// Payload words of the largest block (Q6_K: 16 sub-blocks of 3 words).
pub(crate) const MAX_WORDS: usize = 48;
pub(crate) type Words = [u32; MAX_WORDS];

/// Payload of a block to words.
pub(crate) fn to_words(dtype: DType, block: &[u8], words: &mut Words) {
    match dtype {
        DType::Q4 => copy(&block[2..18], words),
        DType::Q8 => copy(&block[2..34], words),
        DType::Mx4 => copy(&block[1..17], words),
        DType::Q5 => {
            copy(&block[6..22], words);
            words[4] = scatter_bits(word(block, 2));
        }
        DType::Q51 => {
            copy(&block[8..24], words);
            words[4] = scatter_bits(word(block, 4));
        }
        DType::Q4S => nibbles_to_words::<4>(&block[16..144], words),
        DType::Q5S => {
            nibbles_to_words::<5>(&block[48..176], words);
            let high: [u32; 8] = std::array::from_fn(|i| word(block, 16 + 4 * i));
            for sub in 0..8 {
                words[sub * 5 + 4] =
                    (0..8).fold(0, |bits, i| bits | (((high[i] >> sub) & ONES) << i));
            }
        }
        DType::Q6S => q6_to_words(block, words),
        DType::Q3S => q3_to_words(block, words),
        DType::F32 | DType::F16 | DType::Bf16 => {}
    }
}

/// Words to the payload of a block; scales are left alone.
pub(crate) fn from_words(dtype: DType, words: &Words, block: &mut [u8]) {
    match dtype {
        DType::Q4 => paste(words, &mut block[2..18]),
        DType::Q8 => paste(words, &mut block[2..34]),
        DType::Mx4 => paste(words, &mut block[1..17]),
        DType::Q5 => {
            paste(words, &mut block[6..22]);
            put(block, 2, gather_bits(words[4]));
        }
        DType::Q51 => {
            paste(words, &mut block[8..24]);
            put(block, 4, gather_bits(words[4]));
        }
        DType::Q4S => words_to_nibbles::<4>(words, &mut block[16..144]),
        DType::Q5S => {
            words_to_nibbles::<5>(words, &mut block[48..176]);
            for i in 0..8 {
                let high = (0..8).fold(0, |bits, sub| {
                    bits | (((words[sub * 5 + 4] >> i) & ONES) << sub)
                });
                put(block, 16 + 4 * i, high);
            }
        }
        DType::Q6S => words_to_q6(words, block),
        DType::Q3S => words_to_q3(words, block),
        DType::F32 | DType::F16 | DType::Bf16 => {}
    }
}

/// The elements of one sub-block, as stored (before bias and sign).
pub(crate) fn elements(dtype: DType, sub_words: &[u32], out: &mut [u8; 32]) {
    let Some(format) = dtype.packed() else { return };
    let (sub, primary) = (
        format.sub as usize,
        (format.sub * format.bits / 32) as usize,
    );
    let byte = |j: usize| (sub_words[j / 4] >> (8 * (j % 4))) as u8;
    if format.bits == 8 {
        (0..sub).for_each(|j| out[j] = byte(j));
        return;
    }
    for j in 0..sub / 2 {
        let pair = byte(j);
        out[j] = pair & 15;
        out[j + sub / 2] = pair >> 4;
    }
    if format.high > 0 {
        let (high, mask) = (sub_words[primary], (1u32 << format.high) - 1);
        for (l, element) in out[..sub].iter_mut().enumerate() {
            let shift = 8 * (l % 4) + format.high as usize * (l / 4);
            *element |= (((high >> shift) & mask) as u8) << 4;
        }
    }
}

/// Q4_K and Q5_K: 64 elements a group, the low nibbles then the high ones; `W` words a sub-block.
fn nibbles_to_words<const W: usize>(qs: &[u8], words: &mut Words) {
    for group in 0..4 {
        for i in 0..4 {
            let (a, b) = (
                word(qs, 32 * group + 4 * i),
                word(qs, 32 * group + 16 + 4 * i),
            );
            words[2 * group * W + i] = (a & LOW) | ((b & LOW) << 4);
            words[(2 * group + 1) * W + i] = ((a >> 4) & LOW) | (b & HIGH);
        }
    }
}

fn words_to_nibbles<const W: usize>(words: &Words, qs: &mut [u8]) {
    for group in 0..4 {
        for i in 0..4 {
            let (even, odd) = (words[2 * group * W + i], words[(2 * group + 1) * W + i]);
            put(qs, 32 * group + 4 * i, (even & LOW) | ((odd & LOW) << 4));
            put(
                qs,
                32 * group + 16 + 4 * i,
                ((even >> 4) & LOW) | (odd & HIGH),
            );
        }
    }
}

/// Q6_K: halves of 128 elements; quarter `q` of a half has its low nibbles in `ql` and its two
/// high bits in `qh` at bit `2q`. Sub-blocks have 16 elements: words 0, 1 nibbles, 2 high bits.
fn q6_to_words(block: &[u8], words: &mut Words) {
    for half in 0..2 {
        for quarter in 0..4 {
            let ql = 64 * half + 32 * (quarter % 2);
            for part in 0..2 {
                let out = 3 * (8 * half + 2 * quarter + part);
                let low =
                    |i: usize| (word(block, ql + 16 * part + 4 * i) >> (4 * (quarter / 2))) & LOW;
                let high = |i: usize| {
                    (word(block, 128 + 32 * half + 16 * part + 4 * i) >> (2 * quarter)) & TWOS
                };
                words[out] = low(0) | (low(2) << 4);
                words[out + 1] = low(1) | (low(3) << 4);
                words[out + 2] = (0..4).fold(0, |bits, i| bits | (high(i) << (2 * i)));
            }
        }
    }
}

fn words_to_q6(words: &Words, block: &mut [u8]) {
    block[..192].fill(0);
    for half in 0..2 {
        for quarter in 0..4 {
            let ql = 64 * half + 32 * (quarter % 2);
            for part in 0..2 {
                let from = 3 * (8 * half + 2 * quarter + part);
                for i in 0..4 {
                    let low = (words[from + i % 2] >> (4 * (i / 2))) & LOW;
                    or(block, ql + 16 * part + 4 * i, low << (4 * (quarter / 2)));
                    let high = (words[from + 2] >> (2 * i)) & TWOS;
                    or(
                        block,
                        128 + 32 * half + 16 * part + 4 * i,
                        high << (2 * quarter),
                    );
                }
            }
        }
    }
}

/// Q3_K: halves of 128 elements; quarter `q` of a half has its low two bits in `qs` at bit `2q`
/// and its third bit in `hmask` at bit `4 * half + q`. Sub-blocks have 16 elements.
fn q3_to_words(block: &[u8], words: &mut Words) {
    for half in 0..2 {
        for quarter in 0..4 {
            for part in 0..2 {
                let out = 2 * (8 * half + 2 * quarter + part);
                let value = |i: usize| {
                    let at = 16 * part + 4 * i;
                    let low = (word(block, 32 + 32 * half + at) >> (2 * quarter)) & TWOS;
                    let high = (word(block, at) >> (4 * half + quarter)) & ONES;
                    low | (high << 2)
                };
                words[out] = value(0) | (value(2) << 4);
                words[out + 1] = value(1) | (value(3) << 4);
            }
        }
    }
}

fn words_to_q3(words: &Words, block: &mut [u8]) {
    block[..96].fill(0);
    for half in 0..2 {
        for quarter in 0..4 {
            for part in 0..2 {
                let from = 2 * (8 * half + 2 * quarter + part);
                for i in 0..4 {
                    let value = (words[from + i % 2] >> (4 * (i / 2))) & LOW;
                    let at = 16 * part + 4 * i;
                    or(block, 32 + 32 * half + at, (value & TWOS) << (2 * quarter));
                    or(block, at, ((value >> 2) & ONES) << (4 * half + quarter));
                }
            }
        }
    }
}

/// Bit `l` (element `l`) to byte `l % 4`, bit `l / 4`.
fn scatter_bits(bits: u32) -> u32 {
    (0..8).fold(0, |out, i| {
        let four = (bits >> (4 * i)) & 15;
        // Bits 0..3 to bits 0, 8, 16, 24.
        out | ((four.wrapping_mul(0x0020_4081) & ONES) << i)
    })
}

fn gather_bits(word: u32) -> u32 {
    (0..32).fold(0, |out, l| {
        out | (((word >> (8 * (l % 4) + l / 4)) & 1) << l)
    })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

fn or(bytes: &mut [u8], at: usize, bits: u32) {
    let word = word(bytes, at) | bits;
    put(bytes, at, word);
}

fn copy(bytes: &[u8], words: &mut Words) {
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
}

fn paste(words: &Words, bytes: &mut [u8]) {
    for (word, bytes) in words.iter().zip(bytes.as_chunks_mut::<4>().0) {
        *bytes = word.to_le_bytes();
    }
}

const ONES: u32 = 0x0101_0101;
const TWOS: u32 = 0x0303_0303;
const LOW: u32 = 0x0f0f_0f0f;
const HIGH: u32 = 0xf0f0_f0f0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattering_bits_is_undone_by_gathering() {
        for bits in [0, 1, 0x8000_0000, 0xdead_beef, u32::MAX] {
            assert_eq!(gather_bits(scatter_bits(bits)), bits);
        }
        assert_eq!(scatter_bits(1 << 5), 1 << 9, "element 5: byte 1, bit 1");
    }
}
