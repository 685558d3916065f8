//! The chancery command.
