//! Residency of container pages under a byte budget.
