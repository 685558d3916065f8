//! Every engine gives the file's bytes, refuses what lies beyond it, and notices a changed file.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails loudly and says what it skips"
)]

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use direct_io::{ALIGN, AlignedBuf, Engine, EngineChoice, File, OpenOptions, ReadAt, ReadError};
use proptest::prelude::*;

const SIZE: usize = 3 * 1024 * 1024 + 5000;

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4096 * 7) as u8).collect()
}

/// The file under each engine that works where `dir` is.
fn opened(path: &Path) -> Vec<File> {
    let all = [Engine::Uring, Engine::Direct, Engine::Buffered];
    let files: Vec<File> = all
        .into_iter()
        .filter_map(|engine| {
            let engine = EngineChoice::Exactly(engine);
            match (OpenOptions { engine }).open(path) {
                Ok(file) => Some(file),
                Err(ReadError::Unavailable { engine, .. }) => {
                    eprintln!("the {engine} engine is not available here");
                    None
                }
                Err(error) => panic!("{error}"),
            }
        })
        .collect();
    assert!(files.iter().any(|file| file.engine() == Engine::Buffered));
    files
}

fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
    // The folder of build outputs is on a disk; the system's temporary folder may be a tmpfs.
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(bytes).unwrap();
    file.as_file().sync_all().unwrap();
    file
}

#[test]
fn engines_read_the_same_bytes_in_pieces_each_once() {
    let bytes = content(SIZE);
    let temporary = file_of(&bytes);
    for file in opened(temporary.path()) {
        assert_eq!(file.size(), SIZE as u64);
        for (offset, len) in [
            (0, 0),
            (0, ALIGN),
            (ALIGN, 3 << 20),
            (0, 3 << 20),
            (8192, 65536),
            (1, 5000),
            (4096, 5001),
            (SIZE - 10, 10),
            (SIZE, 0),
        ] {
            let mut out = AlignedBuf::new(len).unwrap();
            file.read_exact_at(offset as u64, &mut out).unwrap();
            assert_eq!(
                &*out,
                &bytes[offset..offset + len],
                "{file:?} {offset} {len}"
            );

            out.fill(0);
            let mut seen = vec![];
            let mut whole = true;
            let flow = file
                .read_pieces(offset as u64, &mut out, 65536, &mut |start, piece| {
                    seen.push(start);
                    whole &= piece[..] == bytes[offset + start..][..piece.len()];
                    piece.fill(0xee);
                    ControlFlow::Continue(())
                })
                .unwrap();
            assert!(flow.is_continue() && whole);
            seen.sort_unstable();
            assert_eq!(seen, (0..len).step_by(65536).collect::<Vec<_>>());
            assert!(out.iter().all(|&byte| byte == 0xee));
        }
    }
}

#[test]
fn an_unaligned_buffer_is_filled_too() {
    let bytes = content(3 * ALIGN);
    let temporary = file_of(&bytes);
    for file in opened(temporary.path()) {
        let mut out = AlignedBuf::new(3 * ALIGN).unwrap();
        file.read_exact_at(ALIGN as u64, &mut out[1..=ALIGN])
            .unwrap();
        assert_eq!(out[1..=ALIGN], bytes[ALIGN..2 * ALIGN]);
    }
}

#[test]
fn spans_beyond_the_file_and_bad_pieces_are_refused() {
    let temporary = file_of(&content(2 * ALIGN));
    for file in opened(temporary.path()) {
        let mut out = AlignedBuf::new(2 * ALIGN).unwrap();
        for offset in [1, ALIGN as u64, u64::MAX, u64::MAX - 5] {
            let error = file.read_exact_at(offset, &mut out).unwrap_err();
            assert!(matches!(error, ReadError::OutOfRange { .. }), "{error}");
        }
        for piece in [0, 1, ALIGN + 1, usize::MAX & !(ALIGN - 1)] {
            let error = file
                .read_pieces(0, &mut out, piece, &mut |_, _| ControlFlow::Continue(()))
                .unwrap_err();
            assert!(matches!(error, ReadError::Piece { .. }), "{error}");
        }
    }
}

#[test]
fn a_break_or_panic_of_the_consumer_ends_the_read_cleanly() {
    let bytes = content(SIZE);
    let temporary = file_of(&bytes);
    for file in opened(temporary.path()) {
        let mut out = AlignedBuf::new(3 << 20).unwrap();
        let mut calls = 0;
        let flow = file.read_pieces(0, &mut out, ALIGN, &mut |_, _| {
            calls += 1;
            ControlFlow::Break(())
        });
        assert!(flow.unwrap().is_break());
        assert_eq!(calls, 1);

        let panicked = catch_unwind(AssertUnwindSafe(|| {
            file.read_pieces(0, &mut out, ALIGN, &mut |_, _| panic!("consumer"))
        }));
        assert!(panicked.is_err());
        file.read_exact_at(0, &mut out).unwrap();
        assert_eq!(&*out, &bytes[..3 << 20]);
    }
}

#[test]
fn a_file_that_changed_under_the_reader_is_refused() {
    let temporary = file_of(&content(64 * ALIGN));
    let mut out = AlignedBuf::new(ALIGN).unwrap();
    for file in opened(temporary.path()) {
        file.read_exact_at(0, &mut out).unwrap();
    }
    let files = opened(temporary.path());
    temporary.as_file().set_len(32 * ALIGN as u64).unwrap();
    for file in files {
        let error = file.read_exact_at(0, &mut out).unwrap_err();
        assert!(matches!(error, ReadError::Changed { .. }), "{error}");
    }
}

#[test]
fn only_regular_files_open() {
    let folder = tempfile::tempdir().unwrap();
    let error = File::open(folder.path()).unwrap_err();
    assert!(matches!(error, ReadError::NotAFile { .. }), "{error}");
    let error = File::open(folder.path().join("absent")).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::Io {
                action: "opening",
                ..
            }
        ),
        "{error}"
    );
    let error = File::open("/dev/null").unwrap_err();
    assert!(matches!(error, ReadError::NotAFile { .. }), "{error}");
}

#[test]
fn a_memory_file_system_is_read_through_the_page_cache_if_it_must() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("no /dev/shm here");
        return;
    };
    let bytes = content(9 * ALIGN);
    fs::write(folder.path().join("file"), &bytes).unwrap();
    let file = File::open(folder.path().join("file")).unwrap();
    let mut out = AlignedBuf::new(8 * ALIGN).unwrap();
    file.read_exact_at(ALIGN as u64, &mut out).unwrap();
    assert_eq!(&*out, &bytes[ALIGN..]);
}

#[test]
fn many_threads_read_one_file_at_once() {
    let bytes = content(SIZE);
    let temporary = file_of(&bytes);
    for file in opened(temporary.path()) {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (file, bytes) = (&file, &bytes);
                scope.spawn(move || {
                    let mut out = AlignedBuf::new(16 * ALIGN).unwrap();
                    for round in 0..20 {
                        let offset = (thread * 20 + round) % 700 * ALIGN;
                        file.read_exact_at(offset as u64, &mut out).unwrap();
                        assert_eq!(*out, bytes[offset..offset + out.len()]);
                    }
                });
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_span_is_the_files_span(offset in 0usize..200_000, len in 0usize..200_000, skew in 0usize..2) {
        let bytes = content(400_000);
        let temporary = file_of(&bytes);
        for file in opened(temporary.path()) {
            let mut out = AlignedBuf::new(len + skew).unwrap();
            file.read_exact_at(offset as u64, &mut out[skew..]).unwrap();
            prop_assert_eq!(&out[skew..], &bytes[offset..offset + len]);
        }
    }
}
