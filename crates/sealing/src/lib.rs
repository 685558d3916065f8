//! Seal, unlock and verify checkpoints over any source of subkeys.
