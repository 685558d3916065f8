//! The 192-byte header and its checks (spec: container, B.1).

use codec::{DecodeError, Fault, Reader, Writer};

use crate::error::JlmError;
use crate::span::{ALIGN, Span, align};

/// Bytes of the header; the config section follows it.
pub const HEADER_LEN: u64 = 192;

/// A container version that is read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 27: written and read.
    V27,
    /// 28: read; one more config field and the next-token-prediction roles.
    V28,
}

impl Version {
    /// The version with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            27 => Some(Self::V27),
            28 => Some(Self::V28),
            _ => None,
        }
    }

    /// The number in the file.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::V27 => 27,
            Self::V28 => 28,
        }
    }
}

/// A header whose fields agree with each other and with the file's length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Container version.
    pub version: Version,
    /// Bytes of a text page.
    pub page_size: u64,
    /// Text pages.
    pub n_blocks: u32,
    /// Tensor table entries.
    pub n_tensors: u32,
    /// Config section.
    pub config: Span,
    /// Tensor table.
    pub table: Span,
    /// Offset of text page 0.
    pub data_off: u64,
    /// Dense region.
    pub dense: Span,
    /// Fingerprint section.
    pub fingerprint: Span,
    /// Vocab section; empty when the file has none.
    pub vocab: Span,
    /// Vision section; empty when the file has none.
    pub vision: Span,
    /// Offset of vision page 0.
    pub vis_data_off: u64,
    /// Bytes of a vision page.
    pub vis_page_size: u64,
    /// Vision pages.
    pub n_vis_blocks: u32,
    /// Suggested bytes of one streamed read, a power of two.
    pub chunk: u64,
    /// Groups that the routed experts are streamed in.
    pub stream_groups: u32,
    /// Expert pages.
    pub n_exp_pages: u32,
    /// Offset of expert page 0; 0 without expert pages.
    pub exp_data_off: u64,
    /// Bytes of an expert page; 0 without expert pages.
    pub exp_page_size: u64,
}

impl Header {
    /// Decodes and checks a header.
    ///
    /// `bytes` starts with the 192 header bytes; `file_len` is the length of the whole
    /// (unsealed) file. After the format's own checks, sections and arrays must follow one
    /// another as the writer lays them, and the file must end with the last array.
    pub fn decode(bytes: &[u8], file_len: u64) -> Result<Self, JlmError> {
        let header = Self::parse(bytes)?;
        header.check_sizes()?;
        header.check_sections(file_len)?;
        header.check_arrays(file_len)?;
        header.check_order(file_len)?;
        Ok(header)
    }

    /// Length of the file that the header at the start of `bytes` claims, before any check of it
    /// against a real file: for metadata whose page arrays are yet to be written.
    pub fn claimed_len(bytes: &[u8]) -> Result<u64, JlmError> {
        let header = Self::parse(bytes)?;
        let ends = header.arrays().map(|array| {
            let length = array.size.checked_mul(array.count.into())?;
            array.offset.checked_add(length)
        });
        let end = |at: usize| ends[at].ok_or(JlmError::header(FIELDS[at], "does not fit 64 bits"));
        Ok(header.data_off.max(end(0)?).max(end(1)?).max(end(2)?))
    }

    /// Bytes that hold the header and all metadata sections, and the padding up to the dense
    /// region: what [`crate::Container::decode`] needs.
    #[must_use]
    pub const fn meta_len(&self) -> u64 {
        self.dense.offset
    }

