//! Changes of a server that serves: what a new configuration file, or an operator, may change without a restart.
//!
//! Each reactor makes a change for itself, between two passes, when it reads its mailbox: the way of a Call has no lock. What
//! cannot change live is named, and stays as it is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use stag_nfs::export::Export;
use stag_runtime::{Clock, SendError, Sender};
use stag_stores::directory::WriteVerifier;

use super::directories;
use super::exports::{ExportSpec, Medium};
use super::plan::EXPORTS_ADDED_MAX;
use super::request::{Changed, LiveChange, Request, snapshots};
use super::{Settings, StagdOptions};
use crate::admin::PATIENCE;

/// What became of a new configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reloaded {
    /// What has changed.
    pub(super) changed: Vec<String>,
    /// What would change with a restart.
    pub(super) restart: Vec<String>,
}

/// The settings as they are served now.
pub(super) struct LiveSettings {
    /// As the server was started.
    options: StagdOptions,
    settings: Mutex<Settings>,
    /// Directories that were added since the server began. It changes with the settings.
    added: AtomicUsize,
    /// Whether handles of directories are good after a restart.
    keeps_handles: bool,
    /// The mailboxes of all reactors.
    reactors: Vec<Sender<Request>>,
}

impl LiveSettings {
    pub(super) fn new(
        options: &StagdOptions,
        settings: &Settings,
        reactors: &[Sender<Request>],
    ) -> LiveSettings {
        LiveSettings {
            options: options.clone(),
            added: AtomicUsize::new(0),
            keeps_handles: settings.exports.iter().any(|(_, export)| export.medium == Medium::Directory),
            settings: Mutex::new(settings.clone()),
            reactors: reactors.to_vec(),
        }
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        // A panic elsewhere cannot leave them half changed.
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exports that are served now, and how each was written.
    pub(super) fn exports(&self) -> Vec<(String, Export)> {
        let settings = self.settings();
        settings.exports.iter().map(|(spec, export)| (spec.clone(), export.access.clone())).collect()
    }

    /// Whether there is a configuration file to read again.
    pub(super) fn has_file(&self) -> bool {
        self.options.config.is_some()
    }

    /// Lets no reactor take on more connections.
    pub(super) fn refuse_newcomers(&self) -> Result<(), String> {
        self.tell(&LiveChange::RefuseNewcomers).map(drop)
    }

    /// Serves one more directory. `Err` says why not.
    pub(super) fn add_export(&self, spec: &str) -> Result<String, String> {
        let wanted: ExportSpec = spec.parse().map_err(|error| format!("{error}"))?;
        self.add(&mut self.settings(), spec, wanted)
    }

    fn add(&self, settings: &mut Settings, spec: &str, wanted: ExportSpec) -> Result<String, String> {
        let path = wanted.access.path.clone();
        if find(settings, &path).is_some() {
            return Err(format!(
                "export {path}: it is served already; stag admin exports change gives it other rules"
            ));
        }
        if wanted.medium == Medium::Memory {
            return Err(format!("export {path}: memory is divided when the server starts; restart stagd"));
        }
        if self.added.load(Ordering::Relaxed) >= EXPORTS_ADDED_MAX {
            return Err(format!(
                "export {path}: {EXPORTS_ADDED_MAX} directories were added since the server started, and no more have \
                 room; restart stagd"
            ));
        }
        let mut warnings = Vec::new();
        directories::check_added(&wanted, settings, &mut warnings).map_err(|failure| failure.to_string())?;
        if !self.keeps_handles {
            warnings.push(
                "the server started without a directory: after its restart, clients have to mount this one again"
                    .to_owned(),
            );
        }
        let change = LiveChange::Add(Box::new(wanted.clone()), WriteVerifier::default());
        if let Err(problem) = self.tell(&change) {
            // At the reactors that have it.
            let removed = self.tell(&LiveChange::Remove(path));
            return Err(removed.err().map_or(problem.clone(), |other| format!("{problem}; {other}")));
        }
        self.added.fetch_add(1, Ordering::Relaxed);
        settings.exports.push((spec.to_owned(), wanted));
        let notes: String = warnings.iter().map(|warning| format!("; {warning}")).collect();
        Ok(format!("export {path} is served as {spec}{notes}"))
    }

    /// Gives an export the rules of `spec`, which names its path. `Err` says why it stays as it is.
    pub(super) fn change_export(&self, spec: &str) -> Result<String, String> {
        let wanted: ExportSpec = spec.parse().map_err(|error| format!("{error}"))?;
        let path = wanted.access.path.clone();
        let mut settings = self.settings();
        let Some((text, served)) = find(&mut settings, &path) else { return Err(not_served(&path)) };
        let fixed = fixed_differences(served, &wanted);
        if !fixed.is_empty() {
            return Err(format!(
                "export {path}: {} cannot change while it is served; restart stagd",
                fixed.join(", ")
            ));
        }
        self.tell(&LiveChange::Rules(wanted.access.clone()))?;
        (*text, *served) = (spec.to_owned(), wanted);
        Ok(format!("export {path} is served as {spec}"))
    }

    /// Stops serving an export. Files in memory are lost with it: one that has any is removed only with `force`.
    pub(super) fn remove_export(&self, path: &str, force: bool) -> Result<String, String> {
        self.remove(&mut self.settings(), path, force)
    }

    fn remove(&self, settings: &mut Settings, path: &str, force: bool) -> Result<String, String> {
        let Some((_, served)) = find(settings, path) else { return Err(not_served(path)) };
        if served.medium == Medium::Memory && !force {
            match self.objects_in(path) {
                Some(0) => {}
                Some(objects) => {
                    return Err(format!(
                        "export {path}: {objects} files and folders in memory would be lost; stag admin exports remove \
                         {path} --force removes it nevertheless"
                    ));
                }
                None => return Err(format!("export {path}: a core did not say what is in it; ask again")),
            }
        }
        let do_locks_stay = self.tell(&LiveChange::Remove(path.to_owned()))?;
        settings.exports.retain(|(_, export)| export.access.path != path);
        let locks = match do_locks_stay {
            true => {
                "; its locks stay until their clients end, because another export is in the same file system"
            }
            false => "",
        };
        Ok(format!("export {path} is no longer served{locks}"))
    }

    /// Reads the configuration file again, and changes what can change. `Err`: the file is wrong, and nothing has changed.
    pub(super) fn reload(&self) -> Result<Reloaded, String> {
        if !self.has_file() {
            return Err(
                "there is no configuration file to read again: stagd was started without --config".to_owned()
            );
        }
        let wanted = Settings::new(&self.options).map_err(|failure| failure.to_string())?;
        let mut settings = self.settings();
        let mut reloaded = Reloaded { changed: Vec::new(), restart: fixed_settings(&settings, &wanted) };
        self.reload_exports(&mut settings, &wanted, &mut reloaded);
        if settings.slow != wanted.slow {
            let done = self.tell(&LiveChange::Slow(wanted.slow)).map(|_| "slow".to_owned());
            if done.is_ok() {
                settings.slow = wanted.slow;
            }
            reloaded.note("slow", done);
        }
        if settings.weights != wanted.weights {
            let done = self.tell(&LiveChange::Weights(wanted.weights.clone()));
            if done.is_ok() {
                settings.weights = wanted.weights;
            }
            reloaded.note("weight", done.map(|_| "weight, for clients that connect from now on".to_owned()));
        }
        Ok(reloaded)
    }

    fn reload_exports(&self, settings: &mut Settings, wanted: &Settings, reloaded: &mut Reloaded) {
        let is_in = |exports: &[(String, ExportSpec)], path: &str| {
            exports.iter().any(|(_, export)| export.access.path == path)
        };
        let served: Vec<String> =
            settings.exports.iter().map(|(_, export)| export.access.path.clone()).collect();
        for path in served.iter().filter(|path| !is_in(&wanted.exports, path)) {
            let done = self.remove(settings, path, false);
            reloaded.note_in_words(done);
        }
        for (spec, export) in &wanted.exports {
            let path = &export.access.path;
            let Some((text, served)) = find(settings, path) else {
                let done = self.add(settings, spec, export.clone());
                reloaded.note_in_words(done);
                continue;
            };
            let fixed = fixed_differences(served, export);
            if !fixed.is_empty() {
                reloaded.restart.push(format!("export {path}: {}", fixed.join(", ")));
            }
            if served.access != export.access {
                let done = self.tell(&LiveChange::Rules(export.access.clone()));
                if done.is_ok() {
                    served.access = export.access.clone();
                    text.clone_from(spec);
                }
                reloaded.note(&format!("export {path}"), done.map(|_| format!("export {path}")));
            }
        }
    }

    /// Files and folders in an export in memory, without its root. `None`: a core did not answer in time.
    fn objects_in(&self, path: &str) -> Option<u64> {
        let all = snapshots(&self.reactors)?;
        let usage = all.iter().flat_map(|snapshot| snapshot.usage()).find(|(found, _)| found == path);
        usage.map(|(_, usage)| (usage.files_total - usage.files_free).saturating_sub(1))
    }

    /// Tells all reactors of a change, and waits until each has made it. Returns whether locks stay at one of them.
    fn tell(&self, change: &LiveChange) -> Result<bool, String> {
        let clock = Clock::start_system();
        let until = clock.now() + PATIENCE;
        let (sender, receiver) = sync_channel(self.reactors.len());
        for reactor in &self.reactors {
            let mut request = Request::Change(change.clone(), sender.clone());
            // One that has ended serves nothing. A full mailbox is read in the next pass.
            while let Err(SendError::Full(unsent)) = reactor.send(request) {
                if clock.now() >= until {
                    return Err("a core does not read its requests; ask again".to_owned());
                }
                request = unsent;
                thread::sleep(Duration::from_millis(1));
            }
        }
        drop(sender);
        let mut do_locks_stay = false;
        for _ in &self.reactors {
            match receiver.recv_timeout(until.saturating_sub(clock.now())) {
                Ok(Changed::Made) => {}
                Ok(Changed::LocksStay) => do_locks_stay = true,
                Ok(Changed::Refused(problem)) => return Err(problem),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "a core did not answer in {PATIENCE:?}; it makes the change when it can"
                    ));
                }
            }
        }
        Ok(do_locks_stay)
    }
}

