//! The sealer: seal jobs, from a source checkpoint to registered artifacts, and jobs that copy,
//! compare or describe what was sealed.
//!
//! A job is stored before it is answered for, leased to one worker at a time, and every write of a
//! worker names its lease. What a worker made durable is recorded file by file, so that another
//! attempt goes on there; salts are drawn once for a job, so that it makes the same bytes. The
//! sealer holds the subkeys of the jobs under way and no model key.

mod app;
mod artifact_job;
mod checkpoint_stage;
mod config;
mod container_stage;
mod error;
mod failure;
mod job;
mod keys;
mod messages;
mod meter;
mod order;
mod queue;
mod registration;
mod resume;
mod rpc;
mod seal_job;
mod sources;
mod stop;
mod upload;
mod uploads;
mod worker;

pub use app::App;
pub use config::{BuildError, Config, KeyFiles};
pub use error::SealerError;
