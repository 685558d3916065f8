//! Where sources may be.

use std::path::PathBuf;

use checkpoint::{CheckpointError, Root};

/// The folders that sources lie beneath.
#[derive(Debug, Clone)]
pub struct SourceRoots(Vec<PathBuf>);

impl SourceRoots {
    pub const fn new(roots: Vec<PathBuf>) -> Self {
        Self(roots)
    }

    /// Opens a source folder beneath the first root that has it. No link leads out of a root.
    pub fn open(&self, source: &str) -> Result<Root, CheckpointError> {
        let mut refused = None;
        for root in &self.0 {
            match Root::open(root).and_then(|root| root.folder(source)) {
                Ok(folder) => return Ok(folder),
                // What a root refuses says more than that another one has no such folder.
                Err(error @ CheckpointError::NotRegular { .. }) => refused = Some(error),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(CheckpointError::Path {
            path: source.to_owned(),
            reason: "there are no source roots",
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_beneath_a_root_open() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::create_dir_all(first.join("x")).unwrap();
        std::fs::create_dir_all(second.join("deep/y")).unwrap();
        std::fs::write(first.join("file"), "").unwrap();
        std::os::unix::fs::symlink(&second, first.join("out")).unwrap();
        let roots = SourceRoots::new(vec![first.clone(), second]);
        assert_eq!(roots.open("x").unwrap().path(), first.join("x"));
        roots.open("deep/y").unwrap();
        for bad in ["file", "out/deep", "../b/deep", "none", "", ".", "/etc"] {
            assert!(roots.open(bad).is_err(), "{bad}");
        }
    }
}
