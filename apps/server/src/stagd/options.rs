//! The server's options: flags, and the same keys in a configuration file. Flags win.

use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, SeqAccess, Visitor};

use crate::failure::CommandFailure;
use crate::logging::LogFormat;
use crate::nearest::nearest;
use crate::values::{
    CongestionControlName, DataPlacement, Delay, Exposure, Pages, Poll, Protocol, ShmAllow, Size, Switch,
};

use super::core_list::CoreList;
use super::listen::Listen;
use super::load_part::LoadPart;
use super::versions::NfsVersions;
use super::weights::ClientWeight;

/// Everything that can be set, and nothing decided yet.
#[derive(Clone, Debug, Default, Args, serde::Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct StagdOptions {
    /// What is served: an `ExportSpec` each
    #[serde(deserialize_with = "one_or_many")]
    #[arg(long, value_name = "SPEC", help = "mem:/PATH or dir:/PATH[,OPTIONS]; help lists")]
    pub export: Vec<String>,
    /// shm://NAME; iwarp://, verbs://, tcp://HOST:N
    #[serde(deserialize_with = "one_or_many")]
    #[arg(long, value_name = "URL")]
    pub listen: Vec<Listen>,
    /// Memory in all [default: RAM / 4, at most 1G]
    #[arg(long, value_name = "SIZE", help_heading = "Memory and cores")]
    pub memory: Option<Size>,
    /// Longest inline message, 1K-256K [default: 4K]
    #[arg(long, value_name = "SIZE", help_heading = "Memory and cores", hide_short_help = true)]
    pub inline_threshold: Option<Size>,
    /// Calls of a connection at once [default: 64]
    #[arg(long, value_name = "N", help_heading = "Memory and cores", hide_short_help = true)]
    pub credits: Option<u32>,
    /// A client's share of credits: ADDRESS[/N]=100
    #[arg(long, value_name = "CLIENT=N", help_heading = "Memory and cores", hide_short_help = true)]
    pub weight: Vec<ClientWeight>,
    /// 1, 2 or auto [default: auto over iwarp, or 1]
    #[arg(
        long,
        value_name = "VERSION",
        hide_possible_values = true,
        help_heading = "RDMA",
        hide_short_help = true
    )]
    pub protocol: Option<Protocol>,
    /// Version 2 data: send, rdma [default: auto]
    #[arg(
        long,
        value_name = "WHERE",
        hide_possible_values = true,
        help_heading = "RDMA",
        hide_short_help = true
    )]
    pub placement: Option<DataPlacement>,
    /// RDMA clients; as many over TCP [default: 64]
    #[arg(long, value_name = "N", help_heading = "Memory and cores", hide_short_help = true)]
    pub connections_max: Option<u32>,
    /// shm: also admit uid:N, gid:N or any
    #[arg(long, value_name = "WHO", help_heading = "RDMA", hide_short_help = true)]
    pub shm_allow: Vec<ShmAllow>,
    /// iwarp: ask for CRCs: on or off [default: on]
    #[arg(
        long,
        value_name = "SWITCH",
        hide_possible_values = true,
        help_heading = "RDMA",
        hide_short_help = true
    )]
    pub crc: Option<Switch>,
    /// iwarp: TCP algorithm [default: the system's]
    #[arg(long, value_name = "NAME", help_heading = "RDMA", hide_short_help = true)]
    pub congestion_control: Option<CongestionControlName>,
    /// verbs: RDMA device [default: by address]
    #[arg(long, value_name = "NAME", help_heading = "RDMA", hide_short_help = true)]
    pub device: Option<String>,
    /// verbs: window, registration or standing
    #[arg(
        long,
        value_name = "KIND",
        hide_possible_values = true,
        help_heading = "RDMA",
        hide_short_help = true
    )]
    pub exposure: Option<Exposure>,
    /// verbs: trusted clients share Receives
    #[arg(long, help_heading = "RDMA", hide_short_help = true)]
    pub shared_receives: bool,
    /// Let clients pull Replies of any size
    #[arg(long, help_heading = "RDMA", hide_short_help = true)]
    pub reliable_reply: bool,
    /// Versions of NFS [default: 3,4.1,4.2]
    #[arg(long, value_name = "LIST")]
    pub nfs: Option<NfsVersions>,
    /// Register the programs with rpcbind
    #[arg(long, hide_short_help = true)]
    pub rpcbind: bool,
    /// The same as `--cores` with one core
    #[arg(long, value_name = "N", hide = true)]
    pub core: Option<usize>,
    /// Cores to run on: 2, 2-9 [default: a free one]
    #[arg(long, value_name = "LIST", conflicts_with = "core", help_heading = "Memory and cores")]
    pub cores: Option<CoreList>,
    /// busy or adaptive [default: adaptive]
    #[arg(
        long,
        value_name = "MODE",
        hide_possible_values = true,
        help_heading = "Memory and cores",
        hide_short_help = true
    )]
    pub poll: Option<Poll>,
    /// auto, 1g, 2m, thp or 4k [default: auto]
    #[arg(long, value_name = "SIZE", help_heading = "Memory and cores", hide_short_help = true)]
    pub pages: Option<Pages>,
    /// Directory for what survives a restart
    #[arg(long, value_name = "DIR", help_heading = "State and watching")]
    pub state_dir: Option<PathBuf>,
    /// Time to reclaim locks [default: 50]
    #[arg(long, value_name = "SECONDS", help_heading = "State and watching", hide_short_help = true)]
    pub grace: Option<u32>,
    /// Serve Prometheus metrics there
    #[arg(long, value_name = "HOST:PORT", help_heading = "State and watching")]
    pub metrics: Option<String>,
    /// Socket of stag admin [default: in /run/stag]
    #[arg(long, value_name = "PATH", help_heading = "State and watching", hide_short_help = true)]
    pub control: Option<PathBuf>,
    /// Messages that each core records [default: 0]
    #[arg(long, value_name = "MESSAGES", help_heading = "State and watching", hide_short_help = true)]
    pub record: Option<u32>,
    /// Log each Call that waits this long: 50ms
    #[arg(long, value_name = "TIME", help_heading = "State and watching", hide_short_help = true)]
    pub slow: Option<Delay>,
    /// Log as text or json [default: text]
    #[arg(
        long,
        value_name = "FORMAT",
        hide_possible_values = true,
        help_heading = "State and watching",
        hide_short_help = true
    )]
    pub log_format: Option<LogFormat>,
    /// Read the same keys from a file; flags win
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Check everything, print the memory plan, exit
    #[arg(long)]
    #[serde(skip)]
    pub check: bool,
    /// Print flags for a load: clients=200 files=1G
    #[arg(long, value_name = "LOAD", num_args = 1..)]
    #[serde(skip)]
    pub plan: Vec<LoadPart>,
    /// Stop when standard input ends: for a parent process
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub until_eof: bool,
}

