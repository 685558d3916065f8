//! Where weights come from: pages that are there for as long as they are held.

use std::fmt;

use jlm::{Container, Region, Span};

/// Why a page could not be had; the source's own error.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// A page that stays in place while this is held.
pub type Page<'a> = Box<dyn AsRef<[u8]> + Send + Sync + 'a>;

/// The pages of one container. The engine asks for a page when it computes with it and lets it
/// go right after; it never copies weights.
pub trait Weights: Send + Sync {
    /// The dense region: always resident.
    fn dense(&self) -> &[u8];

    /// The page of text block `block`.
    fn block(&self, block: u32) -> Result<Page<'_>, SourceError>;

    /// The page of expert `expert` of mixture block `block`.
    fn expert(&self, block: u32, expert: u32) -> Result<Page<'_>, SourceError>;

    /// A hint that [`Self::block`] will be asked for this page next.
    fn prefetch_block(&self, block: u32) {
        let _ = block;
    }

    /// A hint that [`Self::expert`] will be asked for these pages, in this order.
    fn prefetch_experts(&self, block: u32, experts: &[u32]) {
        let _ = (block, experts);
    }
}

/// A whole plain container in memory, as bytes of the caller's.
#[derive(Clone)]
pub struct InMemory<B> {
    bytes: B,
    dense: Span,
    pages: Span,
    page_size: u64,
    /// Offsets of expert pages by mixture block, with their length.
    experts: Vec<(u32, Span)>,
}

impl<B: AsRef<[u8]>> InMemory<B> {
    /// The pages of `container`, whose file is `bytes`; `None` when the file ends too early.
    #[must_use]
    pub fn new(container: &Container, bytes: B) -> Option<Self> {
        let length = bytes.as_ref().len() as u64;
        let mixtures = container.mixtures().iter();
        let experts = mixtures
            .map(|block| Some((*block, container.expert_page(*block, 0)?)))
            .collect::<Option<Vec<_>>>()?;
        let ends =
            [Region::Dense, Region::Text, Region::Experts].map(|r| container.region(r).end());
        if ends.iter().any(|end| end.is_none_or(|end| end > length)) {
            return None;
        }
        Some(Self {
            dense: container.region(Region::Dense),
            pages: container.region(Region::Text),
            page_size: container.unit_len(Region::Text),
            experts,
            bytes,
        })
    }

    fn slice(&self, span: Span) -> Option<&[u8]> {
        let start = usize::try_from(span.offset).ok()?;
        self.bytes
            .as_ref()
            .get(start..)?
            .get(..usize::try_from(span.length).ok()?)
    }
}

impl<B: AsRef<[u8]> + Send + Sync> Weights for InMemory<B> {
    fn dense(&self) -> &[u8] {
        self.slice(self.dense).unwrap_or_default()
    }

    fn block(&self, block: u32) -> Result<Page<'_>, SourceError> {
        let offset = u64::from(block) * self.page_size;
        let page = Span::new(self.pages.offset + offset, self.page_size);
        let page = self.slice(page).filter(|_| self.pages.contains(page));
        Ok(Box::new(page.ok_or(NoSuchPage)?))
    }

    fn expert(&self, block: u32, expert: u32) -> Result<Page<'_>, SourceError> {
        let at = self
            .experts
            .binary_search_by_key(&block, |(block, _)| *block);
        let (_, first) = self.experts[at.map_err(|_| NoSuchPage)?];
        let offset = u64::from(expert) * first.length;
        let page = self.slice(Span::new(first.offset + offset, first.length));
        Ok(Box::new(page.ok_or(NoSuchPage)?))
    }
}

impl<B> fmt::Debug for InMemory<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory")
            .field("dense", &self.dense)
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("container has no such page")]
struct NoSuchPage;
