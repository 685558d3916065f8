//! Pages of a sealed container, from a file and from ranges that arrive out of order.

#![allow(clippy::unwrap_used, reason = "a test fails loudly")]

#[path = "../../sealed-jlm/tests/model/mod.rs"]
mod model;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use direct_io::File;
use jlm::Region;
use model::{SealedFile, key, other_key, plain, seal};
use model_key::{ModelKey, SubkeySource};
use pager::{
    ArrayGeometry, ContainerUnsealer, Geometry, KeyRing, PageError, PageId, Pager, RangeSource,
    SealedSource, SourceError,
};
use sealed_jlm::SealedHeader;

fn geometry(header: &SealedHeader) -> Geometry {
    let h = header.container().header();
    let array = |offset, pages, page_size| ArrayGeometry {
        offset,
        pages,
        page_size,
    };
    Geometry::new(
        array(h.data_off, h.n_blocks, h.page_size),
        array(h.vis_data_off, h.n_vis_blocks, h.vis_page_size),
        array(h.exp_data_off, h.n_exp_pages, h.exp_page_size),
    )
    .unwrap()
}

fn ring(header: &SealedHeader, key: &ModelKey) -> Arc<KeyRing> {
    let ring = Arc::new(KeyRing::new());
    for unit in header.container().units() {
        ring.insert(unit, key.subkey(&header.subkey_id(unit)).unwrap());
    }
    ring
}

fn pages(geometry: &Geometry) -> Vec<PageId> {
    let text = (0..geometry.array(pager::PageArray::Text).pages).map(PageId::text);
    let experts = (0..geometry.array(pager::PageArray::Expert).pages).map(PageId::expert);
    text.chain(experts).collect()
}

fn pager(ranges: impl RangeSource + 'static, header: SealedHeader, ring: Arc<KeyRing>) -> Pager {
    let geometry = geometry(&header);
    let unsealer = ContainerUnsealer::new(Arc::new(header), ring);
    let source = SealedSource::new(ranges, geometry, unsealer);
    Pager::new(Arc::new(source), geometry, 2 * geometry.largest_page()).unwrap()
}

/// A container in memory whose pieces arrive last to first.
struct Backwards(Vec<u8>);

