//! KLLMBLOB1: the chunked AES-256-GCM container of a sealed checkpoint's secret files.
