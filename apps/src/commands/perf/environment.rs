//! Where, when and of which build a figure was taken, so that it can be repeated.

use std::env;
use std::fs;

use serde::Serialize;
use stag_bench::Disturbance;
use stag_server::logging;

use super::plan::BUILD_PROFILE;
use crate::version::{COMMIT, PACKAGE_VERSION};

/// What is the same for all figures of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunEnvironment {
    /// Of `stag`.
    version: &'static str,
    /// The commit that it was built of, with a `+` if the sources differed from it.
    commit: &'static str,
    /// Cargo's profile that built it: `dist` is the fastest.
    profile: &'static str,
    /// The name of the machine.
    host: String,
    /// The model of its processors.
    cpu: String,
    /// How many of them are online.
    processors: usize,
    /// The kernel's release.
    kernel: String,
    /// When the run began, in RFC 3339.
    time: String,
    /// The command line.
    argv: Vec<String>,
}

/// What the machine did besides, before a measurement and during it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Besides {
    /// Threads that ran or were ready to, as a mean of a minute; null if the machine does not say.
    load_average: Option<f64>,
    /// Part of the cores' time that a hypervisor took.
    steal: f64,
}

/// The `environment` of a figure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FigureEnvironment<'a> {
    #[serde(flatten)]
    run: &'a RunEnvironment,
    before: Besides,
    during: Besides,
}

impl RunEnvironment {
    /// That of this process.
    pub(crate) fn now() -> RunEnvironment {
        let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        RunEnvironment {
            version: PACKAGE_VERSION,
            commit: COMMIT,
            profile: BUILD_PROFILE,
            host: line("/proc/sys/kernel/hostname"),
            cpu: cpu_model(&line("/proc/cpuinfo")),
            processors: std::thread::available_parallelism().map_or(0, Into::into),
            kernel: line("/proc/sys/kernel/osrelease"),
            time: logging::now(),
            argv: env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        }
    }

    /// With what the machine did besides.
    pub(super) fn with(&self, disturbance: &Disturbance) -> FigureEnvironment<'_> {
        FigureEnvironment {
            run: self,
            before: Besides { load_average: disturbance.load_average, steal: disturbance.steal_before },
            during: Besides { load_average: disturbance.load_average_end, steal: disturbance.steal },
        }
    }
}

/// The model in `/proc/cpuinfo`: x86 has a name there, others a number or the name of the board.
fn cpu_model(cpuinfo: &str) -> String {
    let value = |wanted: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == wanted).map(|(_, value)| value.trim().to_owned())
    };
    let found = ["model name", "Hardware", "CPU part"].into_iter().find_map(value);
    found.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_read_of_any_kind_of_processor() {
        let x86 = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n";
        assert_eq!(cpu_model(x86), "AMD EPYC");
        assert_eq!(cpu_model("processor\t: 0\nCPU part\t: 0xd0c\n"), "0xd0c");
        assert_eq!(cpu_model(""), "unknown");
    }

    #[test]
    fn an_environment_is_complete() {
        let found = RunEnvironment::now();
        assert!(!found.host.is_empty() && !found.kernel.is_empty() && found.processors > 0);
        assert!(found.time.len() >= 20 && found.time.ends_with('Z'), "{}", found.time);
        assert!(!found.commit.is_empty() && !found.argv.is_empty());
    }
}
