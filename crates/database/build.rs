//! The migrations are part of the binary: a change of theirs rebuilds it.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
