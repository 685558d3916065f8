//! Streams and permutations beside the raw ChaCha20 key stream, in one run.
//!
//! `cargo bench -p model-key --bench draws`

use std::hint::black_box;

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use model_key::{
    Component, KeyStream, ModelKey, Path, Scoped, Site, blocks, permutation, shuffle, signs,
};
use secret::Secret;

/// Qwen's vocabulary.
const VOCAB: usize = 151_643;
const STREAM: usize = 1 << 20;

fn draws(c: &mut Criterion) {
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(7)));
    let source = Scoped::new(&key, Component::Model);
    let path = Path::new(Site::Vocab);
    let subkey = Secret::fill_with(|bytes| bytes.fill(9));

    let mut group = c.benchmark_group("stream");
    group.throughput(Throughput::Bytes(STREAM as u64));
    let mut out = vec![0; STREAM];
    group.bench_function("chacha20 (baseline)", |b| {
        b.iter(|| {
            let mut cipher = ChaCha20::new(&[9; 32].into(), &[0; 12].into());
            cipher.write_keystream(black_box(&mut out));
        });
    });
    group.bench_function("fill", |b| {
        b.iter(|| KeyStream::new(&subkey).fill(black_box(&mut out)));
    });
    group.bench_function("words", |b| {
        b.iter(|| {
            let mut stream = KeyStream::new(&subkey);
            (0..STREAM / 8).fold(0, |sum: u64, _| sum.wrapping_add(stream.word()))
        });
    });
    group.bench_function("signs", |b| {
        b.iter(|| signs(&source, &path, STREAM));
    });
    group.finish();

    // Eight bytes of key stream for every position.
    let mut group = c.benchmark_group("permutation");
    group.throughput(Throughput::Bytes(8 * VOCAB as u64));
    let mut words = vec![0; 8 * VOCAB];
    group.bench_function("chacha20 (baseline)", |b| {
        b.iter(|| {
            let mut cipher = ChaCha20::new(&[9; 32].into(), &[0; 12].into());
            cipher.write_keystream(black_box(&mut words));
        });
    });
    let mut values: Vec<u32> = (0..VOCAB as u32).collect();
    group.bench_function("shuffle", |b| {
        b.iter(|| shuffle(&subkey, black_box(&mut values)));
    });
    group.bench_function("permutation", |b| {
        b.iter(|| permutation(&source, &path, VOCAB));
    });
    group.bench_function("blocks of 128", |b| {
        b.iter(|| blocks(&source, &path, 128 * (VOCAB / 128), &[128]));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2));
    targets = draws
}
criterion_main!(benches);
