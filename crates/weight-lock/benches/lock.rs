//! What the lock costs, beside what bounds it, in one run and on one core.
//!
//! `cargo bench -p weight-lock`. Each line is the best of many short samples, so that other work on
//! the machine disturbs as little as it can. Baselines are measured between the lines they are
//! compared with. A filter word keeps the lines that contain it.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints, and reads the clock"
)]
#![expect(unsafe_code, reason = "AWS-LC's ChaCha20 is a C function")]

use std::hint::black_box;
use std::time::Instant;

use aes::Aes256;
use aws_lc_sys::{AES_KEY, AES_ctr128_encrypt, AES_set_encrypt_key, CRYPTO_chacha_20};
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use secret::Secret;
use weight_lock::{Domain, Element, Implementation, Lock, Scan, Version};

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|word| !word.starts_with("--"));
    let wanted = |line: &str| filter.as_deref().is_none_or(|word| line.contains(word));
    println!("{BYTES} bytes a call, best of {SAMPLES} samples; GB/s of tensor data, one core");
    println!("implementations: {:?}\n", Implementation::available());

    let stream = Streams::measure();
    println!("memcpy                             {:7.2}", stream.memcpy);
    println!(
        "ChaCha20 key stream, AWS-LC        {:7.2}",
        stream.chacha_aws
    );
    println!(
        "ChaCha20 key stream, chacha20      {:7.2}",
        stream.chacha_rust
    );
    println!("AES-256-CTR key stream, AWS-LC     {:7.2}", stream.aes_aws);
    println!(
        "AES-256-CTR key stream, aes + ctr  {:7.2}\n",
        stream.aes_rust
    );

    println!(
        "line                          GB/s   limit  ratio   (limit: the faster key stream's rate"
    );
    println!(
        "                                                    over its bytes per byte of data)"
    );
    for element in Element::ALL {
        let line = format!("scan {element}");
        if wanted(&line) {
            let plain = plain(element);
            let rate = best(|| {
                let mut scan = Scan::new(element);
                black_box(scan.update(0, black_box(&plain))).expect("finite values");
            });
            println!(
                "{line:<28} {rate:6.2}  {:6.2}  {:5.2}   (limit: memcpy)",
                stream.memcpy,
                rate / stream.memcpy
            );
        }
    }
    for version in [Version::V2, Version::V1] {
        for element in Element::ALL {
            if !element.is_coded_by(version) {
                continue;
            }
            for implementation in Implementation::available() {
                measure_lock(version, element, implementation, &wanted);
            }
        }
    }
}

fn measure_lock(
    version: Version,
    element: Element,
    implementation: Implementation,
    wanted: &impl Fn(&str) -> bool,
) {
    let plain = plain(element);
    let mut scan = Scan::new(element);
    scan.update(0, &plain).expect("finite values");
    let domain = scan.domain().expect("values");
    let key = Secret::fill_with(|bytes| bytes.fill(7));
    let lock = Lock::with(implementation, version, &key, domain);
    for unlock in [false, true] {
        let verb = if unlock { "unlock" } else { "lock" };
        let line = format!("{version} {element} {verb} {implementation:?}");
        if !wanted(&line) {
            continue;
        }
        // Measured here again: the machine may be slower now than at the start.
        let streams = Streams::measure();
        let stream = match version {
            Version::V2 => streams.chacha_aws.max(streams.chacha_rust),
            Version::V1 => streams.aes_aws.max(streams.aes_rust),
        };
        let limit = stream / stream_bytes_per_byte(version, domain);
        let mut bytes = plain.clone();
        // Locked values are in the domain too, so that either can be repeated.
        let rate = best(|| {
            let done = if unlock {
                lock.unlock(0, black_box(&mut bytes))
            } else {
                lock.lock(0, black_box(&mut bytes))
            };
            done.expect("values in the domain");
        });
        println!("{line:<28} {rate:6.2}  {limit:6.2}  {:5.2}", rate / limit);
    }
}

