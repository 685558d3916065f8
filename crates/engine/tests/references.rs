//! Logits and greedy tokens of the fixtures' models against their references.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[allow(dead_code, reason = "tests use parts of it")]
mod support;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use convert::Options;
use engine::{
    Finish, InMemory, KvPool, Level, Model, Page, Paged, Request, RunError, Sampling, Session,
    SourceError, Weights,
};
use jlm::Region;
use pager::{
    PageArray, PageError, PageId, PageSource, Pager, PagerOptions, PlainSource, RangeSource,
};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use serde_json::Value;
use support::{Made, fixtures, floats, json};

const MODELS: [&str; 4] = ["tiny-qwen3", "tiny-qwen2", "tiny-llama3", "tiny-qwen3-moe"];

fn made(fixtures: &Path, name: &str) -> Made {
    Made::from_folder(&fixtures.join("models").join(name), &Options::default())
}

fn open(made: &Made) -> (Arc<Model>, Arc<dyn Weights>) {
    let model = Model::new(&made.container).unwrap();
    let weights = InMemory::new(&made.container, made.bytes.clone()).unwrap();
    (Arc::new(model), Arc::new(weights))
}

fn session(model: &Arc<Model>, weights: &Arc<dyn Weights>, level: Level) -> Session {
    let pool = KvPool::new(model.kv_shape(), 64 << 20);
    Session::with_level(model.clone(), weights.clone(), pool, level).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap();
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

#[test]
fn first_logits_are_the_references_at_every_level() {
    let Some(fixtures) = fixtures() else { return };
    for name in MODELS {
        let made = made(&fixtures, name);
        let (model, weights) = open(&made);
        let reference = json(fixtures.join(format!("models/{name}.reference.json")));
        let logits_file = fixtures.join(format!("models/{name}.reference.safetensors"));
        for prompt in reference["prompts"].as_array().unwrap() {
            let expected = floats(&logits_file, prompt["first_step_logits"].as_str().unwrap());
            for level in Level::available() {
                let mut session = session(&model, &weights, level);
                let logits = session.feed(&ids(&prompt["input_ids"]), &never()).unwrap();
                assert_eq!(logits.len(), expected.len());
                let worst = logits
                    .iter()
                    .zip(&expected)
                    .map(|(a, b)| (a - b).abs())
                    .fold(0.0, f32::max);
                assert!(
                    worst < 1e-4,
                    "{name} {} {}: {worst}",
                    prompt["name"],
                    level.name()
                );
            }
        }
    }
}

/// Greedy tokens over the reference's own tokens, so that a narrow choice does not end the test.
#[test]
fn greedy_tokens_are_the_references() {
    let Some(fixtures) = fixtures() else { return };
    for name in MODELS {
        let made = made(&fixtures, name);
        let (model, weights) = open(&made);
        let reference = json(fixtures.join(format!("models/{name}.reference.json")));
        for prompt in reference["prompts"].as_array().unwrap() {
            let mut session = session(&model, &weights, Level::detect());
            let mut logits = session.feed(&ids(&prompt["input_ids"]), &never()).unwrap();
            let margins = prompt["top2_margins"].as_array().unwrap();
            for (step, (id, margin)) in ids(&prompt["greedy_ids"]).iter().zip(margins).enumerate() {
                let what = format!("{name} {} step {step}", prompt["name"]);
                assert_chosen(&what, &logits, *id, margin);
                logits = session.feed(&[*id], &never()).unwrap();
            }
        }
    }
}

/// The reference's token has the best logit, or one as good where its own margin is small.
fn assert_chosen(what: &str, logits: &[f32], id: u32, margin: &Value) {
    let best = logits.iter().copied().fold(f32::MIN, f32::max);
    let chosen = logits[id as usize];
    if margin.as_f64().unwrap() > 0.02 {
        assert_eq!(chosen, best, "{what}");
    } else {
        assert!(best - chosen < 1e-3, "{what}");
    }
}

fn run(session: &mut Session, prompt: &[u32], max_tokens: usize, sampling: Sampling) -> Vec<u32> {
    let mut out = Vec::new();
    let request = Request {
        prompt,
        max_tokens,
        stop: &[],
        sampling,
    };
    let mut rng = ChaCha20Rng::seed_from_u64(11);
    let finish = session
        .generate(&request, &mut rng, &never(), |id| {
            out.push(id);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(finish, Finish::Length);
    out
}

/// Lends pages from a few frames only: a page is copied in when it is asked for, and wiped when
/// its frame is needed.
struct Frames {
    inner: InMemory<Vec<u8>>,
    frames: usize,
    held: Mutex<Vec<Arc<Mutex<usize>>>>,
    most: Mutex<usize>,
}

struct Frame {
    bytes: Vec<u8>,
    _token: Arc<Mutex<usize>>,
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.bytes.fill(0xff);
    }
}

impl Frames {
    fn lend(&self, page: Page<'_>) -> Result<Page<'_>, SourceError> {
        let mut held = self.held.lock().unwrap();
        held.retain(|token| Arc::strong_count(token) > 1);
        if held.len() == self.frames {
            return Err("no frame is free".into());
        }
        let token = Arc::new(Mutex::new(0));
        held.push(token.clone());
        let mut most = self.most.lock().unwrap();
        *most = held.len().max(*most);
        Ok(Box::new(Frame {
            bytes: (*page).as_ref().to_vec(),
            _token: token,
        }))
    }
}

impl Weights for Frames {
    fn dense(&self) -> &[u8] {
        self.inner.dense()
    }
    fn block(&self, block: u32) -> Result<Page<'_>, SourceError> {
        self.lend(self.inner.block(block)?)
    }
    fn expert(&self, block: u32, expert: u32) -> Result<Page<'_>, SourceError> {
        self.lend(self.inner.expert(block, expert)?)
    }
}

#[test]
fn pages_that_come_and_go_change_no_bit() {
    let Some(fixtures) = fixtures() else { return };
    for name in MODELS {
        let made = made(&fixtures, name);
        let (model, resident) = open(&made);
        let frames = Arc::new(Frames {
            inner: InMemory::new(&made.container, made.bytes.clone()).unwrap(),
            frames: 2,
            held: Mutex::default(),
            most: Mutex::default(),
        });
        let paged: Arc<dyn Weights> = frames.clone();
        let prompt: Vec<u32> = (0..70).map(|i| i * 17 % 2000).collect();
        let level = Level::detect();
        let mut all = session(&model, &resident, level);
        let mut few = session(&model, &paged, level);
        let whole = all.feed(&prompt, &never()).unwrap();
        // Fed in other pieces, too.
        few.feed(&prompt[..1], &never()).unwrap();
        few.feed(&prompt[1..40], &never()).unwrap();
        assert_eq!(few.feed(&prompt[40..], &never()).unwrap(), whole, "{name}");
        assert!(*frames.most.lock().unwrap() <= 2);
    }
}

#[test]
fn chance_follows_the_seed() {
    let Some(fixtures) = fixtures() else { return };
    let made = made(&fixtures, "tiny-qwen3");
    let (model, weights) = open(&made);
    let sampling = Sampling::Random {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
    };
    let once = || {
        run(
            &mut session(&model, &weights, Level::detect()),
            &[1165, 258],
            24,
            sampling,
        )
    };
    let greedy = run(
        &mut session(&model, &weights, Level::detect()),
        &[1165, 258],
        24,
        Sampling::Greedy,
    );
    assert_eq!(once(), once());
    assert_ne!(once(), greedy);
}

#[test]
fn runs_end_for_the_reason_they_say() {
    let Some(fixtures) = fixtures() else { return };
    let made = made(&fixtures, "tiny-qwen2");
    let (model, weights) = open(&made);
    let fresh = || session(&model, &weights, Level::detect());
    let mut rng = ChaCha20Rng::seed_from_u64(0);
    let greedy = |prompt, max_tokens, stop| Request {
        prompt,
        max_tokens,
        stop,
        sampling: Sampling::Greedy,
    };
    let on = |_| ControlFlow::Continue(());
    // The reference continues with 259, 401, 11.
    let prompt = [296, 386, 388, 11, 1488, 381, 295];

    let mut drawn = Vec::new();
    let request = greedy(&prompt, 9, &[401]);
    let finish = fresh().generate(&request, &mut rng, &never(), |id| {
        drawn.push(id);
        on(id)
    });
    assert_eq!(finish.unwrap(), Finish::Stop(401));
    assert_eq!(drawn, [259]);

    let finish = fresh().generate(&greedy(&prompt, 9, &[]), &mut rng, &never(), |_| {
        ControlFlow::Break(())
    });
    assert_eq!(finish.unwrap(), Finish::Halted);

    let long = vec![5; 512];
    let finish = fresh().generate(&greedy(&long, 9, &[]), &mut rng, &never(), on);
    assert_eq!(finish.unwrap(), Finish::Context);
    let longer = vec![5; 513];
    let error = fresh().generate(&greedy(&longer, 1, &[]), &mut rng, &never(), on);
    assert!(matches!(
        error.unwrap_err(),
        RunError::Context {
            needed: 513,
            maximum: 512
        }
    ));

    let error = fresh().feed(&[], &never()).unwrap_err();
    assert!(matches!(error, RunError::EmptyPrompt));
    let error = fresh().feed(&[2048], &never()).unwrap_err();
    assert!(matches!(
        error,
        RunError::TokenId {
            id: 2048,
            size: 2048
        }
    ));
    let cancelled = AtomicBool::new(true);
    let error = fresh().generate(&greedy(&prompt, 9, &[]), &mut rng, &cancelled, on);
    assert!(matches!(error.unwrap_err(), RunError::Cancelled));

    let pool = KvPool::new(model.kv_shape(), model.kv_shape().block_bytes());
    let mut small = Session::new(model.clone(), weights.clone(), pool.clone()).unwrap();
    small.feed(&prompt, &never()).unwrap();
    assert!(matches!(
        small.feed(&[1; 26], &never()).unwrap_err(),
        RunError::KvBudget { .. }
    ));
    assert_eq!(
        small.position(),
        7,
        "a refused feed leaves the session as it was"
    );
    drop(small);
    assert_eq!(pool.held(), 0);
}

#[test]
fn a_value_that_is_not_finite_is_named() {
    let Some(fixtures) = fixtures() else { return };
    let mut made = made(&fixtures, "tiny-qwen3");
    let entry = made.container.tensor_of(jlm::Role::FFN_UP, 2).unwrap();
    let at = made.container.planes(entry).qs.offset as usize;
    made.bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    let (model, weights) = open(&made);
    let error = session(&model, &weights, Level::detect())
        .feed(&[1, 2], &never())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "output of block 2 has a value that is not finite"
    );
}

