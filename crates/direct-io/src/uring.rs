//! Reads by io_uring: one ring a caller, pieces of a span in flight together.

use std::fs;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use io_uring::{IoUring, Probe, opcode, types};

use crate::{Arrived, pread};

/// Requests in flight on one ring.
pub(crate) const IN_FLIGHT: u32 = 16;
/// Idle rings kept for the next caller.
const KEPT_RINGS: usize = 16;

/// Rings that are not in use. A caller owns a ring while it reads, so rings need no locks.
#[derive(Default)]
pub(crate) struct Rings(Mutex<Vec<IoUring>>);

impl Rings {
    fn take(&self) -> io::Result<IoUring> {
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| IoUring::builder().dontfork().build(IN_FLIGHT), Ok)
    }

    fn give_back(&self, ring: IoUring) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT_RINGS {
            idle.push(ring);
        }
    }
}

/// Whether io_uring works in this process: seccomp profiles and sysctls often deny it.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| probe().unwrap_or(false))
}

fn probe() -> io::Result<bool> {
    let mut ring = IoUring::new(2)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if !probe.is_supported(opcode::Read::CODE) {
        return Ok(false);
    }
    // SAFETY: a no-op refers to no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    Ok(ring
        .completion()
        .next()
        .is_some_and(|done| done.result() == 0))
}

/// Reads `out` in pieces with up to [`IN_FLIGHT`] of them in flight and hands each to `arrived`.
/// A short read that leaves an unaligned rest is finished through `buffered`.
pub(crate) fn read_pieces(
    rings: &Rings,
    direct: &fs::File,
    buffered: &fs::File,
    offset: u64,
    out: &mut [u8],
    piece: usize,
    arrived: &mut Arrived<'_>,
) -> io::Result<ControlFlow<()>> {
    let mut span = Span {
        ring: Some(rings.take()?),
        rings,
        fd: direct.as_raw_fd(),
        offset,
        len: out.len(),
        // Every slice of `out` below is derived from this pointer, and `out` is not touched again.
        base: out.as_mut_ptr(),
        piece,
        in_flight: 0,
    };
    let mut unsent = 0..span.len.div_ceil(piece);
    loop {
        while span.in_flight < IN_FLIGHT {
            let Some(index) = unsent.next() else { break };
            span.push(index)?;
            // One by one: a batch would reach the device only once the memory of all was pinned, and
            // made where the buffer is new.
            span.submit()?;
        }
        if span.in_flight == 0 {
            return Ok(ControlFlow::Continue(()));
        }
        let (index, result) = span.complete_one()?;
        let start = index * piece;
        let len = piece.min(span.len - start);
        // SAFETY: piece `index` lies in `out`, which this call borrows uniquely; its request is
        // complete, so the kernel no longer writes to it, and no other request covers it.
        let part = unsafe { std::slice::from_raw_parts_mut(span.base.add(start), len) };
        let at = offset + start as u64;
        match usize::try_from(result) {
            Ok(read) if read == len => {}
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => pread::read_exact(buffered, at + read as u64, &mut part[read..])?,
            Err(_) => {
                let error = io::Error::from_raw_os_error(-result);
                match error.kind() {
                    ErrorKind::Interrupted | ErrorKind::WouldBlock => {
                        span.push(index)?;
                        continue;
                    }
                    _ => return Err(error),
                }
            }
        }
        if arrived(start, part).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
}

/// A span being read. Dropping it waits until the kernel is done with the span's memory, whichever
/// way the read ended.
struct Span<'a> {
    ring: Option<IoUring>,
    rings: &'a Rings,
    fd: RawFd,
    offset: u64,
    base: *mut u8,
    len: usize,
    piece: usize,
    in_flight: u32,
}

impl Span<'_> {
    fn push(&mut self, index: usize) -> io::Result<()> {
        let start = index * self.piece;
        let len = self.piece.min(self.len - start);
        let len = u32::try_from(len).map_err(io::Error::other)?;
        let ring = self
            .ring
            .as_mut()
            .expect("a span has its ring until it is dropped");
        // SAFETY: `start` lies in the span.
        let target = unsafe { self.base.add(start) };
        let read = opcode::Read::new(types::Fd(self.fd), target, len)
            .offset(self.offset + start as u64)
            .build()
            .user_data(index as u64);
        // SAFETY: the target is `len` bytes of the caller's buffer, which stays borrowed until
        // `Span::drop` has seen the completion of every request, and `fd` is open as long.
        unsafe { ring.submission().push(&read) }.map_err(io::Error::other)?;
        self.in_flight += 1;
        Ok(())
    }

    /// Submits what was pushed, as far as the kernel takes it now.
    fn submit(&mut self) -> io::Result<()> {
        let ring = self
            .ring
            .as_mut()
            .expect("a span has its ring until it is dropped");
        match ring.submit() {
            Ok(_) => Ok(()),
            Err(error) if retry(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Submits what was pushed and waits for one completion: piece number and result.
    fn complete_one(&mut self) -> io::Result<(usize, i32)> {
        let ring = self
            .ring
            .as_mut()
            .expect("a span has its ring until it is dropped");
        loop {
            // Pushed requests go out with each completion, so that the device never runs dry.
            let submitted = if ring.submission().is_empty() {
                Ok(0)
            } else {
                ring.submit()
            };
            let done = match submitted {
                Ok(_) => ring.completion().next(),
                Err(error) if retry(&error) => None,
                Err(error) => return Err(error),
            };
            if let Some(done) = done {
                self.in_flight -= 1;
                let index = usize::try_from(done.user_data()).map_err(io::Error::other)?;
                return Ok((index, done.result()));
            }
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if retry(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        let clean = self.in_flight == 0;
        while self.in_flight > 0 {
            if self.complete_one().is_err() {
                // The kernel may still write to memory that the caller is about to reuse, and
                // there is no way left to find out when it stops.
                std::process::abort();
            }
        }
        if let Some(ring) = self.ring.take()
            && clean
        {
            self.rings.give_back(ring);
        }
    }
}

fn retry(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}
