//! Sealing and opening a unit against raw AES-256-GCM over the same bytes.

use std::hint::black_box;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use jlm::{Region, UnitId};
use model_key::SubkeySource;

#[path = "../tests/model/mod.rs"]
mod model;

fn units(criterion: &mut Criterion) {
    let plain = model::large(16 << 20);
    let sealed = model::seal_with(&plain, 256 << 10, &model::key());
    let header = sealed.header().expect("it was sealed here");
    let unit = UnitId::new(Region::Text, 0);
    let span = header.container().unit(unit).expect("it has a page");
    let range = span.offset as usize..(span.offset + span.length) as usize;
    let subkey = model::key()
        .subkey(&header.subkey_id(unit))
        .expect("a model key has all");
    let mut buffer = vec![0; range.len()];

    let mut group = criterion.benchmark_group("page");
    group.throughput(Throughput::Bytes(span.length));
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| buffer.copy_from_slice(black_box(&sealed.bytes[range.clone()])));
    });
    group.bench_function("memcpy and open", |bencher| {
        bencher.iter(|| {
            buffer.copy_from_slice(&sealed.bytes[range.clone()]);
            header.open_unit(unit, &subkey, &mut buffer)
        });
    });
    group.bench_function("memcpy and seal", |bencher| {
        bencher.iter_batched(
            || model::sealer(&plain, 256 << 10, &model::key()),
            |mut sealer| {
                buffer.copy_from_slice(&plain[range.clone()]);
                sealer.seal_unit(unit, &subkey, &mut buffer)
            },
            criterion::BatchSize::PerIteration,
        );
    });
    let key = UnboundKey::new(&AES_256_GCM, &[7; 32]).expect("32 bytes");
    let key = LessSafeKey::new(key);
    group.bench_function("memcpy and raw AES-256-GCM", |bencher| {
        bencher.iter(|| {
            buffer.copy_from_slice(&plain[range.clone()]);
            let nonce = Nonce::assume_unique_for_key([0; 12]);
            key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut buffer)
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = units
}
criterion_main!(benches);
