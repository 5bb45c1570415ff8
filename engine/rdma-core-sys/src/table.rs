//! Makes a structure of function pointers from a list of C signatures.

/// For each `Name = c"library" { fn … }`: a structure with a field for each function, and how to fill it.
macro_rules! tables {
    ($(
        $(#[$doc:meta])*
        $table:ident = $library:literal {
            $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[allow(missing_docs, reason = "each function has a manual page of its name")]
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
        }

        impl $table {
            /// Opens the library, for good, and looks up all of its functions.
            pub(crate) fn load() -> Result<$table, $crate::LoadError> {
                let library = $crate::load::Opened::new($library)?;
                Ok($table {
                    $(
                        // SAFETY: the type is the signature that the library's own header declares under that name.
                        $name: unsafe { library.function(concat!(stringify!($name), "\0"))? },
                    )*
                })
            }
        }
    )*};
}

pub(crate) use tables;
