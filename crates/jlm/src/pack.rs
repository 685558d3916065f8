//! Source blocks to planes and back (spec: container, B.6).

use crate::block::{self, MAX_WORDS, Words};
use crate::dtype::{DType, PackedFormat};
use crate::error::JlmError;

/// The three planes of a sheet, to be read.
#[derive(Debug, Clone, Copy)]
pub struct PlaneBytes<'a> {
    /// Payload.
    pub qs: &'a [u8],
    /// Scales of super-blocks.
    pub d: &'a [u8],
    /// Scales of sub-blocks.
    pub sc: &'a [u8],
}

/// The three planes of a sheet, to be written.
#[derive(Debug)]
pub struct PlaneBytesMut<'a> {
    /// Payload.
    pub qs: &'a mut [u8],
    /// Scales of super-blocks.
    pub d: &'a mut [u8],
    /// Scales of sub-blocks.
    pub sc: &'a mut [u8],
}

/// A sheet's shape: `rows` rows of `k` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sheet {
    /// Its type.
    pub dtype: DType,
    /// Elements of a row.
    pub k: usize,
    /// Rows.
    pub rows: usize,
}

impl Sheet {
    /// Packs source blocks (row after row, as a GGUF holds them) into planes.
    ///
    /// Every slice must have the length that the type and shape give.
    pub fn pack(&self, source: &[u8], planes: PlaneBytesMut<'_>) -> Result<(), JlmError> {
        let Some(format) = self.dtype.packed() else {
            return check_len(source.len(), planes.qs.len())
                .map(|()| planes.qs.copy_from_slice(source));
        };
        let lens = self.check(&format, planes.qs.len(), planes.d.len(), planes.sc.len())?;
        check_len(source.len(), lens)?;
        let shape = Shape::new(self, &format);
        planes.d.fill(0);
        planes.sc.fill(0);
        let mut tile = [[0; MAX_WORDS]; TILE];
        for first in (0..self.rows).step_by(TILE) {
            let rows = TILE.min(self.rows - first);
            for at in 0..shape.blocks {
                for (row, words) in tile[..rows].iter_mut().enumerate() {
                    let ordinal = (first + row) * shape.blocks + at;
                    let from = ordinal * shape.block_bytes;
                    let bytes = &source[from..from + shape.block_bytes];
                    block::to_words(self.dtype, bytes, words);
                    self.pack_scales(bytes, first + row, at, planes.d, planes.sc)
                        .map_err(|reason| self.refuse(ordinal, reason))?;
                }
                shape.store(&tile[..rows], first, at, planes.qs);
            }
        }
        Ok(())
    }

    /// Planes back to source blocks: the inverse of [`Self::pack`] (an MXFP4 block of zeros
    /// comes back with exponent 1).
    pub fn unpack(&self, planes: PlaneBytes<'_>, out: &mut [u8]) -> Result<(), JlmError> {
        let Some(format) = self.dtype.packed() else {
            return check_len(planes.qs.len(), out.len()).map(|()| out.copy_from_slice(planes.qs));
        };
        let lens = self.check(&format, planes.qs.len(), planes.d.len(), planes.sc.len())?;
        check_len(out.len(), lens)?;
        let shape = Shape::new(self, &format);
        let mut words = [0; MAX_WORDS];
        for row in 0..self.rows {
            for at in 0..shape.blocks {
                shape.load(planes.qs, row, at, &mut words);
                let from = (row * shape.blocks + at) * shape.block_bytes;
                let bytes = &mut out[from..from + shape.block_bytes];
                block::from_words(self.dtype, &words, bytes);
                self.unpack_scales(planes, row, at, bytes);
            }
        }
        Ok(())
    }

    /// The values of row `row`, in element order; `out` has `k` places.
    ///
    /// Arithmetic is the reference's: see B.6 of the container's spec.
    pub fn dequantize_row(
        &self,
        planes: PlaneBytes<'_>,
        row: usize,
        out: &mut [f32],
    ) -> Result<(), JlmError> {
        check_len(out.len(), self.k)?;
        if row >= self.rows {
            return Err(JlmError::Model("a row past the sheet's last was asked for"));
        }
        let Some(format) = self.dtype.packed() else {
            let width = self.dtype.value_bytes().unwrap_or(1) as usize;
            check_len(planes.qs.len(), self.k * self.rows * width)?;
            let bytes = &planes.qs[row * self.k * width..(row + 1) * self.k * width];
            floats(self.dtype, bytes, out);
            return Ok(());
        };
        self.check(&format, planes.qs.len(), planes.d.len(), planes.sc.len())?;
        let shape = Shape::new(self, &format);
        let mut words: Words = [0; MAX_WORDS];
        let mut elements = [0; 32];
        let (sub, width) = (format.sub as usize, format.words() as usize);
        for (at, values) in out.chunks_exact_mut(shape.block_elements).enumerate() {
            shape.load(planes.qs, row, at, &mut words);
            for (i, values) in values.chunks_exact_mut(sub).enumerate() {
                block::elements(
                    self.dtype,
                    &words[i * width..(i + 1) * width],
                    &mut elements,
                );
                let scale = self.scale(planes, row, at, i);
                for (value, element) in values.iter_mut().zip(elements) {
                    *value = scale.value(element);
                }
            }
        }
        Ok(())
    }

