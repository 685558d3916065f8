//! Certificates, SPIFFE identities and the authorisation table.
