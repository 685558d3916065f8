//! Message conversions, errors to gRPC status, clients.
