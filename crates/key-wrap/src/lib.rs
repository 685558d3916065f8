//! Wrapping keys: model keys under the root key, subkeys to a caller by HPKE.
