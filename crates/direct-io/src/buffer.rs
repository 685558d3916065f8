use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use zeroize::optimization_barrier;

use crate::{ALIGN, AllocError};

/// Zeroed memory of a fixed length that starts on an [`ALIGN`] boundary.
///
/// It is mapped apart from the heap, of huge pages when it is large, and kept out of core dumps, where
/// the system can. A buffer made
/// with [`AlignedBuf::wiped`] is overwritten with zeros before it is given back.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    wipe: bool,
}

impl AlignedBuf {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// When the system has no memory to map.
    pub fn new(len: usize) -> Result<Self, AllocError> {
        Self::map(len, false)
    }

    /// `len` zero bytes that are overwritten with zeros when the buffer is dropped.
    ///
    /// # Errors
    /// When the system has no memory to map.
    pub fn wiped(len: usize) -> Result<Self, AllocError> {
        Self::map(len, true)
    }

    /// Overwrites every byte with zero, in a way the compiler may not drop.
    pub fn wipe(&mut self) {
        // SAFETY: `start` points to `len` bytes that this buffer owns; none when `len` is 0.
        unsafe { ptr::write_bytes(self.start.as_ptr(), 0, self.len) };
        optimization_barrier(&**self);
    }

    fn map(len: usize, wipe: bool) -> Result<Self, AllocError> {
        let no_memory = |source| AllocError { len, source };
        let Some(mapped) = len.checked_next_multiple_of(ALIGN) else {
            return Err(no_memory(io::ErrorKind::OutOfMemory.into()));
        };
        if len == 0 {
            return Ok(Self {
                start: NonNull::<Block>::dangling().cast(),
                len,
                wipe,
            });
        }
        // SAFETY: a fresh private mapping at an address of the system's choice aliases nothing.
        let address = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| no_memory(errno.into()))?;
        // Best effort: a kernel without it still has core dumps off in the processes that matter.
        // SAFETY: the range is the mapping just made, and the advice does not change its contents.
        let _ = unsafe { madvise(address, mapped, Advice::LinuxDontDump) };
        if mapped >= HUGE_PAGE {
            // Fewer faults when the buffer is filled first, fewer pages to pin for each read, and
            // fewer TLB misses for who computes with it. Best effort, too.
            // SAFETY: as above.
            let _ = unsafe { madvise(address, mapped, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(address.cast())
            .ok_or_else(|| no_memory(io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self { start, len, wipe })
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.wipe {
            self.wipe();
        }
        if self.len > 0 {
            // SAFETY: `start` and the rounded length are the mapping made in `map`, which nothing
            // else refers to once its owner is dropped.
            let unmapped =
                unsafe { munmap(self.start.as_ptr().cast(), self.len.next_multiple_of(ALIGN)) };
            debug_assert!(unmapped.is_ok(), "a mapping is unmapped once");
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

// SAFETY: the buffer owns its mapping as a `Box<[u8]>` owns its allocation.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[repr(align(4096))]
struct Block;

/// A huge page of x86-64 and most AArch64 systems.
const HUGE_PAGE: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_keep_their_length() {
        for len in [0, 1, 4095, 4096, 4097, 1 << 20] {
            let mut buffer = AlignedBuf::wiped(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            buffer.wipe();
            assert!(buffer.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn an_impossible_length_is_an_error() {
        assert_eq!(AlignedBuf::new(usize::MAX).unwrap_err().len, usize::MAX);
        assert!(AlignedBuf::new(usize::MAX / 2).is_err());
    }

    #[test]
    fn printing_a_buffer_shows_no_content() {
        let mut buffer = AlignedBuf::new(4).unwrap();
        buffer.copy_from_slice(b"mark");
        assert_eq!(format!("{buffer:?}"), "AlignedBuf(4 bytes)");
    }
}
