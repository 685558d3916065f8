//! Reads by `pread`: sequential for small spans, from a few threads for large ones.

use std::fs;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use crate::Arrived;

/// Threads that read one large span; the span's owner consumes pieces beside them.
const READERS: usize = 4;
/// Spans with fewer pieces are read on the calling thread.
const PIECES_WORTH_THREADS: usize = 4;

/// Fills `out`; end of file is [`ErrorKind::UnexpectedEof`].
pub(crate) fn read_exact(file: &fs::File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match file.read_at(out, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                offset += n as u64;
                out = &mut out[n..];
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads `out` in pieces and hands each to `arrived`. A short direct read that leaves an unaligned
/// rest is finished through `buffered`.
pub(crate) fn read_pieces(
    direct: &fs::File,
    buffered: &fs::File,
    offset: u64,
    out: &mut [u8],
    piece: usize,
    arrived: &mut Arrived<'_>,
) -> io::Result<ControlFlow<()>> {
    if out.len().div_ceil(piece) < PIECES_WORTH_THREADS {
        for (index, part) in out.chunks_mut(piece).enumerate() {
            let start = index * piece;
            read_part(direct, buffered, offset + start as u64, part)?;
            if arrived(start, part).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        return Ok(ControlFlow::Continue(()));
    }

    let stop = AtomicBool::new(false);
    let parts = Mutex::new(out.chunks_mut(piece).enumerate());
    let (send, receive) = mpsc::sync_channel(READERS);
    thread::scope(|scope| {
        for _ in 0..READERS {
            let send = send.clone();
            let (stop, parts) = (&stop, &parts);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((index, part)) = next else { break };
                    let start = index * piece;
                    let read = read_part(direct, buffered, offset + start as u64, part);
                    if send.send(read.map(|()| (start, part))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        // Leaving the loop drops the receiver, which ends the readers at their next piece.
        for read in receive {
            let finished = match read {
                Ok((start, part)) => match arrived(start, part) {
                    ControlFlow::Continue(()) => continue,
                    stopped => Ok(stopped),
                },
                Err(error) => Err(error),
            };
            stop.store(true, Ordering::Relaxed);
            return finished;
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn read_part(
    direct: &fs::File,
    buffered: &fs::File,
    offset: u64,
    part: &mut [u8],
) -> io::Result<()> {
    loop {
        match direct.read_at(part, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) if n == part.len() => return Ok(()),
            Ok(n) => return read_exact(buffered, offset + n as u64, &mut part[n..]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
