//! Finding the library, and its functions.

use super::layout::{InitAttributes, UniqueId};
use crate::error::Error;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The file's name, the same in every release 3.x.
const FILE: &str = "libnvshmem_host.so.3";
/// Says where the library is, before it is looked for elsewhere.
const VARIABLE: &str = "LONGREACH_NVSHMEM";

/// The host library of NVSHMEM.
pub struct Library {
    library: libloading::Library,
    found: PathBuf,
    symbols: OnceLock<Symbols>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Library").field(&self.found).finish()
    }
}

/// A release of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub i32, pub i32, pub i32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The functions that are used. A stream is an address.
#[derive(Clone, Copy)]
pub(super) struct Symbols {
    pub(super) get_uniqueid: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(super) set_attr_uniqueid_args:
        unsafe extern "C" fn(c_int, c_int, *const UniqueId, *mut InitAttributes) -> c_int,
    pub(super) hostlib_init_attr: unsafe extern "C" fn(u32, *mut InitAttributes) -> c_int,
    pub(super) hostlib_finalize: unsafe extern "C" fn(),
    pub(super) init_status: unsafe extern "C" fn() -> c_int,
    pub(super) my_pe: unsafe extern "C" fn() -> c_int,
    pub(super) n_pes: unsafe extern "C" fn() -> c_int,
    pub(super) malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub(super) free: unsafe extern "C" fn(*mut c_void),
    pub(super) getmem_on_stream: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, *mut c_void),
    pub(super) putmem_on_stream: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, *mut c_void),
    pub(super) quiet_on_stream: unsafe extern "C" fn(*mut c_void),
    vendor_get_version_info: unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int),
}

impl Library {
    /// Looks for the library: where LONGREACH_NVSHMEM says, where the system's loader looks, and among the packages of
    /// Python.
    pub fn open() -> Result<Self, Error> {
        if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            return Self::load(&path).map_err(|reason| {
                Error::Nvshmem(format!(
                    "{VARIABLE} is {} and cannot be loaded: {reason}; give the path of {FILE}",
                    path.display()
                ))
            });
        }
        let places = std::iter::once(PathBuf::from(FILE)).chain(packages());
        let mut reason = None;
        for path in places {
            match Self::load(&path) {
                Ok(library) => return Ok(library),
                // What is there and cannot be loaded says more than what is not there.
                Err(error) if path.is_absolute() => reason = Some(format!("{}: {error}", path.display())),
                Err(_) => {}
            }
        }
        Err(Error::Nvshmem(reason.unwrap_or_else(|| {
            format!(
                "NVSHMEM was not found: {FILE} was looked for where the system's loader looks and under nvidia/nvshmem/lib of Python's packages; install the package nvidia-nvshmem-cu13, or set {VARIABLE} to the file"
            )
        })))
    }

    fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: the library's initialisers do nothing but set the library up.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| error.to_string())?;
        Ok(Self { library, found: path.to_owned(), symbols: OnceLock::new() })
    }

    /// The file that was found.
    pub fn path(&self) -> &Path {
        &self.found
    }

    /// The release.
    pub fn version(&self) -> Result<Version, Error> {
        let mut version = Version(0, 0, 0);
        // SAFETY: three numbers are written to where they are asked for; needs no initialisation.
        unsafe {
            (self.symbols()?.vendor_get_version_info)(&mut version.0, &mut version.1, &mut version.2);
        }
        Ok(version)
    }

    /// The functions, looked up once.
    pub(super) fn symbols(&self) -> Result<&Symbols, Error> {
        if let Some(symbols) = self.symbols.get() {
            return Ok(symbols);
        }
        let symbols = Symbols {
            get_uniqueid: self.symbol("nvshmemx_get_uniqueid")?,
            set_attr_uniqueid_args: self.symbol("nvshmemx_set_attr_uniqueid_args")?,
            hostlib_init_attr: self.symbol("nvshmemx_hostlib_init_attr")?,
            hostlib_finalize: self.symbol("nvshmemx_hostlib_finalize")?,
            init_status: self.symbol("nvshmemx_init_status")?,
            my_pe: self.symbol("nvshmem_my_pe")?,
            n_pes: self.symbol("nvshmem_n_pes")?,
            malloc: self.symbol("nvshmem_malloc")?,
            free: self.symbol("nvshmem_free")?,
            getmem_on_stream: self.symbol("nvshmemx_getmem_on_stream")?,
            putmem_on_stream: self.symbol("nvshmemx_putmem_on_stream")?,
            quiet_on_stream: self.symbol("nvshmemx_quiet_on_stream")?,
            vendor_get_version_info: self.symbol("nvshmemx_vendor_get_version_info")?,
        };
        Ok(self.symbols.get_or_init(|| symbols))
    }

    fn symbol<F: Copy>(&self, name: &'static str) -> Result<F, Error> {
        // SAFETY: the caller's type is the function's, as the library's headers have it.
        let symbol = unsafe { self.library.get::<F>(name.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(|_| {
            Error::Nvshmem(format!(
                "{} has no {name}: it is of another release; install nvidia-nvshmem-cu13 3.4 or later",
                self.found.display()
            ))
        })
    }

    /// Fails where `call` has returned another code than success.
    pub(super) fn succeeded(&self, call: &str, code: c_int) -> Result<(), Error> {
        let meaning = match code {
            0 => return Ok(()),
            1 => "invalid value",
            2 => "out of memory",
            3 => "not supported",
            4 => "PEs differ",
            5 => "no GPU selected",
            _ => "internal error",
        };
        Err(Error::Nvshmem(format!(
            "{call} of {} failed with {code}, {meaning}; NVSHMEM_DEBUG=INFO tells more",
            self.found.display()
        )))
    }
}

/// Where packages of the Pythons that are found first may have the library.
fn packages() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let mut prefixes: Vec<PathBuf> = variable("VIRTUAL_ENV").map(PathBuf::from).into_iter().collect();
    let path = variable("PATH").unwrap_or_default();
    prefixes.extend(
        std::env::split_paths(&path)
            .filter(|folder| folder.join("python3").exists())
            .filter_map(|folder| folder.parent().map(Path::to_owned)),
    );
    prefixes.push(PathBuf::from("/usr/local"));
    let mut found = Vec::new();
    for prefix in prefixes {
        let Ok(versions) = std::fs::read_dir(prefix.join("lib")) else { continue };
        for version in versions.flatten() {
            if version.file_name().to_string_lossy().starts_with("python3") {
                for packages in ["site-packages", "dist-packages"] {
                    let file = version.path().join(packages).join("nvidia/nvshmem/lib").join(FILE);
                    // By its whole path, so that it finds its plug-ins beside it.
                    if file.exists() && !found.contains(&file) {
                        found.push(file);
                    }
                }
            }
        }
    }
    found
}
