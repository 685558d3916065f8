//! Receipts: in-toto statements in DSSE envelopes, and model-signing bundles.
