//! Pure release decisions: request, policy and time in, allow or deny with reasons out.
