//! Generated gRPC messages, clients and servers.
