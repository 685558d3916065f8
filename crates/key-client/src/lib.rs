//! The key service's client: typed labels on the wire, wrapped subkeys opened.
