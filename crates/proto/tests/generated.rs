//! The committed code is what the `.proto` files give; `CHANCERY_REGENERATE=1` writes it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

const FILES: [&str; 2] = ["chancery.v1.rs", "descriptor.bin"];

#[test]
fn the_committed_code_is_up_to_date() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    if std::env::var_os("CHANCERY_REGENERATE").is_some_and(|value| value == "1") {
        generate(&committed);
        return;
    }
    let fresh = tempfile::tempdir().unwrap();
    generate(fresh.path());
    for file in FILES {
        let same =
            fs::read(fresh.path().join(file)).unwrap() == fs::read(committed.join(file)).unwrap();
        assert!(
            same,
            "{file} differs from proto/: run this test with CHANCERY_REGENERATE=1"
        );
    }
}

fn generate(out: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let mut compiler = protox::Compiler::new([&root]).unwrap();
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(proto_files(&root)).unwrap();
    // Reflection needs no comments; the generator turns them into documentation.
    let documented = compiler.file_descriptor_set();
    let mut plain = documented.clone();
    for file in &mut plain.file {
        file.source_code_info = None;
    }
    fs::write(out.join("descriptor.bin"), prost_encode(&plain)).unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .bytes(".chancery.v1.GetBlobResponse")
        .bytes(".chancery.v1.PutBlobRequest")
        .skip_debug([
            "chancery.v1.GetBlobRequest",
            "chancery.v1.ProveRangeRequest",
            "chancery.v1.StatBlobRequest",
            "chancery.v1.IssueUnlockResponse",
            "chancery.v1.ChatMessage",
            "chancery.v1.GenerateRequest",
            "chancery.v1.GenerateRequest.input",
            "chancery.v1.GenerateResponse",
        ])
        .out_dir(out)
        .compile_fds(documented)
        .unwrap();
}

fn prost_encode(set: &prost_types::FileDescriptorSet) -> Vec<u8> {
    prost::Message::encode_to_vec(set)
}

/// Every `.proto` file, as a path below the include root, in order.
fn proto_files(root: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(root.join("chancery/v1"))
        .unwrap()
        .map(|entry| Path::new("chancery/v1").join(entry.unwrap().file_name()))
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "proto")
        })
        .collect();
    files.sort();
    files
}
