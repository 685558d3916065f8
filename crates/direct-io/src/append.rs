use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::{ALIGN, AlignedBuf};

/// Writes a file from one place on, in order, past the page cache where the file system allows it.
///
/// Bytes are collected in a few buffers that a thread writes, so that the caller does not wait for
/// the disk while there is an empty one. The file's last partial block, and everything on a file
/// system that refuses `O_DIRECT`, goes through the page cache.
pub struct Appender {
    file: File,
    buffer: AlignedBuf,
    filled: usize,
    /// Where the buffer's first byte goes.
    at: u64,
    made: usize,
    full: Option<SyncSender<Full>>,
    empty: Receiver<AlignedBuf>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

struct Full {
    at: u64,
    len: usize,
    buffer: AlignedBuf,
}

impl Appender {
    /// Starts at `start`, in a file that is open for writing. Bytes before `start` in its block of
    /// [`ALIGN`] are written as zeros; what stands there is put there after [`Appender::finish`].
    ///
    /// # Errors
    /// When there is no memory for a buffer or no thread.
    pub fn new(file: File, start: u64) -> io::Result<Self> {
        Self::with_buffers(file, start, BUFFER)
    }

    fn with_buffers(file: File, start: u64, bytes: usize) -> io::Result<Self> {
        let buffer = AlignedBuf::new(bytes).map_err(io::Error::other)?;
        let (full, to_write) = sync_channel(BUFFERS);
        let (written, empty) = channel();
        let copy = file.try_clone()?;
        let thread = std::thread::Builder::new().name("append".to_owned());
        let thread = thread.spawn(move || write_all(&copy, &to_write, &written))?;
        let filled = (start % ALIGN as u64) as usize;
        Ok(Self {
            file,
            buffer,
            filled,
            at: start - filled as u64,
            made: 1,
            full: Some(full),
            empty,
            thread: Some(thread),
        })
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// When earlier bytes could not be written, or there is no memory for another buffer.
    pub fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.buffer.len() - self.filled;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer[self.filled..][..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == self.buffer.len() {
                let next = self.empty_buffer()?;
                self.send(next)?;
            }
        }
        Ok(())
    }

    /// Writes what is left. Nothing is synced.
    ///
    /// # Errors
    /// When bytes could not be written.
    pub fn finish(mut self) -> io::Result<()> {
        let aligned = self.filled / ALIGN * ALIGN;
        let tail = self.buffer[aligned..self.filled].to_vec();
        let at = self.at + aligned as u64;
        if aligned > 0 {
            self.filled = aligned;
            self.send(AlignedBuf::new(0).map_err(io::Error::other)?)?;
        }
        self.join()?;
        set_direct(&self.file, false)?;
        self.file.write_all_at(&tail, at)
    }

    fn empty_buffer(&mut self) -> io::Result<AlignedBuf> {
        if let Ok(buffer) = self.empty.try_recv() {
            return Ok(buffer);
        }
        if self.made < BUFFERS {
            self.made += 1;
            return AlignedBuf::new(self.buffer.len()).map_err(io::Error::other);
        }
        match self.empty.recv() {
            Ok(buffer) => Ok(buffer),
            Err(_) => Err(self.failure()),
        }
    }

    /// Hands the buffer to the thread and goes on with another.
    fn send(&mut self, next: AlignedBuf) -> io::Result<()> {
        let full = Full {
            at: self.at,
            len: self.filled,
            buffer: std::mem::replace(&mut self.buffer, next),
        };
        self.at += self.filled as u64;
        self.filled = 0;
        match self.full.as_ref().map(|sender| sender.send(full)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Why the thread ended early.
    fn failure(&mut self) -> io::Error {
        let stopped = || io::Error::other("the thread that writes ended early");
        self.join().err().unwrap_or_else(stopped)
    }

    fn join(&mut self) -> io::Result<()> {
        self.full = None;
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the thread that writes failed")),
        }
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        // A file that is not finished is given up: what became of its bytes does not matter.
        let _ = self.join();
    }
}

impl fmt::Debug for Appender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appender")
            .field("file", &self.file)
            .field("at", &(self.at + self.filled as u64))
            .finish_non_exhaustive()
    }
}

fn write_all(
    file: &File,
    to_write: &Receiver<Full>,
    written: &Sender<AlignedBuf>,
) -> io::Result<()> {
    let mut direct = set_direct(file, true)?;
    for Full { at, len, buffer } in to_write {
        match file.write_all_at(&buffer[..len], at) {
            Err(error) if direct && refuses(&error) => {
                // Some file systems take the flag and refuse the write.
                direct = set_direct(file, false)?;
                file.write_all_at(&buffer[..len], at)?;
            }
            result => result?,
        }
        // The appender may be gone.
        let _ = written.send(buffer);
    }
    Ok(())
}

/// Sets or clears `O_DIRECT` for every handle of the open file; returns whether it is set.
fn set_direct(file: &File, on: bool) -> io::Result<bool> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, on);
    match fcntl_setfl(file, flags) {
        Ok(()) => Ok(on),
        Err(errno) if on && refuses(&errno.into()) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn refuses(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Large enough for the full rate of a disk with one request under way.
const BUFFER: usize = 8 << 20;
/// One that is filled, one that is written, and one between them.
const BUFFERS: usize = 3;

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::path::Path;

    use super::*;

    fn check(folder: &Path, start: u64, lengths: &[usize]) {
        let mut file = tempfile::tempfile_in(folder).unwrap();
        let mut appender =
            Appender::with_buffers(file.try_clone().unwrap(), start, 2 * ALIGN).unwrap();
        let mut expected = vec![7; start as usize];
        for (k, length) in lengths.iter().enumerate() {
            let bytes: Vec<u8> = (0..*length).map(|i| (i * 31 + k) as u8).collect();
            appender.append(&bytes).unwrap();
            expected.extend(bytes);
        }
        appender.finish().unwrap();
        file.write_all_at(&expected[..start as usize], 0).unwrap();
        let mut found = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut found).unwrap();
        assert!(
            found == expected,
            "{} from {start}: {lengths:?}",
            folder.display()
        );
    }

    #[test]
    fn every_byte_stands_in_its_place() {
        for folder in [&*std::env::temp_dir(), Path::new("/dev/shm")] {
            for start in [0, 1, 4095, 4096, 9000] {
                check(folder, start, &[]);
                check(folder, start, &[1]);
                check(folder, start, &[4096, 4096, 4096]);
                check(folder, start, &[100_000, 0, 3, 8192, 70_001]);
            }
        }
    }

    #[test]
    fn a_failure_is_told_by_a_later_call() {
        let file = File::open("/dev/null").unwrap();
        let mut appender = Appender::with_buffers(file, 0, ALIGN).unwrap();
        let failed = (0..10).any(|_| appender.append(&[0; ALIGN]).is_err());
        assert!(failed, "a file that is open for reading takes no bytes");
    }
}
