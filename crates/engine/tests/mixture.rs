//! The bytes that a mixture of 128 experts reads from its file for each token.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/drawn.rs"]
mod drawn;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use direct_io::File;
use drawn::{Drawn, Sizes};
use engine::{InMemory, KvPool, Model, Page, Paged, Session, SourceError, Weights};
use jlm::{Container, Region, Span};
use pager::{PageArray, PageId, Pager, PagerOptions, PlainSource, RangeSource};

const SIZES: Sizes = Sizes {
    blocks: 3,
    embd: 128,
    ffn: 64,
    experts: 128,
    used: 8,
    vocab: 64,
};

/// New tokens and ones seen before, near and far.
const TOKENS: [u32; 14] = [5, 60, 5, 5, 17, 33, 60, 2, 44, 17, 63, 0, 33, 5];

/// A container's file, and every span that is read from it.
struct Watched {
    file: File,
    read: Mutex<Vec<Span>>,
}

impl RangeSource for Watched {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let span = Span::new(offset, out.len() as u64);
        self.read.lock().unwrap().push(span);
        self.file.read_range(offset, out)
    }
}

/// A page that the engine asked for: a block's, or an expert's of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    block: u32,
    expert: Option<u32>,
    /// Whether it was there.
    resident: bool,
}

/// Notes the pages that the engine asks for.
struct Noting {
    weights: Paged<Vec<u8>>,
    asked: Mutex<Vec<Asked>>,
}

impl Noting {
    fn note(&self, block: u32, expert: Option<u32>) {
        let page = match expert {
            Some(expert) => PageId::expert(block * SIZES.experts + expert),
            None => PageId::text(block),
        };
        let resident = self.weights.pager().is_resident(page);
        self.asked.lock().unwrap().push(Asked {
            block,
            expert,
            resident,
        });
    }
}

impl Weights for Noting {
    fn dense(&self) -> &[u8] {
        self.weights.dense()
    }
    fn block(&self, block: u32) -> Result<Page<'_>, SourceError> {
        self.note(block, None);
        self.weights.block(block)
    }
    fn expert(&self, block: u32, expert: u32) -> Result<Page<'_>, SourceError> {
        self.note(block, Some(expert));
        self.weights.expert(block, expert)
    }
    fn prefetch_block(&self, block: u32) {
        self.weights.prefetch_block(block);
    }
    fn prefetch_experts(&self, block: u32, experts: &[u32]) {
        self.weights.prefetch_experts(block, experts);
    }
}

/// A model, its file, and a session that pages from it.
struct World {
    drawn: Drawn,
    source: Arc<Watched>,
    pager: Arc<Pager>,
    noting: Arc<Noting>,
    session: Session,
    /// The same weights in memory, for comparison.
    resident: Session,
    _file: tempfile::NamedTempFile,
}

/// What one token did.
struct Seen {
    asked: Vec<Asked>,
    read: Vec<Span>,
}

impl World {
    fn new(budget: impl FnOnce(&Container) -> u64, prefetch_threads: usize) -> Self {
        let drawn = Drawn::new(SIZES);
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.write_all(&drawn.bytes).unwrap();
        let container = Container::decode(&drawn.bytes, drawn.bytes.len() as u64).unwrap();
        assert_eq!(container, drawn.container);
        let geometry = Paged::geometry(&container).unwrap();
        let source = Arc::new(Watched {
            file: File::open(file.path()).unwrap(),
            read: Mutex::default(),
        });
        let options = PagerOptions {
            prefetch_threads,
            ..PagerOptions::new(budget(&container))
        };
        let pages = Arc::new(PlainSource::new(source.clone(), geometry));
        let pager = Arc::new(Pager::with_options(pages, geometry, options).unwrap());
        let dense = drawn.slice(container.region(Region::Dense)).to_vec();
        let noting = Arc::new(Noting {
            weights: Paged::new(&container, pager.clone(), dense),
            asked: Mutex::default(),
        });
        let model = Arc::new(Model::new(&container).unwrap());
        let session = |weights: Arc<dyn Weights>| {
            let pool = KvPool::new(model.kv_shape(), 16 << 20);
            Session::new(model.clone(), weights, pool).unwrap()
        };
        let in_memory = InMemory::new(&container, drawn.bytes.clone()).unwrap();
        Self {
            session: session(noting.clone()),
            resident: session(Arc::new(in_memory)),
            drawn,
            source,
            pager,
            noting,
            _file: file,
        }
    }

