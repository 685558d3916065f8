//! Weights from a pager: pages come and go under its budget.

use std::fmt;
use std::sync::Arc;

use jlm::{Container, Region};
use pager::{ArrayGeometry, Geometry, GeometryError, PageId, Pager};

use crate::weights::{Page, SourceError, Weights};

/// A container whose dense region is in memory and whose pages a [`Pager`] lends.
pub struct Paged<D> {
    pager: Arc<Pager>,
    dense: D,
    mixtures: Vec<u32>,
    experts: u32,
}

impl<D: AsRef<[u8]>> Paged<D> {
    /// Pages of `pager`, which was made with the container's [`Self::geometry`]; `dense` is the
    /// dense region, in memory of the caller's choice.
    #[must_use]
    pub fn new(container: &Container, pager: Arc<Pager>, dense: D) -> Self {
        Self {
            pager,
            dense,
            mixtures: container.mixtures().to_vec(),
            experts: container.experts(),
        }
    }

    /// The pager, for its statistics and budget.
    #[must_use]
    pub fn pager(&self) -> &Arc<Pager> {
        &self.pager
    }

    fn page(&self, page: PageId) -> Result<Page<'_>, SourceError> {
        Ok(Box::new(self.pager.get(page)?))
    }

    fn expert_page(&self, block: u32, expert: u32) -> Option<PageId> {
        let ordinal = u32::try_from(self.mixtures.binary_search(&block).ok()?).ok()?;
        let first = ordinal.checked_mul(self.experts)?;
        Some(PageId::expert(first.checked_add(expert)?))
    }
}

impl Paged<()> {
    /// Where the pages of a container lie.
    pub fn geometry(container: &Container) -> Result<Geometry, GeometryError> {
        let header = container.header();
        let array = |region, pages, page_size| ArrayGeometry {
            offset: container.region(region).offset,
            pages,
            page_size,
        };
        Geometry::new(
            array(Region::Text, header.n_blocks, header.page_size),
            array(Region::Vision, header.n_vis_blocks, header.vis_page_size),
            array(Region::Experts, header.n_exp_pages, header.exp_page_size),
        )
    }
}

impl<D: AsRef<[u8]> + Send + Sync> Weights for Paged<D> {
    fn dense(&self) -> &[u8] {
        self.dense.as_ref()
    }

    fn block(&self, block: u32) -> Result<Page<'_>, SourceError> {
        self.page(PageId::text(block))
    }

    fn expert(&self, block: u32, expert: u32) -> Result<Page<'_>, SourceError> {
        let page = self.expert_page(block, expert);
        self.page(page.ok_or("block has no expert pages")?)
    }

    fn prefetch_block(&self, block: u32) {
        self.pager.prefetch(PageId::text(block));
    }

    fn prefetch_experts(&self, block: u32, experts: &[u32]) {
        let pages = experts
            .iter()
            .filter_map(|expert| self.expert_page(block, *expert));
        pages.for_each(|page| self.pager.prefetch(page));
    }
}

impl<D> fmt::Debug for Paged<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paged")
            .field("pager", &self.pager)
            .finish_non_exhaustive()
    }
}
