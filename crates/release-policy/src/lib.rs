//! Pure release decisions: request, policy and time in, allow or deny with reasons out.
//!
//! A [`Policy`] is a list of rules. A request is allowed when some rule admits it; otherwise it is
//! denied with what each rule that names the node and the model held against it.

use std::fmt;

use identifiers::{Sha256Digest, SpiffeId};
use serde::{Deserialize, Serialize};

/// Who may unlock what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Always 1.
    pub version: u32,
    /// Rules; the first that admits a request decides its lifetime and quota.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Names of inference nodes, or `*`.
    pub nodes: Vec<String>,
    /// Model names, or `*`.
    pub models: Vec<String>,
    /// Only these artifacts, when set.
    #[serde(default)]
    pub artifacts: Option<Vec<Sha256Digest>>,
    /// Only these units; a region that is not listed is not limited.
    #[serde(default)]
    pub units: Vec<UnitLimit>,
    /// Not before this time, Unix seconds.
    #[serde(default)]
    pub not_before: Option<i64>,
    /// Not at or after this time, Unix seconds.
    #[serde(default)]
    pub not_after: Option<i64>,
    /// Longest life of a capability, seconds, 1 to 3600.
    #[serde(default = "default_lifetime")]
    pub max_lifetime_seconds: u32,
    /// Whether artifacts with a version 1 lock may be unlocked.
    #[serde(default)]
    pub allow_lock_v1: bool,
    /// Most capabilities for one node and artifact within a window.
    #[serde(default)]
    pub quota: Option<Quota>,
}

/// Units `start..end` of a region that a rule admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitLimit {
    /// Region id.
    pub region: u8,
    /// First unit.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// At most `limit` capabilities within `window_seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The most allowed, at least 1.
    pub limit: u64,
    /// The window, seconds, at least 1.
    pub window_seconds: u32,
}

/// What is asked for, and what is known about it.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The node.
    pub node: &'a SpiffeId,
    /// The artifact's model name.
    pub model: &'a str,
    /// The artifact's digest.
    pub artifact: Sha256Digest,
    /// Units wanted: region, first, one past the last.
    pub units: &'a [(u8, u64, u64)],
    /// `none`, `v1` or `v2`: the artifact's lock.
    pub lock: &'a str,
    /// Whether the artifact's key is active.
    pub key_active: bool,
    /// Why the artifact is withdrawn from the node, if it is.
    pub revoked: Option<&'a str>,
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Yes, on these terms.
    Allow {
        /// Life of the capability, seconds.
        lifetime_seconds: u32,
        /// What the caller must count in the transaction that records the capability.
        quota: Option<Quota>,
    },
    /// No, for these reasons; never empty.
    Deny(Vec<Reason>),
}

/// Why a request is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The key is disabled or destroyed.
    KeyNotActive,
    /// The artifact was withdrawn.
    Revoked(String),
    /// No rule names the node and the model.
    NoRule,
    /// Rule `.0` (from 0) does not list the artifact.
    Artifact(usize),
    /// Rule `.0` does not admit a wanted unit of region `.1`.
    Units(usize, u8),
    /// Rule `.0` begins later.
    NotYet(usize),
    /// Rule `.0` has ended.
    Ended(usize),
    /// Rule `.0` does not admit a version 1 lock.
    LockV1(usize),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyNotActive => f.write_str("the model key is not active"),
            Self::Revoked(why) => write!(f, "the artifact is withdrawn: {why}"),
            Self::NoRule => f.write_str("no rule names this node and model"),
            Self::Artifact(rule) => write!(f, "rule {rule} does not list this artifact"),
            Self::Units(rule, region) => {
                write!(f, "rule {rule} does not admit the units of region {region}")
            }
            Self::NotYet(rule) => write!(f, "rule {rule} has not begun"),
            Self::Ended(rule) => write!(f, "rule {rule} has ended"),
            Self::LockV1(rule) => write!(f, "rule {rule} does not admit lock v1"),
        }
    }
}

