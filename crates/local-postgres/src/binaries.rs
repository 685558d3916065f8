use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder that holds `initdb` and `postgres`: the newest version that Debian's packages
/// installed, else one of PATH.
pub(crate) fn find() -> Option<PathBuf> {
    let version = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let mut installed: Vec<PathBuf> = fs::read_dir(DEBIAN)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| version(folder).is_some() && is_complete(&folder.join("bin")))
        .collect();
    installed.sort_by_key(version);
    if let Some(newest) = installed.pop() {
        return Some(newest.join("bin"));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find(|folder| is_complete(folder))
}

pub(crate) fn is_complete(folder: &Path) -> bool {
    ["initdb", "postgres"]
        .iter()
        .all(|name| folder.join(name).is_file())
}

const DEBIAN: &str = "/usr/lib/postgresql";