    /// Checks the planes' lengths; gives the source's.
    fn check(
        &self,
        format: &PackedFormat,
        qs: usize,
        d: usize,
        sc: usize,
    ) -> Result<usize, JlmError> {
        let lens = self
            .dtype
            .planes(self.k as u64, self.rows as u64)
            .ok_or(JlmError::Model("a row is not a whole number of blocks"))?;
        for (given, needed) in [(qs, lens.qs), (d, lens.d), (sc, lens.sc)] {
            check_len(given, needed as usize)?;
        }
        Ok(self.k / format.block_elements as usize * self.rows * format.block_bytes as usize)
    }

    fn refuse(&self, block: usize, reason: &'static str) -> JlmError {
        JlmError::Block {
            format: self.dtype.ggml().0,
            block: block as u64,
            reason,
        }
    }

    fn pack_scales(
        &self,
        block: &[u8],
        row: usize,
        at: usize,
        d: &mut [u8],
        sc: &mut [u8],
    ) -> Result<(), &'static str> {
        let half = |at: usize| [block[at], block[at + 1]];
        match self.dtype {
            DType::Q4 | DType::Q8 | DType::Q5 => {
                let slot = self.d_word(row, at, 2) + 2 * (row % 2);
                d[slot..slot + 2].copy_from_slice(&half(0));
            }
            DType::Mx4 => d[self.d_word(row, at, 4) + row % 4] = e8m0(block)?,
            DType::Q51 => {
                let slot = self.d_word(row, at, 1);
                d[slot..slot + 2].copy_from_slice(&half(0));
                d[slot + 2..slot + 4].copy_from_slice(&[block[2], block[3] ^ 0x80]);
            }
            DType::Q4S | DType::Q5S => {
                let slot = self.d_word(row, at, 1);
                d[slot..slot + 4].copy_from_slice(&block[..4]);
                for (w, word) in k_scale_stream(&block[4..16]).into_iter().enumerate() {
                    let slot = self.sc_word(row, at * 3 + w);
                    sc[slot..slot + 4].copy_from_slice(&word.to_le_bytes());
                }
            }
            DType::Q3S => {
                let slot = self.d_word(row, at, 1);
                d[slot..slot + 2].copy_from_slice(&half(108));
                for (i, scale) in q3_scales(&block[96..108]).into_iter().enumerate() {
                    sc[self.sc_word(row, at * 4 + i / 4) + i % 4] = scale;
                }
            }
            DType::Q6S => {
                let slot = self.d_word(row, at, 1);
                d[slot..slot + 2].copy_from_slice(&half(208));
                for (i, scale) in block[192..208].iter().enumerate() {
                    sc[self.sc_word(row, at * 4 + i / 4) + i % 4] = scale ^ 0x80;
                }
            }
            DType::F32 | DType::F16 | DType::Bf16 => {}
        }
        Ok(())
    }

    fn unpack_scales(&self, planes: PlaneBytes<'_>, row: usize, at: usize, block: &mut [u8]) {
        let PlaneBytes { d, sc, .. } = planes;
        match self.dtype {
            DType::Q4 | DType::Q8 | DType::Q5 => {
                let slot = self.d_word(row, at, 2) + 2 * (row % 2);
                block[..2].copy_from_slice(&d[slot..slot + 2]);
            }
            DType::Mx4 => {
                let byte = d[self.d_word(row, at, 4) + row % 4];
                block[0] = byte.saturating_add(1);
            }
            DType::Q51 => {
                let slot = self.d_word(row, at, 1);
                block[..4].copy_from_slice(&d[slot..slot + 4]);
                block[3] ^= 0x80;
            }
            DType::Q4S | DType::Q5S => {
                let slot = self.d_word(row, at, 1);
                block[..4].copy_from_slice(&d[slot..slot + 4]);
                k_scale_bytes(self.k_scales(sc, row, at), &mut block[4..16]);
            }
            DType::Q3S => {
                let slot = self.d_word(row, at, 1);
                block[108..110].copy_from_slice(&d[slot..slot + 2]);
                let scales: [u8; 16] =
                    std::array::from_fn(|i| sc[self.sc_word(row, at * 4 + i / 4) + i % 4]);
                q3_scale_bytes(&scales, &mut block[96..108]);
            }
            DType::Q6S => {
                let slot = self.d_word(row, at, 1);
                block[208..210].copy_from_slice(&d[slot..slot + 2]);
                for i in 0..16 {
                    block[192 + i] = sc[self.sc_word(row, at * 4 + i / 4) + i % 4] ^ 0x80;
                }
            }
            DType::F32 | DType::F16 | DType::Bf16 => {}
        }
    }

    /// The scale of sub-block `sub` of block `at`.
    fn scale(&self, planes: PlaneBytes<'_>, row: usize, at: usize, sub: usize) -> Scale {
        let PlaneBytes { d, sc, .. } = planes;
        let half =
            |slot: usize| half::f16::from_bits(u16::from_le_bytes([d[slot], d[slot + 1]])).to_f32();
        let pair = |bias| Scale::Wide {
            d: half(self.d_word(row, at, 2) + 2 * (row % 2)).into(),
            bias,
            add: 0.0,
        };
        let slot = || self.d_word(row, at, 1);
        let byte_scale = || sc[self.sc_word(row, at * 4 + sub / 4) + sub % 4];
        match self.dtype {
            DType::Q4 => pair(8),
            DType::Q5 => pair(16),
            DType::Q8 => Scale::Signed(half(self.d_word(row, at, 2) + 2 * (row % 2)).into()),
            DType::Mx4 => {
                let byte = d[self.d_word(row, at, 4) + row % 4];
                let exponent = if byte == u8::MAX { 0 } else { byte };
                Scale::E2m1(f32::from_bits(u32::from(exponent) << 23))
            }
            DType::Q51 => Scale::Wide {
                d: half(slot()).into(),
                bias: 0,
                add: -f64::from(half(slot() + 2)),
            },
            DType::Q4S | DType::Q5S => {
                let stream = self.k_scales(sc, row, at);
                let field = |f: usize| ((stream >> (6 * f)) & 63) as f32;
                Scale::Narrow {
                    d: half(slot()) * field(2 * sub),
                    bias: 0,
                    min: half(slot() + 2) * field(2 * sub + 1),
                }
            }
            DType::Q3S => Scale::Narrow {
                d: half(slot()) * f32::from(i16::from(byte_scale()) - 32),
                bias: 4,
                min: 0.0,
            },
            DType::Q6S => Scale::Narrow {
                d: half(slot()) * f32::from((byte_scale() ^ 0x80) as i8),
                bias: 32,
                min: 0.0,
            },
            DType::F32 | DType::F16 | DType::Bf16 => Scale::Signed(1.0),
        }
    }

    /// The 96-bit stream of six-bit scales and minimums of a Q4_K or Q5_K block.
    fn k_scales(&self, sc: &[u8], row: usize, at: usize) -> u128 {
        (0..3).fold(0, |stream, w| {
            let slot = self.sc_word(row, at * 3 + w);
            let word = u32::from_le_bytes([sc[slot], sc[slot + 1], sc[slot + 2], sc[slot + 3]]);
            stream | (u128::from(word) << (32 * w))
        })
    }

    /// Byte place of the `d` word of super-block `at` of `row`, with `n` rows a word.
    const fn d_word(&self, row: usize, at: usize, n: usize) -> usize {
        4 * (at * self.rows.div_ceil(n) + row / n)
    }

    /// Byte place of word `word` of `row` in the `sc` plane.
    const fn sc_word(&self, row: usize, word: usize) -> usize {
        4 * (word * self.rows + row)
    }
}