impl StagdOptions {
    /// These, and for whatever they leave open the configuration file's.
    pub fn with_file(&self) -> Result<StagdOptions, CommandFailure> {
        let Some(path) = &self.config else { return Ok(self.clone()) };
        let file = read(path)?;
        let flags = self.clone();
        let lists = |flags: Vec<_>, file| if flags.is_empty() { file } else { flags };
        Ok(StagdOptions {
            export: lists(flags.export, file.export),
            listen: if flags.listen.is_empty() { file.listen } else { flags.listen },
            memory: flags.memory.or(file.memory),
            inline_threshold: flags.inline_threshold.or(file.inline_threshold),
            credits: flags.credits.or(file.credits),
            weight: if flags.weight.is_empty() { file.weight } else { flags.weight },
            protocol: flags.protocol.or(file.protocol),
            placement: flags.placement.or(file.placement),
            connections_max: flags.connections_max.or(file.connections_max),
            shm_allow: if flags.shm_allow.is_empty() { file.shm_allow } else { flags.shm_allow },
            crc: flags.crc.or(file.crc),
            congestion_control: flags.congestion_control.or(file.congestion_control),
            device: flags.device.or(file.device),
            exposure: flags.exposure.or(file.exposure),
            shared_receives: flags.shared_receives || file.shared_receives,
            reliable_reply: flags.reliable_reply || file.reliable_reply,
            nfs: flags.nfs.or(file.nfs),
            rpcbind: flags.rpcbind || file.rpcbind,
            core: if flags.cores.is_some() { None } else { flags.core.or(file.core) },
            cores: if flags.core.is_some() { None } else { flags.cores.or(file.cores) },
            poll: flags.poll.or(file.poll),
            pages: flags.pages.or(file.pages),
            state_dir: flags.state_dir.or(file.state_dir),
            grace: flags.grace.or(file.grace),
            metrics: flags.metrics.or(file.metrics),
            control: flags.control.or(file.control),
            record: flags.record.or(file.record),
            slow: flags.slow.or(file.slow),
            log_format: flags.log_format.or(file.log_format),
            config: flags.config,
            check: flags.check,
            plan: flags.plan,
            until_eof: flags.until_eof,
        })
    }
}

/// In a file a list, or one item alone.
fn one_or_many<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct List<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text, or a list of them such as [\"mem:/data\"]")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
            T::deserialize(text.into_deserializer()).map(|item| vec![item])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                list.push(item);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_any(List(PhantomData))
}

fn read(path: &Path) -> Result<StagdOptions, CommandFailure> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        CommandFailure::usage(format_args!("--config {name}: {error}; name a file that can be read"))
    })?;
    toml::from_str(&text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = 1 + text[..start].matches('\n').count();
        let problem = unknown_key(error.message()).unwrap_or_else(|| error.message().to_owned());
        CommandFailure::usage(format_args!("{name}, line {line}: {problem}"))
    })
}

/// What to say of a key that there is not. The message about it lists all that there are.
fn unknown_key(message: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let found = quoted.next()?;
    let meant = match nearest(found, quoted) {
        Some(key) => format!("did you mean {key:?}?"),
        None => "the keys are stagd's options without their dashes: stagd --help lists them".to_owned(),
    };
    Some(format!("there is no key {found:?}; {meant}"))
}
