//! A container's structure: everything before the dense region, but for what is secret in the
//! sealed form (vocab and vision sections).

use std::collections::{BTreeSet, HashMap};

use crate::codes::Role;
use crate::config::{Config, Flags};
use crate::error::JlmError;
use crate::fingerprint::WriterFingerprint;
use crate::header::Header;
use crate::layout::bad_shape;
use crate::span::Span;
use crate::table::{self, TensorEntry, TensorKey};
use crate::unit::{Region, UnitId};
use crate::vocab::Vocab;

/// A container whose header, config, tensor table and fingerprint agree with each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    header: Header,
    config: Config,
    tensors: Vec<TensorEntry>,
    fingerprint: WriterFingerprint,
    index: HashMap<TensorKey, usize>,
    /// Blocks with expert pages, ascending; the position is the unit index.
    mixtures: Vec<u32>,
    /// Experts of a mixture block; 0 without mixtures.
    experts: u32,
}

/// Where the planes of one sheet are: absolute spans, empty for planes the type does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planes {
    /// Payload.
    pub qs: Span,
    /// Scales of super-blocks.
    pub d: Span,
    /// Scales of sub-blocks.
    pub sc: Span,
}

impl Planes {
    /// The spans in file order.
    #[must_use]
    pub const fn as_array(&self) -> [Span; 3] {
        [self.qs, self.d, self.sc]
    }
}

impl Container {
    /// Decodes the structure of a plain container of `file_len` bytes.
    ///
    /// `meta` is the start of the file: at least [`Header::meta_len`] bytes. The vocab section
    /// is decoded by [`Self::vocab`].
    pub fn decode(meta: &[u8], file_len: u64) -> Result<Self, JlmError> {
        let header = Header::decode(meta, file_len)?;
        let config_bytes = section(meta, header.config, "CfgLen")?;
        let table_bytes = section(meta, header.table, "TabLen")?;
        let fingerprint_bytes = section(meta, header.fingerprint, "FPLen")?;
        let version = header.version;
        let config = Config::decode(config_bytes, version).map_err(JlmError::section("config"))?;
        let tensors = table::decode(table_bytes, header.n_tensors, version)
            .map_err(JlmError::section("table"))?;
        let fingerprint = WriterFingerprint::decode(fingerprint_bytes)
            .map_err(JlmError::section("fingerprint"))?;
        Self::new(header, config, tensors, fingerprint)
    }

    pub(crate) fn new(
        header: Header,
        config: Config,
        tensors: Vec<TensorEntry>,
        fingerprint: WriterFingerprint,
    ) -> Result<Self, JlmError> {
        let mut index = HashMap::with_capacity(tensors.len());
        for (at, entry) in tensors.iter().enumerate() {
            if index.insert(entry.key, at).is_some() {
                return Err(JlmError::tensor(
                    &entry.name,
                    "repeats a role, block and index",
                ));
            }
        }
        let banks = tensors.iter().filter(|entry| entry.is_expert_paged());
        let mixtures: BTreeSet<u32> = banks.clone().map(|bank| bank.key.block as u32).collect();
        let sheets = banks.clone().map(TensorEntry::sheets).next().unwrap_or(0);
        let experts = u32::try_from(sheets)
            .map_err(|_| JlmError::Model("a bank has more than 2^32 experts"))?;
        if (mixtures.len() as u64).checked_mul(sheets) != Some(header.n_exp_pages.into()) {
            return Err(JlmError::header(
                "NExpPages",
                "is not one for each expert of each bank",
            ));
        }
        let container = Self {
            header,
            config,
            tensors,
            fingerprint,
            index,
            mixtures: mixtures.into_iter().collect(),
            experts,
        };
        container.check_norms()?;
        container
            .tensors
            .iter()
            .try_for_each(|entry| container.check_place(entry))?;
        Ok(container)
    }

    /// The vocab section of `meta`; `None` when the container has none.
    pub fn vocab(&self, meta: &[u8]) -> Result<Option<Vocab>, JlmError> {
        if self.header.vocab.length == 0 {
            return Ok(None);
        }
        let bytes = section(meta, self.header.vocab, "VocLen")?;
        Vocab::decode(bytes)
            .map(Some)
            .map_err(JlmError::section("vocab"))
    }