impl Reloaded {
    /// Notes what became of a change of `what`.
    fn note(&mut self, what: &str, done: Result<String, String>) {
        self.note_in_words(done.map_err(|problem| format!("{what}: {problem}")));
    }

    fn note_in_words(&mut self, done: Result<String, String>) {
        match done {
            Ok(changed) => self.changed.push(changed),
            Err(problem) => self.restart.push(problem),
        }
    }
}

fn find<'s>(settings: &'s mut Settings, path: &str) -> Option<(&'s mut String, &'s mut ExportSpec)> {
    let found = settings.exports.iter_mut().find(|(_, export)| export.access.path == path);
    found.map(|(text, export)| (text, export))
}

fn not_served(path: &str) -> String {
    format!(
        "no export {path:?} is served; stag admin exports lists them, and stag admin exports add adds a directory"
    )
}

/// Options in which two exports of one path differ, and which are decided when the files are opened.
fn fixed_differences(one: &ExportSpec, other: &ExportSpec) -> Vec<&'static str> {
    let differences = [
        ("the medium", one.medium != other.medium),
        ("the directory", one.directory != other.directory),
        ("size", one.size != other.size),
        ("core", one.core != other.core),
        ("objects", one.objects != other.objects),
        ("sync", one.sync != other.sync),
        ("lock", one.locks_below != other.locks_below),
    ];
    differences.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
}

