//! Uncached positional reads: io_uring and pread behind one trait.
