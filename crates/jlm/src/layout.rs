//! Where everything goes (spec: container, B.3 to B.5).

use std::collections::BTreeMap;

use crate::config::Config;
use crate::container::Container;
use crate::error::JlmError;
use crate::fingerprint::WriterFingerprint;
use crate::header::{HEADER_LEN, Header, Version};
use crate::span::{ALIGN, Span, align};
use crate::table::TensorEntry;

/// What a container is to hold, before it has offsets.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Version to write.
    pub version: Version,
    /// Config record.
    pub config: Config,
    /// Length of the vision section in bytes.
    pub vision_len: u64,
    /// Length of the vocab section in bytes, 0 for none.
    pub vocab_len: u64,
    /// Tensors in table order; their offsets are ignored.
    pub tensors: Vec<TensorEntry>,
    /// Who writes it.
    pub fingerprint: WriterFingerprint,
}

impl Draft {
    /// Gives every plane its place.
    ///
    /// The result passes the same checks as a container that was read.
    pub fn lay_out(self) -> Result<Container, JlmError> {
        let Self {
            version,
            config,
            vision_len,
            vocab_len,
            mut tensors,
            fingerprint,
        } = self;
        let mut sections = Cursor(HEADER_LEN);
        let config_span = sections.take(config.encode(version).len() as u64)?;
        let vision = sections.take(vision_len)?;
        let vocab = sections.take(vocab_len)?;
        let table = sections.take(tensors.iter().map(TensorEntry::encoded_len).sum())?;
        let fingerprint_len = fingerprint
            .encode()
            .ok_or(JlmError::Model(
                "a fingerprint text is longer than 65535 bytes",
            ))?
            .len();
        let fingerprint_span = sections.take(fingerprint_len as u64)?;

        let places = Places::assign(&mut tensors, checked(align(sections.0))?)?;
        let largest = places
            .page_size
            .max(places.vis_page_size)
            .max(places.exp_page_size);
        let header = Header {
            version,
            page_size: places.page_size,
            n_blocks: places.n_blocks,
            n_tensors: u32::try_from(tensors.len())
                .map_err(|_| JlmError::Model("there are too many tensors"))?,
            config: config_span,
            table,
            data_off: places.data_off,
            dense: places.dense,
            fingerprint: fingerprint_span,
            vocab,
            vision,
            vis_data_off: places.vis_data_off,
            vis_page_size: places.vis_page_size,
            n_vis_blocks: places.n_vis_blocks,
            // Only a file with nothing paged has pages smaller than the rule's chunk.
            chunk: chunk_size(&tensors).min(prev_power_of_two(largest)),
            stream_groups: stream_groups(&tensors, config.n_expert_used),
            n_exp_pages: places.n_exp_pages,
            exp_data_off: places.exp_data_off,
            exp_page_size: places.exp_page_size,
        };
        Container::new(header, config, tensors, fingerprint)
    }
}

/// The streamed read size that suits the tensors: a power of two from 4096 to 1 MiB.
#[must_use]
pub fn chunk_size(tensors: &[TensorEntry]) -> u64 {
    let smallest = tensors
        .iter()
        .filter(|entry| entry.is_paged())
        .flat_map(|entry| match entry.dtype.packed() {
            Some(_) => entry.sheet_planes().unwrap_or_default().as_array(),
            None => {
                let total = entry.planes().unwrap_or_default().qs;
                [align(total).unwrap_or(u64::MAX), 0, 0]
            }
        })
        .filter(|length| *length > 0)
        .min()
        .unwrap_or(u64::MAX);
    let mut chunk = LARGEST_CHUNK;
    while chunk > ALIGN && chunk > smallest {
        chunk /= 2;
    }
    chunk
}

/// Groups that `used` routed experts are streamed in, so that each streams 64 KiB or more.
#[must_use]
pub fn stream_groups(tensors: &[TensorEntry], used: u32) -> u32 {
    let smallest = tensors
        .iter()
        .filter(|entry| entry.dtype.packed().is_some() && entry.sheets() >= 2 && !entry.is_dense())
        .flat_map(|entry| entry.sheet_planes().unwrap_or_default().as_array())
        .filter(|length| *length > 0)
        .min();
    let Some(smallest) = smallest else { return 1 };
    (2..=used)
        .take_while(|n| u64::from(used.div_ceil(*n)).saturating_mul(smallest) >= STREAM_BYTES)
        .last()
        .unwrap_or(1)
}

/// Running end of what was laid so far.
struct Cursor(u64);

impl Cursor {
    fn take(&mut self, length: u64) -> Result<Span, JlmError> {
        let span = Span::new(self.0, length);
        self.0 = checked(span.end())?;
        Ok(span)
    }

    /// Places planes of these lengths, each rounded up to the alignment.
    fn place(&mut self, entry: &mut TensorEntry, lengths: [u64; 3]) -> Result<(), JlmError> {
        for (offset, length) in [&mut entry.qs_off, &mut entry.d_off, &mut entry.sc_off]
            .into_iter()
            .zip(lengths)
        {
            *offset = self.take(checked(align(length))?)?.offset;
        }
        Ok(())
    }
}

struct Places {
    dense: Span,
    data_off: u64,
    page_size: u64,
    n_blocks: u32,
    vis_data_off: u64,
    vis_page_size: u64,
    n_vis_blocks: u32,
    exp_data_off: u64,
    exp_page_size: u64,
    n_exp_pages: u32,
}

