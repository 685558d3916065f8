//! Residency of container pages under a byte budget.
//!
//! A container's weights come in three arrays of equal pages: text blocks, vision blocks and experts.
//! A [`Pager`] holds the pages in use in aligned frames, at most [`Pager::set_budget`] bytes of them,
//! reads missing ones through a [`PageSource`] and hands out [`PageLease`]s, which pin a page while
//! they live. Blocks are scanned in a circle, for which the most recently used page is the best one
//! to drop; experts are dropped least recently used first. [`Residency`] is that decision alone,
//! without frames, for simulations.
//!
//! The API blocks and is meant for threads; [`Pager::prefetch`] reads ahead on worker threads.

mod geometry;
mod pager;
mod residency;
mod sealed;
mod source;
mod stats;
mod worker;

pub use geometry::{ArrayGeometry, Geometry, GeometryError, PageArray, PageId};
pub use pager::{PageLease, Pager, PagerError, PagerOptions};
pub use residency::{Admission, ArrayRules, Full, Policy, Residency};
pub use sealed::{ContainerUnsealer, KeyRing, UnitKeys};
pub use source::{
    PageError, PageOpener, PageSource, PlainSource, RangeSource, SealedSource, SourceError,
    UnsealError, Unsealer,
};
pub use stats::{ArrayStats, Stats};
