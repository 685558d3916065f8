//! Short certificates for every service and person, renewed while the suite runs.

use std::time::Duration;

use anyhow::Result;
use identifiers::Role;
use service_runtime::{CancellationToken, Clock, IdentityFiles, SystemClock};
use workload_identity::dev_ca::{self, DevCa};

use super::layout::Layout;
use crate::context::{Person, Workload};

/// The trust domain of a suite on one machine.
pub const TRUST_DOMAIN: &str = "chancery.local";
/// The name of every workload and person of it.
pub const NAME: &str = "one";

/// Issues a certificate of a role, replacing the one that is there.
pub fn issue(layout: &Layout, role: Role) -> Result<IdentityFiles> {
    issue_from(&authority(layout)?, role)
}

fn authority(layout: &Layout) -> Result<DevCa> {
    Ok(dev_ca::create(&layout.ca(), TRUST_DOMAIN, now())?)
}

fn issue_from(authority: &DevCa, role: Role) -> Result<IdentityFiles> {
    Ok(authority.write(role, NAME, now(), LIFETIME)?)
}

/// Renews every certificate well before it ends; the processes load them by themselves.
pub async fn keep_fresh(layout: Layout, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RENEWAL) => {}
        }
        // A failure is tried again in time: certificates outlive two renewals.
        let _ = renew(&layout);
    }
}

fn renew(layout: &Layout) -> Result<()> {
    let authority = authority(layout)?;
    let services = Workload::ALL.map(Workload::role);
    let persons = Person::ALL.map(Person::role);
    for role in services.into_iter().chain(persons) {
        issue_from(&authority, role)?;
    }
    Ok(())
}

fn now() -> u64 {
    SystemClock.unix_seconds().try_into().unwrap_or_default()
}

const LIFETIME: Duration = Duration::from_secs(3600);
const RENEWAL: Duration = Duration::from_secs(20 * 60);
