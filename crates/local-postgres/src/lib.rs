//! A private Postgres cluster on a unix socket.