/// Values of a float type's bytes.
pub fn floats(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let halves = bytes.as_chunks::<2>().0;
    match dtype {
        DType::F16 => {
            for (value, bytes) in out.iter_mut().zip(halves) {
                *value = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
        DType::Bf16 => {
            for (value, bytes) in out.iter_mut().zip(halves) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        _ => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }
}

/// How a sub-block's elements become values.
enum Scale {
    /// `f32(f64(q - bias) * d + add)`.
    Wide { d: f64, bias: i32, add: f64 },
    /// `f32(f64(q) * d)` of signed bytes.
    Signed(f64),
    /// `d * (q - bias) - min`, each step in f32.
    Narrow { d: f32, bias: i32, min: f32 },
    /// MXFP4's table.
    E2m1(f32),
}

impl Scale {
    fn value(&self, element: u8) -> f32 {
        match self {
            Self::Wide { d, bias, add } => {
                let scaled = f64::from(i32::from(element) - bias) * d;
                // Adding a zero would turn -0 into +0.
                let sum = if *bias == 0 { scaled + add } else { scaled };
                sum as f32
            }
            Self::Signed(d) => (f64::from(element as i8) * d) as f32,
            Self::Narrow { d, bias, min } => {
                let scaled = d * (i32::from(element) - bias) as f32;
                if *bias == 0 { scaled - min } else { scaled }
            }
            Self::E2m1(d) => f32::from(E2M1[usize::from(element & 15)]) * d,
        }
    }
}

/// Places in a payload plane.
struct Shape {
    rows: usize,
    blocks: usize,
    block_elements: usize,
    block_bytes: usize,
    block_words: usize,
}

impl Shape {
    fn new(sheet: &Sheet, format: &PackedFormat) -> Self {
        let block_elements = format.block_elements as usize;
        Self {
            rows: sheet.rows,
            blocks: sheet.k / block_elements,
            block_elements,
            block_bytes: format.block_bytes as usize,
            block_words: (format.block_elements / format.sub * format.words()) as usize,
        }
    }

    /// Writes the words of block `at` of consecutive rows from `first`: word after word, each
    /// word's rows side by side.
    fn store(&self, tile: &[Words], first: usize, at: usize, qs: &mut [u8]) {
        for w in 0..self.block_words {
            let from = 4 * ((at * self.block_words + w) * self.rows + first);
            let line = &mut qs[from..from + 4 * tile.len()];
            for (bytes, words) in line.as_chunks_mut::<4>().0.iter_mut().zip(tile) {
                *bytes = words[w].to_le_bytes();
            }
        }
    }

    fn load(&self, qs: &[u8], row: usize, at: usize, words: &mut Words) {
        for (w, word) in words[..self.block_words].iter_mut().enumerate() {
            let from = 4 * ((at * self.block_words + w) * self.rows + row);
            *word = u32::from_le_bytes([qs[from], qs[from + 1], qs[from + 2], qs[from + 3]]);
        }
    }
}

fn check_len(given: usize, needed: usize) -> Result<(), JlmError> {
    if given == needed {
        return Ok(());
    }
    Err(JlmError::Model(
        "a buffer is not of the length that type and shape give",
    ))
}

/// The stored byte of an MXFP4 exponent: one less, so that the byte is an f32's exponent field.
fn e8m0(block: &[u8]) -> Result<u8, &'static str> {
    let zero = block[1..17].iter().all(|pair| pair & 0x77 == 0);
    match block[0] {
        exponent @ 2..=254 => Ok(exponent - 1),
        255 if zero => Ok(254),
        // Exponent 0 less one would be 255, which reads as infinity: a block of zeros is stored
        // with scale 0 (section F).
        _ if zero => Ok(0),
        _ => Err("its scale is one that an f32 cannot hold as a normal number"),
    }
}

/// Q4_K's and Q5_K's twelve scale bytes to the stream scale0, min0, scale1, min1, ...
fn k_scale_stream(bytes: &[u8]) -> [u32; 3] {
    let stream = (0..8).fold(0u128, |stream, j| {
        let (scale, min) = if j < 4 {
            (bytes[j] & 63, bytes[j + 4] & 63)
        } else {
            (
                (bytes[j + 4] & 15) | ((bytes[j - 4] >> 6) << 4),
                (bytes[j + 4] >> 4) | ((bytes[j] >> 6) << 4),
            )
        };
        stream | (u128::from(scale) << (12 * j)) | (u128::from(min) << (12 * j + 6))
    });
    std::array::from_fn(|w| (stream >> (32 * w)) as u32)
}

fn k_scale_bytes(stream: u128, bytes: &mut [u8]) {
    let field = |f: usize| ((stream >> (6 * f)) & 63) as u8;
    for j in 0..4 {
        bytes[j] = field(2 * j) | ((field(2 * j + 8) >> 4) << 6);
        bytes[j + 4] = field(2 * j + 1) | ((field(2 * j + 9) >> 4) << 6);
        bytes[j + 8] = (field(2 * j + 8) & 15) | ((field(2 * j + 9) & 15) << 4);
    }
}

/// Q3_K's twelve scale bytes to sixteen six-bit scales.
fn q3_scales(bytes: &[u8]) -> [u8; 16] {
    std::array::from_fn(|i| {
        let low = if i < 8 {
            bytes[i] & 15
        } else {
            bytes[i - 8] >> 4
        };
        low | (((bytes[8 + i % 4] >> (2 * (i / 4))) & 3) << 4)
    })
}

fn q3_scale_bytes(scales: &[u8; 16], bytes: &mut [u8]) {
    bytes.fill(0);
    for (i, scale) in scales.iter().enumerate() {
        bytes[i % 8] |= (scale & 15) << (4 * (i / 8));
        bytes[8 + i % 4] |= (scale >> 4) << (2 * (i / 4));
    }
}

/// Rows that are transposed together: each word's run of 512 bytes spares the TLB, as words of one
/// row are a whole plane column apart.
const TILE: usize = 128;
/// Doubled values of the e2m1 codes; code 8, the negative zero, reads as zero.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
