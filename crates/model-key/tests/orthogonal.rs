//! Gaussian draws and orthogonal matrices against the reference's.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says why it is skipped"
)]
#![cfg(feature = "orthogonal")]

mod fixtures;

use fixtures::{Relabelled, folder, json, key};
use model_key::{Component, ModelKey, Path, Scope, Scoped, ScopedSite, Site, gaussian, orthogonal};
use safetensors::SafeTensors;
use secret::Secret;

fn tensor(archive: &SafeTensors<'_>, name: &str) -> Vec<f64> {
    let data = archive.tensor(name).unwrap();
    let chunks = data.data().as_chunks::<8>().0;
    chunks
        .iter()
        .map(|bytes| f64::from_le_bytes(*bytes))
        .collect()
}

fn worst(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let differences = actual.iter().zip(expected).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f64::max)
}

#[test]
fn matrices_are_the_reference_s_to_a_few_ulps() {
    let Some(folder) = folder() else { return };
    let bytes = std::fs::read(folder.join("vectors/orthogonal.safetensors")).unwrap();
    let archive = SafeTensors::deserialize(&bytes).unwrap();
    let key = key(&folder, "a");
    let relabelled = Relabelled {
        key: &key,
        label: "test/orthogonal".to_owned(),
    };
    let source = Scoped::new(&relabelled, Component::Model);
    for n in [4, 16, 64] {
        let samples = gaussian(&source, &Relabelled::PATH, &[n, n]).unwrap();
        let off = worst(&samples, &tensor(&archive, &format!("gaussian.{n}")));
        eprintln!("gaussian {n}: largest difference {off:e}");
        assert!(off <= 8.0 * f64::EPSILON, "gaussian {n}: {off:e}");
        let drawn = orthogonal(&source, &Relabelled::PATH, n, 1).unwrap();
        let off = worst(
            drawn.matrix(0),
            &tensor(&archive, &format!("orthogonal.{n}")),
        );
        eprintln!("orthogonal {n}: largest difference {off:e}");
        assert!(off <= 1e-13, "orthogonal {n}: {off:e}");
    }

    let typed = Scoped::new(&key, Component::Model);
    let v = Path::scoped(Scope::Layer(0), ScopedSite::V);
    let batch = orthogonal(&typed, &v, 8, 3).unwrap();
    let expected = tensor(&archive, "orthogonal.batch");
    assert_eq!(batch.batch(), 3);
    for h in 0..3 {
        let off = worst(batch.matrix(h), &expected[h * 64..(h + 1) * 64]);
        assert!(off <= 1e-14, "batch {h}: {off:e}");
    }

    let latent = Scoped::new(&key, Component::ZImageLatent);
    let basis = orthogonal(&latent, &Path::new(Site::LatentBasis), 16, 1).unwrap();
    let off = worst(basis.matrix(0), &tensor(&archive, "zimage.latent_basis"));
    assert!(off <= 1e-14, "latent basis: {off:e}");
}

#[test]
fn samples_are_the_reference_s() {
    let Some(folder) = folder() else { return };
    let vectors = json(&folder, "vectors/transforms.json");
    let key = key(&folder, vectors["key"].as_str().unwrap());
    for case in vectors["gaussian"].as_array().unwrap() {
        let relabelled = Relabelled {
            key: &key,
            label: case["label"].as_str().unwrap().to_owned(),
        };
        let source = Scoped::new(&relabelled, Component::Model);
        let shape: Vec<usize> = serde_json::from_value(case["shape"].clone()).unwrap();
        let drawn = gaussian(&source, &Relabelled::PATH, &shape).unwrap();
        let bits = |value: &serde_json::Value| {
            f64::from_bits(u64::from_str_radix(value.as_str().unwrap(), 16).unwrap())
        };
        let first: Vec<f64> = case["first8"]
            .as_array()
            .unwrap()
            .iter()
            .map(bits)
            .collect();
        let last: Vec<f64> = case["last2"].as_array().unwrap().iter().map(bits).collect();
        assert!(worst(&drawn[..first.len()], &first) <= 8.0 * f64::EPSILON);
        assert!(worst(&drawn[drawn.len() - last.len()..], &last) <= 8.0 * f64::EPSILON);
    }
}

#[test]
fn a_larger_matrix_is_orthogonal() {
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(5)));
    let source = Scoped::new(&key, Component::Model);
    let n = 257;
    let drawn = orthogonal(&source, &Path::new(Site::Residual), n, 1).unwrap();
    let q = drawn.matrix(0);
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..n).map(|k| q[i * n + k] * q[j * n + k]).sum();
            let expected = f64::from(u8::from(i == j));
            assert!((dot - expected).abs() < 1e-13, "{i} {j}: {dot}");
        }
    }
}

#[test]
fn empty_and_huge_shapes() {
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(5)));
    let source = Scoped::new(&key, Component::Model);
    let path = Path::new(Site::Residual);
    assert_eq!(orthogonal(&source, &path, 0, 1).unwrap().batch(), 0);
    assert_eq!(
        gaussian(&source, &path, &[0, 5]).unwrap(),
        Vec::<f64>::new()
    );
    let odd = gaussian(&source, &path, &[8193]).unwrap();
    assert_eq!(odd.len(), 8193);
    assert!(gaussian(&source, &path, &[1 << 20, 1 << 20]).is_err());
    assert!(orthogonal(&source, &path, 1 << 40, 3).is_err());
}
