//! What every service process shares: a mutual-TLS listener with authorisation, health, reflection,
//! metrics, graceful drain, config files, clock and randomness.

mod admin;
mod clock;
pub mod config;
mod guard;
mod hardening;
mod health;
pub mod keys;
mod listener;
pub mod process;
mod randomness;
mod server;
pub mod trust;

pub use api::{Fault, ServiceError, to_status};
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{
    ConfigError, DatabaseSettings, IdentitySettings, PeerSettings, ServerSettings, load,
    read_secret,
};
pub use guard::{RequestContext, context};
pub use health::Health;
pub use keys::{KeyFileError, read_key, read_signing_key};
pub use listener::PeerInfo;
pub use randomness::{Randomness, RandomnessRng, SeededRandomness, SystemRandomness};
pub use server::{Running, RuntimeError, Server};
pub use telemetry::{LogSettings, Metrics};
pub use tokio_util::sync::CancellationToken;
pub use trust::{TrustError, TrustFile};
pub use workload_identity::{Authorisation, Identity, IdentityFiles, Peer};