impl RangeSource for Backwards {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = usize::try_from(offset)?;
        out.copy_from_slice(self.0.get(start..start + out.len()).ok_or("too short")?);
        Ok(())
    }

    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut direct_io::Arrived<'_>,
    ) -> Result<ControlFlow<()>, SourceError> {
        self.read_range(offset, out)?;
        let parts: Vec<_> = out.chunks_mut(piece).enumerate().collect();
        for (index, part) in parts.into_iter().rev() {
            if arrived(index * piece, part).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[test]
fn every_page_of_a_sealed_file_is_the_plain_page() {
    let plain = plain();
    let sealed = seal(&plain);
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&sealed.bytes).unwrap();
    let header = sealed.header().unwrap();
    let ring = ring(&header, &key());
    let geometry = geometry(&header);
    let pager = pager(File::open(file.path()).unwrap(), header, ring);
    assert_eq!(pages(&geometry).len(), 2 + 6);
    for _ in 0..2 {
        for page in pages(&geometry) {
            let (offset, len) = geometry.span(page).unwrap();
            let lease = pager.get(page).unwrap();
            assert_eq!(*lease, plain[offset as usize..][..len], "{page}");
        }
    }
}

/// A page that is long enough for two threads, the second of them with the shorter part.
#[test]
fn a_long_page_is_opened_by_two_threads_and_refused_by_either() {
    let plain = model::large((9 << 20) + 4096);
    let sealed = model::seal_with(&plain, 8192, &key());
    let (offset, len) = geometry(&sealed.header().unwrap())
        .span(PageId::text(0))
        .unwrap();
    assert!(len > 2 * (4 << 20) && !len.is_multiple_of(1 << 20));
    let get = |bytes: &[u8]| {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.write_all(bytes).unwrap();
        let header = sealed.header().unwrap();
        let ring = ring(&header, &key());
        let pager = pager(File::open(file.path()).unwrap(), header, ring);
        let lease = pager.get(PageId::text(0));
        assert_eq!(pager.stats().total().failures, u64::from(lease.is_err()));
        lease.map(|lease| lease.to_vec())
    };
    assert!(get(&sealed.bytes).unwrap() == plain[offset as usize..][..len]);
    for at in [0, len / 2 - (1 << 20), len / 2 + (1 << 20), len - 1] {
        let mut changed = sealed.bytes.clone();
        changed[offset as usize + at] ^= 1;
        let error = get(&changed).unwrap_err();
        assert!(matches!(error, PageError::NotAuthentic { .. }), "{error}");
    }
}

#[test]
fn pieces_may_arrive_in_any_order() {
    let plain = model::large(3 << 20);
    let sealed = model::seal_with(&plain, 8192, &key());
    let header = sealed.header().unwrap();
    let ring = ring(&header, &key());
    let (offset, len) = geometry(&header).span(PageId::text(0)).unwrap();
    let pager = pager(Backwards(sealed.bytes), header, ring);
    let lease = pager.get(PageId::text(0)).unwrap();
    assert_eq!(*lease, plain[offset as usize..][..len]);
}

#[test]
fn a_changed_byte_a_swapped_page_and_another_key_are_refused_and_leave_no_page() {
    let sealed = seal(&plain());
    let header = || sealed.header().unwrap();
    let geometry = geometry(&header());
    let refusal = |bytes: Vec<u8>, key: &ModelKey, page: PageId| {
        let header = header();
        let ring = ring(&header, key);
        let pager = pager(Backwards(bytes), header, ring);
        let error = pager.get(page).unwrap_err();
        assert!(matches!(error, PageError::NotAuthentic { .. }), "{error}");
        assert_eq!(pager.stats().resident, 0);
        std::error::Error::source(&error).unwrap().to_string()
    };
    for page in pages(&geometry) {
        let (offset, len) = geometry.span(page).unwrap();
        let mut changed = sealed.bytes.clone();
        changed[offset as usize + len - 1] ^= 1;
        let reason = refusal(changed, &key(), page);
        assert!(reason.ends_with("not authentic"), "{reason}");
        refusal(sealed.bytes.clone(), &other_key(), page);
    }
    let (first, len) = geometry.span(PageId::expert(0)).unwrap();
    let (second, _) = geometry.span(PageId::expert(1)).unwrap();
    let mut swapped = sealed.bytes.clone();
    swapped.copy_within(second as usize..second as usize + len, first as usize);
    let reason = refusal(swapped, &key(), PageId::expert(0));
    assert_eq!(reason, "expert pages unit 0, chunk 0: not authentic");
}

#[test]
fn only_granted_units_open_and_none_after_the_keys_are_dropped() {
    let sealed: SealedFile = seal(&plain());
    let header = sealed.header().unwrap();
    let ring = Arc::new(KeyRing::new());
    for unit in header
        .container()
        .units()
        .filter(|unit| unit.region == Region::Text && unit.index == 1)
    {
        ring.insert(unit, key().subkey(&header.subkey_id(unit)).unwrap());
    }
    assert_eq!(
        (ring.len(), format!("{ring:?}")),
        (1, "KeyRing(1 keys)".to_owned())
    );
    let pager = pager(Backwards(sealed.bytes), header, Arc::clone(&ring));
    pager.get(PageId::text(1)).unwrap();
    for page in [PageId::text(0), PageId::expert(0), PageId::expert(5)] {
        assert!(
            matches!(pager.get(page), Err(PageError::NoKey { .. })),
            "{page}"
        );
    }
    ring.clear();
    pager.clear();
    assert!(ring.is_empty());
    assert!(matches!(
        pager.get(PageId::text(1)),
        Err(PageError::NoKey { .. })
    ));
}

/// Leaves the second piece out.
struct Forgetful(Backwards);

impl RangeSource for Forgetful {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.0.read_range(offset, out)
    }

    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut direct_io::Arrived<'_>,
    ) -> Result<ControlFlow<()>, SourceError> {
        self.read_range(offset, out)?;
        Ok(arrived(0, &mut out[..piece]))
    }
}

#[test]
fn a_source_that_leaves_a_piece_out_cannot_pass_sealed_bytes_on() {
    let sealed = model::seal_with(&model::large(1 << 20), 4096, &key());
    let header = sealed.header().unwrap();
    let ring = ring(&header, &key());
    let pager = pager(Forgetful(Backwards(sealed.bytes)), header, ring);
    let error = pager.get(PageId::text(0)).unwrap_err();
    assert!(matches!(error, PageError::Read { .. }), "{error}");
}
