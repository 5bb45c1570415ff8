//! A row of `stag bench peers`: what is measured, by which program, or which is not here.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One program in one shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PeerRow {
    /// What is compared.
    pub(super) shape: String,
    /// The program, and what of it.
    pub(super) who: String,
    /// Its version, as it says it.
    pub(super) version: Option<String>,
    /// Nanoseconds of a median round trip.
    pub(super) round_trip_ns: Option<f64>,
    /// Messages or Calls a second.
    pub(super) per_second: Option<f64>,
    /// Octets of data a second.
    pub(super) bytes_per_second: Option<f64>,
    /// What differs from `stag`'s row.
    pub(super) differs: String,
    /// Why there is no figure.
    pub(super) error: Option<String>,
    /// Other programs ran on the cores; null of programs that do not tell.
    pub(super) disturbed: Option<bool>,
}

/// A program that is not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MissingProgram {
    pub(super) program: String,
    /// Debian's package that has it.
    pub(super) package: String,
}

/// The cores of the client and of the server, and how long each measurement takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerSetup {
    pub(super) cores: [usize; 2],
    pub(super) duration: Duration,
}