/// A container's bytes, read as a file would be.
struct Bytes(Vec<u8>);

impl RangeSource for Bytes {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
        Ok(())
    }
}

#[test]
fn a_pager_with_room_for_a_page_or_two_changes_no_bit() {
    let Some(fixtures) = fixtures() else { return };
    for (name, is_mixture) in [
        ("tiny-qwen3", false),
        ("tiny-llama3", false),
        ("tiny-qwen3-moe", true),
    ] {
        let made = made(&fixtures, name);
        let (model, resident) = open(&made);
        let header = made.container.header();
        let budget = match is_mixture {
            true => header.page_size.max(2 * header.exp_page_size),
            false => 2 * header.page_size,
        };
        let geometry = Paged::geometry(&made.container).unwrap();
        let source = PlainSource::new(Bytes(made.bytes.clone()), geometry);
        let pager = Arc::new(Pager::new(Arc::new(source), geometry, budget).unwrap());
        let dense = made.container.region(Region::Dense);
        let dense = made.bytes[dense.offset as usize..][..dense.length as usize].to_vec();
        let paged: Arc<dyn Weights> = Arc::new(Paged::new(&made.container, pager.clone(), dense));

        let reference = json(fixtures.join(format!("models/{name}.reference.json")));
        let prompt = ids(&reference["prompts"][0]["input_ids"]);
        let mut all = session(&model, &resident, Level::detect());
        let mut few = session(&model, &paged, Level::detect());
        assert_eq!(
            run(&mut few, &prompt, 24, Sampling::Greedy),
            run(&mut all, &prompt, 24, Sampling::Greedy),
            "{name}"
        );
        let stats = pager.stats();
        assert!(
            stats.resident <= budget && stats.total().evictions > 0,
            "{name}: {stats:?}"
        );
        if is_mixture {
            // At most the experts each position used, in each block, and no other's bytes.
            let positions = prompt.len() as u64 + 23;
            let most = positions * model.layers() as u64 * 2 * header.exp_page_size;
            let read = stats.array(PageArray::Expert).bytes_read;
            assert!(read > 0 && read <= most, "{read} of at most {most}");
        }
        drop(few);
        pager.revoke();
        let mut refused = session(&model, &paged, Level::detect());
        let error = refused.feed(&prompt, &never()).unwrap_err();
        assert_eq!(error.to_string(), "weights of block 0 cannot be read");
    }
}

