//! The .jlm container: codec, layout, packers and unpackers.
//!
//! A container is a header, five metadata sections and a few page arrays (spec: container,
//! section B). This crate does no I/O: [`Container::decode`] takes the bytes before the dense
//! region and gives the [`Span`] of every plane, page and region; the caller reads them.
//!
//! # Vision towers
//!
//! Known of a container with a vision tower: where its section lies ([`Region::VisionConfig`]), its
//! pages ([`Region::Vision`]), the roles of its tensors ([`Role::is_vision`]), and the names of
//! projector codes ([`PROJECTORS`], A.5). Not known: the fields of the section itself. Neither the
//! published page nor the reference files have one, so [`Container::vision`] gives its bytes, dumps
//! and comparisons show their place and hash, and writing puts them back as they were.

mod block;
mod codes;
mod config;
mod container;
mod dequantize;
mod difference;
mod dtype;
mod dump;
mod error;
mod fingerprint;
mod header;
mod lanes;
mod layout;
mod map;
mod pack;
mod quantize;
mod record;
mod span;
mod table;
mod tables;
mod tails;
mod unit;
mod vocab;

pub use codes::{Arch, Role};
pub use config::{Config, Flags, LayerKind, SsmConfig};
pub use container::{Container, Planes};
pub use dequantize::floats;
pub use difference::{
    Difference, Part, ReadSide, Side, compare_pages, compare_planes, compare_structure,
};
pub use dtype::{DType, PackedFormat, PlaneLens};
pub use dump::{DumpError, ReadSpan, dump};
pub use error::JlmError;
pub use fingerprint::WriterFingerprint;
pub use header::{HEADER_LEN, Header, Version};
pub use layout::{Draft, chunk_size, stream_groups};
pub use map::{PageRun, map_svg, page_runs, parts};
pub use pack::{PlaneBytes, PlaneBytesMut, Sheet};
pub use quantize::{half_of, quantize_q8, quantize_q8_sheet};
pub use record::Number;
pub use span::{ALIGN, Span, align};
pub use table::{TensorEntry, TensorKey};
pub use tables::PROJECTORS;
pub use tails::{
    AltUpTail, AttnTempTail, ClampTail, DecisionTail, DecisionTemperature, HyperTail,
    IndexerBlockTail, IndexerTail, LatentTail, ScaleTail, SlidingTail, Tails,
};
pub use unit::{Region, UnitId, UnitRange};
pub use vocab::{AddedToken, PreOp, PreOpKind, SpecialIds, Template, TokenKind, Vocab, VocabKind};
