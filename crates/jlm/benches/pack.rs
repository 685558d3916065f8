//! Packing against a copy of the same bytes.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use jlm::{DType, PlaneBytesMut, Sheet};

fn packing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pack");
    let (k, rows) = (4096, 4096);
    for dtype in [DType::Q4S, DType::Q8, DType::Q6S, DType::Q4] {
        let length = dtype.source_bytes(k, rows).expect("k is whole blocks") as usize;
        let source: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
        let lens = dtype.planes(k, rows).expect("k is whole blocks").as_array();
        let mut planes = lens.map(|len| vec![0; len as usize]);
        let sheet = Sheet {
            dtype,
            k: k as usize,
            rows: rows as usize,
        };
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(BenchmarkId::new("pack", dtype.name()), |bencher| {
            bencher.iter(|| {
                let [qs, d, sc] = &mut planes;
                sheet.pack(black_box(&source), PlaneBytesMut { qs, d, sc })
            });
        });
        let mut copy = vec![0; length];
        group.bench_function(BenchmarkId::new("memcpy", dtype.name()), |bencher| {
            bencher.iter(|| black_box(&mut copy).copy_from_slice(black_box(&source)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = packing
}
criterion_main!(benches);
