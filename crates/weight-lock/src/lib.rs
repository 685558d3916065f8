//! The weight lock, versions 1 and 2, over byte slices.