    /// Feeds one token, and compares what happened with the pages that the token's routing needs.
    fn feed(&mut self, token: u32) -> Seen {
        self.noting.asked.lock().unwrap().clear();
        self.source.read.lock().unwrap().clear();
        let before = self.pager.stats();
        let never = AtomicBool::new(false);
        let logits = self.session.feed(&[token], &never).unwrap();
        assert_eq!(logits, self.resident.feed(&[token], &never).unwrap());
        let after = self.pager.stats();
        let asked = self.noting.asked.lock().unwrap().clone();
        let read = self.source.read.lock().unwrap().clone();

        let pages: Vec<_> = asked
            .iter()
            .map(|asked| (asked.block, asked.expert))
            .collect();
        assert_eq!(pages, self.needed(token));
        for array in [PageArray::Text, PageArray::Expert] {
            let counted = after.array(array).bytes_read - before.array(array).bytes_read;
            let region = self.drawn.container.region(match array {
                PageArray::Expert => Region::Experts,
                _ => Region::Text,
            });
            let of_array = read.iter().filter(|span| region.contains(**span));
            assert_eq!(
                counted,
                of_array.map(|span| span.length).sum::<u64>(),
                "{array}"
            );
        }
        Seen { asked, read }
    }

    /// A block's page and its experts, block by block.
    fn needed(&self, token: u32) -> Vec<(u32, Option<u32>)> {
        let of_block = |block| {
            let experts = self.drawn.experts(block, token);
            assert_eq!(experts.len(), 8);
            let experts = experts.into_iter().map(Some);
            [None]
                .into_iter()
                .chain(experts)
                .map(move |page| (block, page))
        };
        (0..SIZES.blocks).flat_map(of_block).collect()
    }

    fn span(&self, (block, expert): (u32, Option<u32>)) -> Span {
        let container = &self.drawn.container;
        match expert {
            Some(expert) => container.expert_page(block, expert).unwrap(),
            None => {
                let size = container.header().page_size;
                let first = container.region(Region::Text).offset;
                Span::new(first + u64::from(block) * size, size)
            }
        }
    }
}

fn eight_experts(container: &Container) -> u64 {
    let header = container.header();
    header.page_size.max(8 * header.exp_page_size)
}

fn half(container: &Container) -> u64 {
    everything(container) / 2
}

fn everything(container: &Container) -> u64 {
    let regions = [Region::Text, Region::Experts];
    regions
        .map(|region| container.region(region).length)
        .iter()
        .sum()
}

fn bytes(spans: &[Span]) -> u64 {
    spans.iter().map(|span| span.length).sum()
}

/// Under any budget, a token reads the pages that its routing chose and that were not there, in the
/// order in which they are used, and no other byte of the file.
#[test]
fn a_token_reads_exactly_its_pages_that_are_missing() {
    for budget in [eight_experts, half, everything] {
        let mut world = World::new(budget, 0);
        let budget = world.pager.stats().budget;
        for token in TOKENS {
            let seen = world.feed(token);
            let missing = seen.asked.iter().filter(|asked| !asked.resident);
            let missing: Vec<_> = missing
                .map(|asked| world.span((asked.block, asked.expert)))
                .collect();
            assert_eq!(seen.read, missing, "token {token}, budget {budget}");
            assert!(world.pager.stats().resident <= budget);
        }
    }
}

/// With no room for what earlier tokens used, each token reads 8 of 128 experts of each block: a
/// sixteenth of the experts' bytes.
#[test]
fn without_room_a_token_reads_a_sixteenth_of_the_experts() {
    let mut world = World::new(eight_experts, 0);
    let experts = world.drawn.container.region(Region::Experts);
    for token in TOKENS {
        let seen = world.feed(token);
        let read: Vec<_> = seen
            .read
            .into_iter()
            .filter(|span| experts.contains(*span))
            .collect();
        let chosen = world
            .needed(token)
            .into_iter()
            .filter(|(_, expert)| expert.is_some());
        let chosen: Vec<_> = chosen.map(|page| world.span(page)).collect();
        assert_eq!(read, chosen);
        assert_eq!(16 * bytes(&read), experts.length);
    }
}

/// With room for everything, a page is read for the first token that needs it and never again, read
/// ahead or not.
#[test]
fn with_room_a_token_reads_what_none_before_it_used() {
    for prefetch_threads in [0, 2] {
        let mut world = World::new(everything, prefetch_threads);
        let mut used = BTreeSet::new();
        for token in TOKENS {
            let mut seen = world.feed(token);
            let needed = world.needed(token).into_iter();
            let mut new: Vec<_> = needed.filter(|page| used.insert(*page)).collect();
            new.sort_unstable();
            let mut new: Vec<_> = new.into_iter().map(|page| world.span(page)).collect();
            for spans in [&mut seen.read, &mut new] {
                spans.sort_unstable_by_key(|span| span.offset);
            }
            assert_eq!(seen.read, new, "token {token}");
        }
        assert_eq!(bytes(&world.feed(TOKENS[0]).read), 0);
        let of_used: Vec<_> = used.iter().map(|page| world.span(*page)).collect();
        assert_eq!(world.pager.stats().total().bytes_read, bytes(&of_used));
        assert_eq!(world.pager.stats().resident, bytes(&of_used));
    }
}