/// Notes every page that is read.
struct Watched {
    pages: PlainSource<Bytes>,
    read: Mutex<Vec<PageId>>,
}

impl PageSource for Watched {
    fn read_page(&self, page: PageId, out: &mut [u8]) -> Result<(), PageError> {
        self.read.lock().unwrap().push(page);
        self.pages.read_page(page, out)
    }
}

/// Notes every expert that the engine computes with, as the page it has in the file.
struct Asked {
    weights: Paged<Vec<u8>>,
    mixtures: Vec<u32>,
    experts: u32,
    used: Mutex<BTreeSet<PageId>>,
}

impl Weights for Asked {
    fn dense(&self) -> &[u8] {
        self.weights.dense()
    }
    fn block(&self, block: u32) -> Result<Page<'_>, SourceError> {
        self.weights.block(block)
    }
    fn expert(&self, block: u32, expert: u32) -> Result<Page<'_>, SourceError> {
        let ordinal = self.mixtures.binary_search(&block).unwrap() as u32;
        let page = PageId::expert(ordinal * self.experts + expert);
        self.used.lock().unwrap().insert(page);
        self.weights.expert(block, expert)
    }
    fn prefetch_block(&self, block: u32) {
        self.weights.prefetch_block(block);
    }
    fn prefetch_experts(&self, block: u32, experts: &[u32]) {
        self.weights.prefetch_experts(block, experts);
    }
}