/// Key-stream bytes for each byte of data.
fn stream_bytes_per_byte(version: Version, domain: Domain) -> f64 {
    let element = domain.element();
    let two_words = match version {
        Version::V1 => element == Element::F32,
        Version::V2 => domain.span() > 1 << 31,
    };
    let per_value = if two_words { 8.0 } else { 4.0 };
    per_value * element.values_per_unit() as f64 / element.width() as f64
}

struct Streams {
    memcpy: f64,
    chacha_aws: f64,
    chacha_rust: f64,
    aes_aws: f64,
    aes_rust: f64,
}

impl Streams {
    fn measure() -> Self {
        let source = vec![1_u8; BYTES];
        let mut out = vec![0_u8; BYTES];
        let key = [7_u8; 32];
        let memcpy = best(|| black_box(&mut out[..]).copy_from_slice(black_box(&source)));
        let chacha_aws = best(|| {
            let out = black_box(&mut out);
            // SAFETY: input and output are the same `BYTES` bytes, which the function allows; the
            // key is 32 bytes and the nonce 12.
            unsafe {
                CRYPTO_chacha_20(
                    out.as_mut_ptr(),
                    out.as_ptr(),
                    BYTES,
                    key.as_ptr(),
                    [0_u8; 12].as_ptr(),
                    0,
                );
            }
        });
        let chacha_rust = best(|| {
            let mut stream = ChaCha20::new(&key.into(), &[0; 12].into());
            stream.apply_keystream(black_box(&mut out));
        });
        let mut schedule = AES_KEY {
            rd_key: [0; 60],
            rounds: 0,
        };
        // SAFETY: the key is 256 bits long and the schedule is valid for writes.
        unsafe { AES_set_encrypt_key(key.as_ptr(), 256, &raw mut schedule) };
        let aes_aws = best(|| {
            let out = black_box(&mut out);
            let (mut counter, mut spare, mut used) = ([0_u8; 16], [0_u8; 16], 0);
            // SAFETY: input and output are the same `BYTES` bytes, which the function allows; the
            // schedule is set, counter and spare block are 16 bytes.
            unsafe {
                AES_ctr128_encrypt(
                    out.as_ptr(),
                    out.as_mut_ptr(),
                    BYTES,
                    &raw const schedule,
                    counter.as_mut_ptr(),
                    spare.as_mut_ptr(),
                    &raw mut used,
                );
            }
        });
        let aes_rust = best(|| {
            let mut stream = ctr::Ctr128BE::<Aes256>::new(&key.into(), &[0; 16].into());
            stream.apply_keystream(black_box(&mut out));
        });
        Self {
            memcpy,
            chacha_aws,
            chacha_rust,
            aes_aws,
            aes_rust,
        }
    }
}

/// GB/s of `BYTES` bytes at the fastest sample.
fn best(mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..SAMPLES {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    BYTES as f64 / best / 1e9
}

/// Small values of both signs, as weights are; f32 below 2, tables small.
fn plain(element: Element) -> Vec<u8> {
    let mut noise = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(BYTES);
    while bytes.len() < BYTES {
        noise = noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let bits = noise >> 40;
        let value = (bits as f32 / (1 << 23) as f32 - 1.0).to_bits();
        match element {
            Element::Bf16 => bytes.extend_from_slice(&((value >> 16) as u16).to_le_bytes()),
            Element::F16 => bytes.extend_from_slice(&(bits as u16 & 0xBBFF).to_le_bytes()),
            Element::F32 => bytes.extend_from_slice(&value.to_le_bytes()),
            Element::F8E4m3 | Element::F8E5m2 => bytes.push(bits as u8 & 0xB7),
            Element::E2m1x2 => bytes.push(bits as u8),
            Element::E8m0 => bytes.push(bits as u8 & 0x7F),
            Element::I16 => bytes.extend_from_slice(&(bits as u16 & 0x3FF).to_le_bytes()),
            Element::I32 => bytes.extend_from_slice(&(bits as u32 & 0x3FF).to_le_bytes()),
            Element::I64 => bytes.extend_from_slice(&(bits & 0x3FF).to_le_bytes()),
        }
    }
    bytes
}

const BYTES: usize = 256 << 10;
const SAMPLES: usize = 300;