/// Keys in which two configurations differ, and which are decided when the server starts.
fn fixed_settings(one: &Settings, other: &Settings) -> Vec<String> {
    /// The key of each field, where the two differ.
    macro_rules! differences {
        ($($field:ident),+ $(,)?) => {{
            // A field that is added has to be thought of here.
            let Settings { exports: _, fabric: _, slow: _, weights: _, $($field: _),+ } = one;
            [$((stringify!($field), one.$field != other.$field)),+]
        }};
    }
    let all = differences!(
        listen,
        memory,
        inline_threshold,
        credits,
        protocol,
        placement,
        connections_max,
        shm_allow,
        crc,
        congestion_control,
        device,
        exposure,
        shared_receives,
        reliable_reply,
        nfs,
        rpcbind,
        cores,
        poll,
        pages,
        state_dir,
        record,
        grace,
        control,
        metrics,
        log_format,
    );
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.replace('_', "-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(export: &str, more: &[&str]) -> Settings {
        use clap::Parser;

        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            options: StagdOptions,
        }

        let all = ["stagd", "--listen", "tcp://127.0.0.1:0", "--export", export];
        Settings::new(&Flags::parse_from(all.iter().chain(more)).options).unwrap()
    }

    #[test]
    fn what_needs_a_restart_is_named_by_its_key() {
        let one = settings("mem:/a", &["--memory", "64M"]);
        assert_eq!(fixed_settings(&one, &one), [""; 0]);
        let other = settings("mem:/b", &["--memory", "65M", "--connections-max", "9", "--slow", "1s"]);
        assert_eq!(fixed_settings(&one, &other), ["memory", "connections-max"]);
    }

    #[test]
    fn options_that_open_the_files_are_fixed() {
        let parse = |text: &str| text.parse::<ExportSpec>().unwrap();
        assert_eq!(
            fixed_differences(&parse("mem:/a"), &parse("mem:/a,ro,anonuid=7,rate=1M,client=*")),
            [""; 0]
        );
        let differences = fixed_differences(&parse("mem:/a"), &parse("mem:/a,size=1M,objects=7"));
        assert_eq!(differences, ["size", "objects"]);
        let differences = fixed_differences(&parse("dir:/a"), &parse("dir:/b,name=/a,sync=no,lock=below"));
        assert_eq!(differences, ["the directory", "sync", "lock"]);
    }
}