    /// The vision section of `meta`, as it stands; `None` when the container has none.
    ///
    /// The order of its fields is not published, so nothing is read from it or put into it: it is
    /// kept byte for byte. See the crate's documentation for what is known.
    pub fn vision<'a>(&self, meta: &'a [u8]) -> Result<Option<&'a [u8]>, JlmError> {
        if self.header.vision.length == 0 {
            return Ok(None);
        }
        section(meta, self.header.vision, "VisLen").map(Some)
    }

    /// The bytes before the dense region, with these vision and vocab sections.
    ///
    /// The sections must have the lengths that the container was laid out with.
    pub fn encode_meta(&self, vision: &[u8], vocab: &[u8]) -> Result<Vec<u8>, JlmError> {
        let table = table::encode(&self.tensors)
            .ok_or(JlmError::Model("a tensor name is longer than 65535 bytes"))?;
        let fingerprint = self.fingerprint.encode().ok_or(JlmError::Model(
            "a fingerprint text is longer than 65535 bytes",
        ))?;
        let mut out = self.header.encode();
        let config = self.config.encode(self.header.version);
        for (span, bytes, field) in [
            (self.header.config, &config[..], "CfgLen"),
            (self.header.vision, vision, "VisLen"),
            (self.header.vocab, vocab, "VocLen"),
            (self.header.table, &table, "TabLen"),
            (self.header.fingerprint, &fingerprint, "FPLen"),
        ] {
            if span != Span::new(out.len() as u64, bytes.len() as u64) {
                return Err(JlmError::header(field, "is not the section's length"));
            }
            out.extend_from_slice(bytes);
        }
        out.resize(self.header.meta_len() as usize, 0);
        Ok(out)
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The config record.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The tensors, in table order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Who wrote the file.
    #[must_use]
    pub const fn fingerprint(&self) -> &WriterFingerprint {
        &self.fingerprint
    }

    /// The tensor with this identity.
    #[must_use]
    pub fn tensor(&self, key: TensorKey) -> Option<&TensorEntry> {
        self.index.get(&key).map(|at| &self.tensors[*at])
    }

    /// The tensor of `role` in `block` (-1 for none), of no expert.
    #[must_use]
    pub fn tensor_of(&self, role: Role, block: i32) -> Option<&TensorEntry> {
        self.tensor(TensorKey {
            role,
            block,
            index: -1,
        })
    }

    /// Where the planes of all sheets of `entry` are; for a split bank, those of expert 0.
    #[must_use]
    pub fn planes(&self, entry: &TensorEntry) -> Planes {
        let lens = if entry.is_expert_paged() {
            entry.sheet_planes()
        } else {
            entry.planes()
        };
        let lens = lens.expect("every entry's shape was checked");
        Planes {
            qs: Span::new(entry.qs_off, lens.qs),
            d: Span::new(entry.d_off, lens.d),
            sc: Span::new(entry.sc_off, lens.sc),
        }
    }

    /// Where the planes of sheet (or expert) `sheet` of `entry` are; `None` past its last sheet.
    #[must_use]
    pub fn sheet(&self, entry: &TensorEntry, sheet: u64) -> Option<Planes> {
        if sheet >= entry.sheets() {
            return None;
        }
        let lens = entry.sheet_planes()?;
        let step = |offset: u64, length: u64| {
            let stride = if entry.is_expert_paged() {
                self.header.exp_page_size
            } else {
                length
            };
            Some(Span::new(
                offset.checked_add(stride.checked_mul(sheet)?)?,
                length,
            ))
        };
        Some(Planes {
            qs: step(entry.qs_off, lens.qs)?,
            d: step(entry.d_off, lens.d)?,
            sc: step(entry.sc_off, lens.sc)?,
        })
    }

    /// Experts of every mixture block; 0 without mixtures.
    #[must_use]
    pub const fn experts(&self) -> u32 {
        self.experts
    }

    /// Blocks that have expert pages, ascending: the unit index of [`Region::Experts`] is the
    /// position in this list.
    #[must_use]
    pub fn mixtures(&self) -> &[u32] {
        &self.mixtures
    }

    /// The page of one expert of a block; `None` when the block has no such expert.
    #[must_use]
    pub fn expert_page(&self, block: u32, expert: u32) -> Option<Span> {
        let ordinal = self.mixtures.binary_search(&block).ok()? as u64;
        if expert >= self.experts {
            return None;
        }
        let page = ordinal * u64::from(self.experts) + u64::from(expert);
        Some(Span::new(
            self.header.exp_data_off + page * self.header.exp_page_size,
            self.header.exp_page_size,
        ))
    }

    /// Where a region is; empty when the container does not have it.
    #[must_use]
    pub fn region(&self, region: Region) -> Span {
        let h = &self.header;
        let pages = |offset, count: u32, size| Span::new(offset, u64::from(count) * size);
        match region {
            Region::Vocab => h.vocab,
            Region::VisionConfig => h.vision,
            Region::Dense => h.dense,
            Region::Text => pages(h.data_off, h.n_blocks, h.page_size),
            Region::Vision => pages(h.vis_data_off, h.n_vis_blocks, h.vis_page_size),
            Region::Experts => pages(h.exp_data_off, h.n_exp_pages, h.exp_page_size),
        }
    }

    /// Bytes of one unit of a region; 0 when the region is empty.
    #[must_use]
    pub fn unit_len(&self, region: Region) -> u64 {
        let h = &self.header;
        match region {
            Region::Vocab | Region::VisionConfig | Region::Dense => self.region(region).length,
            Region::Text if h.n_blocks > 0 => h.page_size,
            Region::Vision if h.n_vis_blocks > 0 => h.vis_page_size,
            Region::Experts => h.exp_page_size * u64::from(self.experts),
            Region::Text | Region::Vision => 0,
        }
    }

    /// Bytes of one page of a page array, of which an expert unit has several; the whole length of
    /// any other region; 0 when the region is empty.
    #[must_use]
    pub fn page_len(&self, region: Region) -> u64 {
        match region {
            Region::Experts if self.experts > 0 => self.header.exp_page_size,
            _ => self.unit_len(region),
        }
    }

    /// Units of a region.
    #[must_use]
    pub fn unit_count(&self, region: Region) -> u64 {
        self.region(region)
            .length
            .checked_div(self.unit_len(region))
            .unwrap_or(0)
    }

    /// Where a unit is; `None` when the container does not have it.
    #[must_use]
    pub fn unit(&self, unit: UnitId) -> Option<Span> {
        if unit.index >= self.unit_count(unit.region) {
            return None;
        }
        let length = self.unit_len(unit.region);
        let offset = self.region(unit.region).offset + unit.index * length;
        Some(Span::new(offset, length))
    }

    /// Every unit, in region order.
    pub fn units(&self) -> impl Iterator<Item = UnitId> {
        Region::ALL.into_iter().flat_map(|region| {
            (0..self.unit_count(region)).map(move |index| UnitId::new(region, index))
        })
    }

    /// Query and key norms stand exactly where the flag and the layer kinds say.
    fn check_norms(&self) -> Result<(), JlmError> {
        if self.header.n_blocks > MAX_BLOCKS {
            return Err(JlmError::header("NBlocks", "is above 1048576"));
        }
        let wanted = self.config.flags.has(Flags::QK_NORM);
        for (role, is_key) in [(Role::ATTN_Q_NORM, false), (Role::ATTN_K_NORM, true)] {
            for block in 0..self.header.n_blocks {
                let expected = wanted
                    && self.config.attends(block)
                    && !(is_key && self.config.shares_kv(block));
                if self.tensor_of(role, block as i32).is_some() != expected {
                    return Err(JlmError::Model(
                        "query and key norms are not on exactly the blocks that flag 2 says",
                    ));
                }
            }
        }
        let stray = self.tensors.iter().find(|entry| {
            matches!(entry.key.role, Role::ATTN_Q_NORM | Role::ATTN_K_NORM)
                && !(0..i64::from(self.header.n_blocks)).contains(&i64::from(entry.key.block))
        });
        match stray {
            Some(entry) => Err(JlmError::tensor(&entry.name, "is a norm of no block")),
            None => Ok(()),
        }
    }

    /// Every plane lies in its region: the dense region, its block's page, or expert 0's page.
    fn check_place(&self, entry: &TensorEntry) -> Result<(), JlmError> {
        let refuse = |reason| Err(JlmError::tensor(&entry.name, reason));
        if entry.planes().is_none() {
            return Err(bad_shape(entry));
        }
        let (home, reason) = if entry.is_dense() {
            (Some(self.header.dense), "lies outside the dense region")
        } else if entry.is_expert_paged() {
            if entry.sheets() != u64::from(self.experts) {
                return refuse("has another expert count than other banks");
            }
            let page = self.expert_page(entry.key.block.unsigned_abs(), 0);
            (page, "lies outside its expert page")
        } else {
            let region = if entry.key.role.is_vision() {
                Region::Vision
            } else {
                Region::Text
            };
            let page = self.unit(UnitId::new(region, entry.key.block.unsigned_abs().into()));
            (page, "lies outside its block's page")
        };
        let Some(home) = home else {
            return refuse("is of a block that has no page");
        };
        let file = Span::new(0, self.header.file_len());
        for plane in self.planes(entry).as_array() {
            let inside = if plane.length == 0 {
                file.contains(plane)
            } else {
                home.contains(plane)
            };
            if !inside {
                return refuse(reason);
            }
        }
        Ok(())
    }
}

fn section<'a>(meta: &'a [u8], span: Span, field: &'static str) -> Result<&'a [u8], JlmError> {
    let range = span
        .end()
        .and_then(|end| Some(usize::try_from(span.offset).ok()?..usize::try_from(end).ok()?));
    range
        .and_then(|range| meta.get(range))
        .ok_or(JlmError::header(field, "is past the bytes that were given"))
}

/// Bounds the walk over the blocks of a sparse file that claims billions of them.
const MAX_BLOCKS: u32 = 1 << 20;
