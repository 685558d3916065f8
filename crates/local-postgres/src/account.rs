use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whom the cluster's files and processes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Account {
    /// Whoever runs this process.
    Own,
    /// Another user, as this process is root's.
    Other { uid: u32, gid: u32 },
}

impl Account {
    /// The account for this process: its own, or `postgres` when it is root. `None` when root and
    /// there is no such user.
    pub(crate) fn find() -> io::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Some(Self::Own));
        }
        Ok(user_in(&fs::read_to_string("/etc/passwd")?, "postgres"))
    }

    pub(crate) fn uid(self) -> u32 {
        match self {
            Self::Own => rustix::process::geteuid().as_raw(),
            Self::Other { uid, .. } => uid,
        }
    }

    pub(crate) fn own(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Own => Ok(()),
            Self::Other { uid, gid } => chown(path, Some(uid), Some(gid)),
        }
    }

    pub(crate) fn run_as(self, command: &mut Command) -> &mut Command {
        match self {
            Self::Own => command,
            Self::Other { uid, gid } => command.uid(uid).gid(gid),
        }
    }

    /// The first folder on the way to `path` that the account cannot pass through.
    pub(crate) fn barrier(self, path: &Path) -> io::Result<Option<PathBuf>> {
        let Self::Other { uid, gid } = self else {
            return Ok(None);
        };
        let mut ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
        ancestors.reverse();
        for folder in ancestors {
            let metadata = fs::metadata(folder)?;
            let mask = match (metadata.uid() == uid, metadata.gid() == gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            if metadata.mode() & mask == 0 {
                return Ok(Some(folder.to_path_buf()));
            }
        }
        Ok(None)
    }
}

fn user_in(passwd: &str, name: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()? == name;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        found.then_some(Account::Other { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\npostgres2:x:7:8::/:/bin/sh\npostgres:x:104:112:P:/var:/bin/bash\n";
        assert_eq!(
            user_in(passwd, "postgres"),
            Some(Account::Other { uid: 104, gid: 112 })
        );
        assert_eq!(user_in(passwd, "postgre"), None);
    }
}
