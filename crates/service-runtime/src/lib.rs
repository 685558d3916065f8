//! What every service shares: listener, health, admin port, drain, clock.