/// Every prompt of the reference from expert pages with room for two, and every byte that each
/// token reads: the two experts of each block that the router chose, and no other's.
#[test]
fn a_mixture_reads_only_the_experts_that_each_token_uses() {
    let Some(fixtures) = fixtures() else { return };
    let name = "tiny-qwen3-moe";
    let made = made(&fixtures, name);
    let model = Arc::new(Model::new(&made.container).unwrap());
    let header = made.container.header();
    let (expert_page, text_page) = (header.exp_page_size, header.page_size);
    let budget = text_page.max(2 * expert_page);
    assert!(budget < 3 * expert_page, "room for two experts, not three");
    let config = made.container.config();
    assert_eq!((config.n_expert, config.n_expert_used), (8, 2));
    let geometry = Paged::geometry(&made.container).unwrap();
    let dense = made.container.region(Region::Dense);
    let dense = made.bytes[dense.offset as usize..][..dense.length as usize].to_vec();
    let reference = json(fixtures.join(format!("models/{name}.reference.json")));

    for prefetch_threads in [0, 2] {
        let source = Arc::new(Watched {
            pages: PlainSource::new(Bytes(made.bytes.clone()), geometry),
            read: Mutex::default(),
        });
        let options = PagerOptions {
            prefetch_threads,
            ..PagerOptions::new(budget)
        };
        let pager = Pager::with_options(source.clone(), geometry, options).unwrap();
        let pager = Arc::new(pager);
        let asked = Arc::new(Asked {
            weights: Paged::new(&made.container, pager.clone(), dense.clone()),
            mixtures: made.container.mixtures().to_vec(),
            experts: made.container.experts(),
            used: Mutex::default(),
        });
        let weights: Arc<dyn Weights> = asked.clone();
        for prompt in reference["prompts"].as_array().unwrap() {
            let mut session = session(&model, &weights, Level::detect());
            let mut logits = session.feed(&ids(&prompt["input_ids"]), &never()).unwrap();
            let margins = prompt["top2_margins"].as_array().unwrap();
            let steps = ids(&prompt["greedy_ids"]);
            for (step, (id, margin)) in steps.iter().zip(margins).enumerate() {
                let what = format!("{} step {step}", prompt["name"]);
                assert_chosen(&what, &logits, *id, margin);
                asked.used.lock().unwrap().clear();
                source.read.lock().unwrap().clear();
                let before = pager.stats();
                logits = session.feed(&[*id], &never()).unwrap();
                let after = pager.stats();
                let used = asked.used.lock().unwrap().clone();
                assert_eq!(used.len(), 2 * model.layers(), "{what}");
                let read: Vec<PageId> = source.read.lock().unwrap().clone();
                let experts: Vec<_> = read
                    .iter()
                    .filter(|page| page.array == PageArray::Expert)
                    .collect();
                assert!(
                    experts.iter().all(|page| used.contains(page)),
                    "{what}: {experts:?} of {used:?}"
                );
                let bytes = |array| after.array(array).bytes_read - before.array(array).bytes_read;
                assert_eq!(
                    bytes(PageArray::Expert),
                    experts.len() as u64 * expert_page,
                    "{what}"
                );
                assert!(experts.len() <= used.len(), "{what}: each at most once");
                assert!(after.resident <= budget, "{what}");
                if prefetch_threads == 0 {
                    let text = (read.len() - experts.len()) as u64;
                    assert_eq!(bytes(PageArray::Text), text * text_page, "{what}");
                    assert!(text <= model.layers() as u64, "{what}");
                }
            }
        }
        assert!(pager.stats().array(PageArray::Expert).bytes_read > 0);
        if prefetch_threads > 0 {
            assert!(pager.stats().total().read_ahead > 0);
        }
    }
}

#[test]
fn quantized_weights_stay_close_to_their_source() {
    let Some(fixtures) = fixtures() else { return };
    for name in MODELS {
        let exact = open(&made(&fixtures, name));
        let q8 = Options {
            q8: true,
            ..Options::default()
        };
        let q8 = open(&Made::from_folder(&fixtures.join("models").join(name), &q8));
        let prompt: Vec<u32> = (0..20).map(|i| i * 97 % 2000).collect();
        for level in Level::available() {
            let mut logits = [&exact, &q8].map(|(model, weights)| {
                session(model, weights, level)
                    .feed(&prompt, &never())
                    .unwrap()
            });
            let [exact, q8] = &mut logits;
            let norm = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let size = norm(exact);
            exact.iter_mut().zip(q8.iter()).for_each(|(a, b)| *a -= b);
            let part = norm(exact) / size;
            assert!(part > 0.0 && part < 0.02, "{name} {}: {part}", level.name());
        }
    }
}
