use std::fmt;

/// One of the page arrays of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageArray {
    /// One page a text block.
    Text,
    /// One page a vision block.
    Vision,
    /// One page an expert of a mixture block, blocks in order, experts in order within a block.
    Expert,
}

impl PageArray {
    /// The arrays in file order.
    pub const ALL: [Self; 3] = [Self::Text, Self::Vision, Self::Expert];

    /// Position in [`PageArray::ALL`].
    #[must_use]
    pub const fn ordinal(self) -> usize {
        match self {
            Self::Text => 0,
            Self::Vision => 1,
            Self::Expert => 2,
        }
    }
}

impl fmt::Display for PageArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Vision => "vision",
            Self::Expert => "expert",
        })
    }
}

/// A page: its array and its index in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The array.
    pub array: PageArray,
    /// The index in the array.
    pub index: u32,
}

impl PageId {
    /// The page of a text block.
    #[must_use]
    pub const fn text(block: u32) -> Self {
        Self {
            array: PageArray::Text,
            index: block,
        }
    }

    /// The page of a vision block.
    #[must_use]
    pub const fn vision(block: u32) -> Self {
        Self {
            array: PageArray::Vision,
            index: block,
        }
    }

    /// A page of the expert array: the block's ordinal among mixture blocks, times experts a block,
    /// plus the expert.
    #[must_use]
    pub const fn expert(index: u32) -> Self {
        Self {
            array: PageArray::Expert,
            index,
        }
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} page {}", self.array, self.index)
    }
}

/// Where an array lies in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArrayGeometry {
    /// Offset in bytes of the first page.
    pub offset: u64,
    /// Pages in the array.
    pub pages: u32,
    /// Bytes a page.
    pub page_size: u64,
}

/// Where the pages of a container lie; made by [`Geometry::new`], so every span is in range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry([ArrayGeometry; 3]);

impl Geometry {
    /// The arrays of a container. An array without pages may have any offset and size.
    ///
    /// # Errors
    /// When an array with pages is not aligned to [`direct_io::ALIGN`], its pages are empty or larger
    /// than this machine can address, or its end overflows.
    pub fn new(
        text: ArrayGeometry,
        vision: ArrayGeometry,
        expert: ArrayGeometry,
    ) -> Result<Self, GeometryError> {
        let arrays = [text, vision, expert];
        for (array, geometry) in PageArray::ALL.into_iter().zip(arrays) {
            let ArrayGeometry {
                offset,
                pages,
                page_size,
            } = geometry;
            if pages == 0 {
                continue;
            }
            let align = direct_io::ALIGN as u64;
            let end = page_size
                .checked_mul(pages.into())
                .and_then(|len| len.checked_add(offset));
            let addressable = isize::try_from(page_size).is_ok();
            if page_size == 0
                || !page_size.is_multiple_of(align)
                || !offset.is_multiple_of(align)
                || end.is_none()
                || !addressable
            {
                return Err(GeometryError {
                    array,
                    offset,
                    pages,
                    page_size,
                });
            }
        }
        Ok(Self(arrays))
    }

    /// One of the arrays.
    #[must_use]
    pub const fn array(&self, array: PageArray) -> &ArrayGeometry {
        &self.0[array.ordinal()]
    }

    /// Offset and length in bytes of a page, or none when the array has no such page.
    #[must_use]
    pub fn span(&self, page: PageId) -> Option<(u64, usize)> {
        let array = self.array(page.array);
        (page.index < array.pages).then(|| {
            let len =
                usize::try_from(array.page_size).expect("page sizes were compared with isize");
            (array.offset + array.page_size * u64::from(page.index), len)
        })
    }

    /// Bytes of the largest page, 0 when there are no pages.
    #[must_use]
    pub fn largest_page(&self) -> u64 {
        let paged = self.0.iter().filter(|array| array.pages > 0);
        paged.map(|array| array.page_size).max().unwrap_or(0)
    }

    /// Bytes of all pages.
    #[must_use]
    pub fn total(&self) -> u64 {
        let sizes = self
            .0
            .iter()
            .map(|array| array.page_size.saturating_mul(array.pages.into()));
        sizes.fold(0, u64::saturating_add)
    }
}

/// An array that cannot be paged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{array} pages: {pages} of {page_size} bytes at {offset} are not aligned to 4096 or do not fit an address"
)]
pub struct GeometryError {
    /// The array.
    pub array: PageArray,
    /// Its offset in bytes.
    pub offset: u64,
    /// Its pages.
    pub pages: u32,
    /// Bytes a page.
    pub page_size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(offset: u64, pages: u32, page_size: u64) -> ArrayGeometry {
        ArrayGeometry {
            offset,
            pages,
            page_size,
        }
    }

    #[test]
    fn spans_follow_the_arrays() {
        let none = ArrayGeometry::default();
        let geometry = Geometry::new(array(8192, 3, 4096), none, array(20480, 4, 8192)).unwrap();
        assert_eq!(geometry.span(PageId::text(2)), Some((16384, 4096)));
        assert_eq!(geometry.span(PageId::text(3)), None);
        assert_eq!(geometry.span(PageId::vision(0)), None);
        assert_eq!(geometry.span(PageId::expert(3)), Some((45056, 8192)));
        assert_eq!(geometry.largest_page(), 8192);
        assert_eq!(geometry.total(), 3 * 4096 + 4 * 8192);
    }

    #[test]
    fn arrays_that_cannot_be_paged_are_refused() {
        let none = ArrayGeometry::default();
        for bad in [
            array(1, 1, 4096),
            array(0, 1, 0),
            array(0, 1, 5000),
            array(u64::MAX - 4095, 2, 4096),
            array(0, u32::MAX, 1 << 62),
            array(0, 1, 1 << 63),
        ] {
            let error = Geometry::new(none, bad, none).unwrap_err();
            assert_eq!(error.array, PageArray::Vision, "{error}");
        }
        assert!(Geometry::new(array(1, 0, 7), none, none).is_ok());
    }
}
