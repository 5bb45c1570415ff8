//! Finding the libraries, and what is said when they are not there.

use std::ffi::CStr;
use std::sync::OnceLock;

use crate::{Cm, Verbs};

/// Why rdma-core cannot be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic linker does not find the library, or cannot use it.
    #[error(
        "{library} cannot be loaded ({problem}); install rdma-core: apt-get install libibverbs1 librdmacm1 ibverbs-providers"
    )]
    Library {
        /// Its name.
        library: &'static str,
        /// The dynamic linker's words.
        problem: String,
    },
    /// It is there, and too old.
    #[error("{library} has no function {function}; rdma-core 44 or later is needed")]
    Function {
        /// The library's name.
        library: &'static str,
        /// The function's.
        function: &'static str,
    },
}

/// The functions of both libraries.
#[derive(Clone, Copy)]
pub struct RdmaCore {
    /// `libibverbs.so.1`.
    pub verbs: Verbs,
    /// `librdmacm.so.1`.
    pub cm: Cm,
}

impl RdmaCore {
    /// Opens both libraries, once in a process: later calls get the first one's result.
    pub fn load() -> Result<&'static RdmaCore, LoadError> {
        static LOADED: OnceLock<Result<RdmaCore, LoadError>> = OnceLock::new();
        let load = || Ok(RdmaCore { verbs: Verbs::load()?, cm: Cm::load()? });
        LOADED.get_or_init(load).as_ref().map_err(LoadError::clone)
    }
}

/// A library that stays open for as long as the process lives.
pub(crate) struct Opened {
    name: &'static str,
    // Never dropped: the function pointers that were taken from it are good for ever.
    library: &'static libloading::Library,
}

impl Opened {
    pub(crate) fn new(name: &'static CStr) -> Result<Opened, LoadError> {
        let name = name.to_str().unwrap_or("a library");
        // SAFETY: its initialisers run. These are rdma-core's, which may run at any time, in any thread: programs
        // that link it run them before `main`.
        let opened = unsafe { libloading::Library::new(name) };
        let failed = |error: libloading::Error| {
            // The linker's own words are in the source of the error.
            let source = std::error::Error::source(&error).map(ToString::to_string);
            LoadError::Library { library: name, problem: source.unwrap_or_else(|| error.to_string()) }
        };
        Ok(Opened { name, library: Box::leak(Box::new(opened.map_err(failed)?)) })
    }

    /// The function of that name, which ends with a NUL.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to it.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &'static str) -> Result<F, LoadError> {
        // SAFETY: the caller knows its type.
        match unsafe { self.library.get::<F>(name.as_bytes()) } {
            Ok(function) => Ok(*function),
            Err(_) => Err(LoadError::Function { library: self.name, function: name.trim_end_matches('\0') }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let error = Opened::new(c"libstag-is-not-installed.so.1").err().expect("there is no such library");
        let LoadError::Library { library, problem } = &error else { panic!("{error}") };
        assert_eq!(*library, "libstag-is-not-installed.so.1");
        assert!(problem.contains("No such file"), "{problem}");
        assert!(error.to_string().contains("install rdma-core"), "{error}");
    }

    #[test]
    fn a_missing_function_is_named() {
        let library = Opened::new(c"libc.so.6").expect("the test itself runs on it");
        // SAFETY: no such function, so no pointer.
        let missing = unsafe { library.function::<unsafe extern "C" fn()>("ibv_from_the_future\0") };
        let expected = LoadError::Function { library: "libc.so.6", function: "ibv_from_the_future" };
        assert_eq!(missing, Err(expected));
        // SAFETY: getpid(2).
        let getpid = unsafe { library.function::<unsafe extern "C" fn() -> libc::pid_t>("getpid\0") };
        // SAFETY: it takes nothing and touches nothing.
        assert_eq!(unsafe { getpid.expect("libc has it")() }, std::process::id() as i32);
    }

    /// On a machine with rdma-core every function of the tables is there; without it the error says so.
    #[test]
    fn this_machine_has_all_of_it_or_says_what_is_missing() {
        match RdmaCore::load() {
            Ok(first) => {
                let second = RdmaCore::load().expect("it was loaded before");
                assert!(std::ptr::eq(first, second));
            }
            Err(error) => assert!(matches!(error, LoadError::Library { .. }), "{error}"),
        }
    }
}