/// A policy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not the TOML of a policy.
    #[error("policy: {0}")]
    Malformed(String),
    /// Not version 1.
    #[error("policy: version {0} is unknown, expected 1")]
    Version(u32),
    /// A rule's value is out of range.
    #[error("policy: rule {rule}: {field} {problem}")]
    Rule {
        /// From 0.
        rule: usize,
        /// The field.
        field: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}

impl Policy {
    /// Parses and checks a policy document (TOML); unknown fields are errors.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let policy: Self =
            toml::from_str(text).map_err(|error| PolicyError::Malformed(error.to_string()))?;
        if policy.version != 1 {
            return Err(PolicyError::Version(policy.version));
        }
        for (rule, stated) in policy.rules.iter().enumerate() {
            let wrong = |field, problem| PolicyError::Rule {
                rule,
                field,
                problem,
            };
            if stated.nodes.is_empty() {
                return Err(wrong("nodes", "is empty"));
            }
            if stated.models.is_empty() {
                return Err(wrong("models", "is empty"));
            }
            if !(1..=MAX_LIFETIME).contains(&stated.max_lifetime_seconds) {
                return Err(wrong("max_lifetime_seconds", "is not 1 to 3600"));
            }
            if stated.units.iter().any(|unit| unit.start >= unit.end) {
                return Err(wrong("units", "has an empty range"));
            }
            if stated
                .quota
                .is_some_and(|q| q.limit == 0 || q.window_seconds == 0)
            {
                return Err(wrong("quota", "has a zero"));
            }
        }
        Ok(policy)
    }

    /// Decides a request at `now` (Unix seconds).
    #[must_use]
    pub fn decide(&self, request: &Request<'_>, now: i64) -> Decision {
        let mut reasons = Vec::new();
        if !request.key_active {
            reasons.push(Reason::KeyNotActive);
        }
        if let Some(why) = request.revoked {
            reasons.push(Reason::Revoked(why.to_owned()));
        }
        if !reasons.is_empty() {
            return Decision::Deny(reasons);
        }
        for (number, rule) in self.rules.iter().enumerate() {
            if !names(&rule.nodes, request.node.name()) || !names(&rule.models, request.model) {
                continue;
            }
            match rule.objection(number, request, now) {
                None => {
                    return Decision::Allow {
                        lifetime_seconds: rule.max_lifetime_seconds,
                        quota: rule.quota,
                    };
                }
                Some(reason) => reasons.push(reason),
            }
        }
        if reasons.is_empty() {
            reasons.push(Reason::NoRule);
        }
        Decision::Deny(reasons)
    }
}

impl Rule {
    fn objection(&self, number: usize, request: &Request<'_>, now: i64) -> Option<Reason> {
        if self.not_before.is_some_and(|start| now < start) {
            return Some(Reason::NotYet(number));
        }
        if self.not_after.is_some_and(|end| now >= end) {
            return Some(Reason::Ended(number));
        }
        let listed = |artifacts: &Vec<Sha256Digest>| artifacts.contains(&request.artifact);
        if !self.artifacts.as_ref().is_none_or(listed) {
            return Some(Reason::Artifact(number));
        }
        if request.lock == "v1" && !self.allow_lock_v1 {
            return Some(Reason::LockV1(number));
        }
        let refused = request.units.iter().find(|unit| !self.admits(unit));
        refused.map(|(region, ..)| Reason::Units(number, *region))
    }

    fn admits(&self, &(region, start, end): &(u8, u64, u64)) -> bool {
        let mut limits = self
            .units
            .iter()
            .filter(|limit| limit.region == region)
            .peekable();
        limits.peek().is_none() || limits.any(|limit| limit.start <= start && end <= limit.end)
    }
}

fn names(list: &[String], name: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry == name)
}

const fn default_lifetime() -> u32 {
    300
}

/// Seconds.
const MAX_LIFETIME: u32 = 3600;
