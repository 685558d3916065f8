//! Receipts into the log before an answer leaves, and artifacts verified on the way in.
