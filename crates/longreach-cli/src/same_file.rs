//! Whether two paths name one file, however they are spelled.

use std::path::{Path, PathBuf};

/// Which file a path names, also where there is none yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// Without links, `.` and `..`.
    path: PathBuf,
    /// What all hard links of a file share.
    #[cfg(unix)]
    inode: Option<(u64, u64)>,
}

impl Identity {
    /// Of the file at `path`; of one that does not exist, the place where it would be made.
    pub fn of(path: &Path) -> Self {
        Self {
            path: resolved(path),
            #[cfg(unix)]
            inode: std::fs::metadata(path).ok().map(|data| {
                use std::os::unix::fs::MetadataExt;
                (data.dev(), data.ino())
            }),
        }
    }

    /// Of the file that an open descriptor is for, where it is a regular one.
    #[cfg(unix)]
    pub fn open(file: impl std::os::fd::AsFd) -> Option<Self> {
        use rustix::fs::{FileType, fstat};
        let data = fstat(file).ok().filter(|data| FileType::from_raw_mode(data.st_mode).is_file())?;
        // Their types differ between systems.
        Some(Self { path: PathBuf::new(), inode: Some((data.st_dev as u64, data.st_ino as u64)) })
    }

    /// Whether a write to one of the two would change the other.
    pub fn is(&self, other: &Self) -> bool {
        #[cfg(unix)]
        if self.inode.is_some() && self.inode == other.inode {
            return true;
        }
        self.path == other.path
    }
}

/// Where a write to `path` goes: links are followed, also to a file that is not there yet.
pub fn resolved(path: &Path) -> PathBuf {
    // More links than systems follow.
    const MOST_LINKS: usize = 64;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = path.read_link() else { break };
        path = folder(&path).join(target);
    }
    match (path.canonicalize(), folder(&path).canonicalize(), path.file_name()) {
        (Ok(whole), ..) => whole,
        (_, Ok(folder), Some(name)) => folder.join(name),
        _ => path,
    }
}

/// The folder that a file is in.
pub fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_path_are_one_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        let at = |name: &str| Identity::of(&folder.path().join(name));
        // Whether the file is there or not.
        for _ in 0..2 {
            for spelling in ["x", "./x", "inner/../x", "inner/.././x"] {
                assert!(at("x").is(&at(spelling)), "{spelling}");
            }
            assert!(!at("x").is(&at("y")) && !at("x").is(&at("inner/x")));
            std::fs::write(folder.path().join("x"), "").unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_are_the_file_that_they_lead_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("x"), "").unwrap();
        std::fs::hard_link(at("x"), at("hard")).unwrap();
        std::os::unix::fs::symlink("x", at("soft")).unwrap();
        std::os::unix::fs::symlink(".", at("here")).unwrap();
        for name in ["hard", "soft", "here/x", "here/hard"] {
            assert!(Identity::of(&at("x")).is(&Identity::of(&at(name))), "{name}");
        }
        assert!(Identity::of(&at("new")).is(&Identity::of(&at("here/new"))));
        std::os::unix::fs::symlink("here/new", at("early")).unwrap();
        assert!(Identity::of(&at("new")).is(&Identity::of(&at("early"))));
        std::os::unix::fs::symlink("round", at("round")).unwrap();
        assert!(!Identity::of(&at("new")).is(&Identity::of(&at("round"))));
        let open = Identity::open(std::fs::File::open(at("soft")).unwrap()).unwrap();
        assert!(open.is(&Identity::of(&at("hard"))) && !open.is(&Identity::of(&at("new"))));
        assert_eq!(Identity::open(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
