//! Base-weight shard manifests and their content aggregate.