impl Places {
    fn assign(tensors: &mut [TensorEntry], dense_off: u64) -> Result<Self, JlmError> {
        let mut dense = Cursor(dense_off);
        for entry in tensors.iter_mut().filter(|entry| entry.is_dense()) {
            let lengths = lengths(entry)?;
            dense.place(entry, lengths)?;
        }
        let text = PageArray::assign(tensors, dense.0, false)?;
        let vision = PageArray::assign(tensors, text.end, true)?;
        let experts = assign_experts(tensors, vision.end)?;
        Ok(Self {
            dense: Span::new(dense_off, dense.0 - dense_off),
            data_off: dense.0,
            page_size: text.page_size,
            n_blocks: text.count,
            vis_data_off: text.end,
            vis_page_size: vision.page_size,
            n_vis_blocks: vision.count,
            exp_data_off: experts.0,
            exp_page_size: experts.1,
            n_exp_pages: experts.2,
        })
    }
}

struct PageArray {
    page_size: u64,
    count: u32,
    end: u64,
}

impl PageArray {
    /// Lays the pages of text (or vision) blocks from `start`.
    fn assign(tensors: &mut [TensorEntry], start: u64, vision: bool) -> Result<Self, JlmError> {
        let of_array =
            |entry: &TensorEntry| entry.key.role.is_vision() == vision && entry.key.block >= 0;
        // Cursors are relative to a page first: the page size follows from all of them.
        let mut pages: BTreeMap<i32, Cursor> = BTreeMap::new();
        for entry in tensors.iter_mut() {
            if of_array(entry) && entry.is_paged() {
                let lengths = lengths(entry)?;
                let page = pages.entry(entry.key.block).or_insert(Cursor(0));
                page.place(entry, lengths)?;
            }
        }
        let any = tensors
            .iter()
            .any(|entry| of_array(entry) && !entry.is_dense());
        let highest = tensors
            .iter()
            .filter(|entry| of_array(entry))
            .map(|entry| entry.key.block)
            .max();
        let count = match highest {
            Some(block) if any => block as u32 + 1,
            _ => 0,
        };
        let page_size = pages
            .values()
            .map(|page| page.0)
            .max()
            .unwrap_or(0)
            .max(ALIGN);
        for entry in tensors.iter_mut() {
            if of_array(entry) && entry.is_paged() {
                let page = u64::from(entry.key.block.unsigned_abs()).checked_mul(page_size);
                shift(
                    entry,
                    checked(page.and_then(|page| page.checked_add(start)))?,
                )?;
            }
        }
        let length = checked(u64::from(count).checked_mul(page_size))?;
        Ok(Self {
            page_size,
            count,
            end: checked(start.checked_add(length))?,
        })
    }
}

/// Lays the expert pages from `start`; gives offset, page size and count, zeros when there are none.
fn assign_experts(tensors: &mut [TensorEntry], start: u64) -> Result<(u64, u64, u32), JlmError> {
    let mut pages: BTreeMap<i32, Cursor> = BTreeMap::new();
    let mut experts = None;
    for entry in tensors.iter_mut().filter(|entry| entry.is_expert_paged()) {
        let planes = entry.sheet_planes().ok_or_else(|| bad_shape(entry))?;
        let page = pages.entry(entry.key.block).or_insert(Cursor(0));
        page.place(entry, planes.as_array())?;
        if *experts.get_or_insert(entry.sheets()) != entry.sheets() {
            return Err(JlmError::tensor(
                &entry.name,
                "has another expert count than other banks",
            ));
        }
    }
    let Some(experts) = experts else {
        return Ok((0, 0, 0));
    };
    let page_size = pages.values().map(|page| page.0).max().unwrap_or(0);
    let count = checked((pages.len() as u64).checked_mul(experts))?;
    let count_field =
        u32::try_from(count).map_err(|_| JlmError::Model("there are too many expert pages"))?;
    checked(
        count
            .checked_mul(page_size)
            .and_then(|length| length.checked_add(start)),
    )?;
    let ordinals: BTreeMap<i32, u64> = pages.into_keys().zip(0..).collect();
    for entry in tensors.iter_mut().filter(|entry| entry.is_expert_paged()) {
        let first = ordinals[&entry.key.block] * experts * page_size;
        shift(entry, start + first)?;
    }
    Ok((start, page_size, count_field))
}

fn shift(entry: &mut TensorEntry, by: u64) -> Result<(), JlmError> {
    for offset in [&mut entry.qs_off, &mut entry.d_off, &mut entry.sc_off] {
        *offset = checked(offset.checked_add(by))?;
    }
    Ok(())
}

fn lengths(entry: &TensorEntry) -> Result<[u64; 3], JlmError> {
    let planes = entry.planes().ok_or_else(|| bad_shape(entry))?;
    Ok(planes.as_array())
}

pub(crate) fn bad_shape(entry: &TensorEntry) -> JlmError {
    JlmError::tensor(
        &entry.name,
        "has rows that are not a whole number of blocks of its type",
    )
}

fn checked(value: Option<u64>) -> Result<u64, JlmError> {
    value.ok_or(JlmError::Model(
        "the container would be longer than 2^64 bytes",
    ))
}

const fn prev_power_of_two(value: u64) -> u64 {
    1 << value.ilog2()
}

const LARGEST_CHUNK: u64 = 1 << 20;
const STREAM_BYTES: u64 = 1 << 16;
