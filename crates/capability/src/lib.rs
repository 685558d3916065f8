//! Unlock capabilities: tokens and their verification with a public key.