    /// Length of the whole file.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.arrays()
            .into_iter()
            .filter(|array| array.count > 0)
            .map(|array| array.offset + u64::from(array.count) * array.size)
            .max()
            .unwrap_or(self.vis_data_off)
    }

    /// The 192 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.bytes(MAGIC);
        out.u32(self.version.number());
        out.u32(0);
        out.u64(self.page_size);
        out.u32(self.n_blocks);
        out.u32(self.n_tensors);
        span(&mut out, self.config);
        span(&mut out, self.table);
        out.u64(self.data_off);
        span(&mut out, self.dense);
        span(&mut out, self.fingerprint);
        span(&mut out, self.vocab);
        span(&mut out, self.vision);
        out.u64(self.vis_data_off);
        out.u64(self.vis_page_size);
        out.u32(self.n_vis_blocks);
        out.u32(0);
        out.u64(self.chunk);
        out.u32(self.stream_groups);
        out.u32(self.n_exp_pages);
        out.u64(self.exp_data_off);
        out.u64(self.exp_page_size);
        out.into_bytes()
    }

    fn parse(bytes: &[u8]) -> Result<Self, JlmError> {
        let mut reader = Reader::new(bytes);
        let magic = reader
            .bytes("magic", MAGIC.len())
            .map_err(|_| JlmError::Magic)?;
        if magic != MAGIC {
            return Err(JlmError::Magic);
        }
        let wrap = JlmError::section("header");
        let number = reader.u32("Version").map_err(&wrap)?;
        let version = Version::from_number(number).ok_or(JlmError::Version(number))?;
        Self::fields(version, &mut reader).map_err(wrap)
    }

    fn fields(version: Version, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        zero(reader, "reserved word at 12")?;
        Ok(Self {
            version,
            page_size: reader.u64("PageSize")?,
            n_blocks: reader.u32("NBlocks")?,
            n_tensors: reader.u32("NTensors")?,
            config: read_span(reader, "CfgOff", "CfgLen")?,
            table: read_span(reader, "TabOff", "TabLen")?,
            data_off: reader.u64("DataOff")?,
            dense: read_span(reader, "DenseOff", "DenseLen")?,
            fingerprint: read_span(reader, "FPOff", "FPLen")?,
            vocab: read_span(reader, "VocOff", "VocLen")?,
            vision: read_span(reader, "VisOff", "VisLen")?,
            vis_data_off: reader.u64("VisDataOff")?,
            vis_page_size: reader.u64("VisPageSize")?,
            n_vis_blocks: reader.u32("NVisBlocks")?,
            chunk: {
                zero(reader, "reserved word at 156")?;
                reader.u64("Chunk")?
            },
            stream_groups: reader.u32("StreamGroups")?,
            n_exp_pages: reader.u32("NExpPages")?,
            exp_data_off: reader.u64("ExpDataOff")?,
            exp_page_size: reader.u64("ExpPageSize")?,
        })
    }

    fn check_sizes(&self) -> Result<(), JlmError> {
        if self.page_size == 0 || !self.page_size.is_multiple_of(ALIGN) {
            return Err(JlmError::header(
                "PageSize",
                "is not a positive multiple of 4096",
            ));
        }
        let largest = self
            .page_size
            .max(self.vis_page_size)
            .max(self.exp_page_size);
        if !self.chunk.is_power_of_two() || self.chunk < ALIGN || self.chunk > largest {
            return Err(JlmError::header(
                "Chunk",
                "is not a power of two from 4096 to the largest page",
            ));
        }
        if !self.data_off.is_multiple_of(ALIGN) {
            return Err(JlmError::header("DataOff", "is not a multiple of 4096"));
        }
        Ok(())
    }

    fn check_sections(&self, file_len: u64) -> Result<(), JlmError> {
        for (field, section) in self
            .sections()
            .into_iter()
            .chain([("DenseOff", self.dense)])
        {
            if section.end().is_none_or(|end| end > file_len) {
                return Err(JlmError::header(field, "lies outside the file"));
            }
        }
        Ok(())
    }

    fn check_arrays(&self, file_len: u64) -> Result<(), JlmError> {
        for array in self.arrays() {
            if array.count == 0 {
                continue;
            }
            let aligned = array.size > 0
                && array.size.is_multiple_of(ALIGN)
                && array.offset.is_multiple_of(ALIGN);
            if !aligned {
                return Err(JlmError::header(
                    array.field,
                    "has pages that are not aligned",
                ));
            }
            let end = array
                .size
                .checked_mul(array.count.into())
                .and_then(|length| length.checked_add(array.offset));
            if end.is_none_or(|end| end > file_len) {
                return Err(JlmError::header(array.field, "lies outside the file"));
            }
        }
        Ok(())
    }

    /// The writer's order: a reader that accepts no other leaves no byte of the file unexplained.
    fn check_order(&self, file_len: u64) -> Result<(), JlmError> {
        let mut at = HEADER_LEN;
        for (field, section) in self.sections() {
            if section.offset != at {
                return Err(JlmError::header(
                    field,
                    "does not follow the section before it",
                ));
            }
            at = section.offset + section.length;
        }
        if at > MAX_METADATA {
            return Err(JlmError::header(
                "FPLen",
                "makes the metadata longer than 1 GiB",
            ));
        }
        let follows = |field, offset, end| {
            if align(end) == Some(offset) {
                Ok(())
            } else {
                Err(JlmError::header(field, "does not follow what is before it"))
            }
        };
        follows("DenseOff", self.dense.offset, at)?;
        follows(
            "DataOff",
            self.data_off,
            self.dense.offset + self.dense.length,
        )?;
        let [text, vision, _] = self.arrays();
        follows("VisDataOff", self.vis_data_off, text.end_or(self.data_off))?;
        if self.n_exp_pages > 0 {
            follows(
                "ExpDataOff",
                self.exp_data_off,
                vision.end_or(self.vis_data_off),
            )?;
        }
        if self.file_len() != file_len {
            return Err(JlmError::header("NExpPages", "does not end the file"));
        }
        Ok(())
    }

    /// The metadata sections in file order.
    fn sections(&self) -> [(&'static str, Span); 5] {
        [
            ("CfgOff", self.config),
            ("VisOff", self.vision),
            ("VocOff", self.vocab),
            ("TabOff", self.table),
            ("FPOff", self.fingerprint),
        ]
    }

    fn arrays(&self) -> [PageArray; 3] {
        [
            PageArray {
                field: FIELDS[0],
                offset: self.data_off,
                size: self.page_size,
                count: self.n_blocks,
            },
            PageArray {
                field: FIELDS[1],
                offset: self.vis_data_off,
                size: self.vis_page_size,
                count: self.n_vis_blocks,
            },
            PageArray {
                field: FIELDS[2],
                offset: self.exp_data_off,
                size: self.exp_page_size,
                count: self.n_exp_pages,
            },
        ]
    }
}

struct PageArray {
    field: &'static str,
    offset: u64,
    size: u64,
    count: u32,
}

impl PageArray {
    /// Where the array ends, or `empty` when it has no pages. Called after the overflow check.
    fn end_or(&self, empty: u64) -> u64 {
        if self.count == 0 {
            empty
        } else {
            self.offset + u64::from(self.count) * self.size
        }
    }
}

fn zero(reader: &mut Reader<'_>, field: &'static str) -> Result<(), DecodeError> {
    let error = reader.error(field, Fault::Invalid("is not zero".to_owned()));
    match reader.u32(field)? {
        0 => Ok(()),
        _ => Err(error),
    }
}

fn read_span(
    reader: &mut Reader<'_>,
    offset: &'static str,
    length: &'static str,
) -> Result<Span, DecodeError> {
    Ok(Span::new(reader.u64(offset)?, reader.u64(length)?))
}

fn span(out: &mut Writer, span: Span) {
    out.u64(span.offset);
    out.u64(span.length);
}

pub(crate) const MAGIC: &[u8; 8] = b"JITLLM\0\0";
const FIELDS: [&str; 3] = ["NBlocks", "NVisBlocks", "NExpPages"];
const MAX_METADATA: u64 = 1 << 30;
